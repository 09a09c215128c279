"""What joins the ranks: sums and gathers of Hugging Face Accelerate, each with the reason why it is needed.

All ranks have to call these functions in the same order: each one waits for the others.
"""

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from ..errors import LabError

Result = TypeVar("Result")


def start_accelerator(device: str) -> Accelerator:
    """Join the other processes of this launch; without a launcher, one rank that is alone.

    Args:
        device: `auto` (a GPU for each process where there are GPUs) or `cpu`.

    Raises:
        LabError: when there are more processes than GPUs, or the launcher has started one process instead of several.
    """
    if device not in ("auto", "cpu"):
        raise LabError(
            f"--device is {device!r}: use auto or cpu, the launcher gives each process its own GPU"
        )
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    started = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if not on_cpu and started > torch.cuda.device_count():
        raise LabError(
            f"{started} processes were started on a machine with {torch.cuda.device_count()} GPUs: give "
            f"--num_processes {torch.cuda.device_count()} to the launcher, or --device cpu to this command"
        )
    accelerator = Accelerator(cpu=on_cpu)
    # `accelerate launch --cpu --num_processes N` leaves the N processes to MPI, and starts one where there is none
    asked_for_several = "MASTER_ADDR" in os.environ and "ACCELERATE_USE_CPU" in os.environ
    if accelerator.num_processes == 1 and asked_for_several and "WORLD_SIZE" not in os.environ:
        raise LabError(
            "accelerate launch --cpu has started one process, for several it needs MPI: use `accelerate launch "
            "--multi_gpu --num_processes N`, which starts them on the CPU too"
        )
    return accelerator


def on_all_ranks(accelerator: Accelerator, work: Callable[[], Result]) -> Result:
    """Do what may fail on one rank alone; where it does, every rank raises the same sentence.

    Otherwise the others would wait, in the next operation that joins them, for a rank that is gone.
    """
    result, trouble = None, None
    try:
        result = work()
    except (LabError, NotImplementedError) as error:
        trouble = str(error)
    troubles = gather_object([trouble])
    failed = [rank for rank, sentence in enumerate(troubles) if sentence is not None]
    if failed:
        where = "" if len(failed) == len(troubles) else f"rank {failed[0]}: "
        raise LabError(where + troubles[failed[0]])
    return result


def seed_for_rank(seed: int, rank: int) -> int:
    """A seed of the rank's own, far from those of other ranks and of other runs.

    With `seed + rank`, rank 1 of one run would sample with the numbers of rank 0 of the next.
    """
    return int(np.random.SeedSequence([seed, rank]).generate_state(1, np.uint64)[0])


def own_rows(accelerator: Accelerator, rows: Sequence) -> list:
    """This rank's share of rows that every rank has drawn alike: contiguous, and as many as any other rank's.

    Raises:
        LabError: when the rows cannot be shared out equally.
    """
    ranks = accelerator.num_processes
    if len(rows) % ranks != 0:
        raise LabError(
            f"{len(rows)} prompts in a batch cannot be shared out equally to {ranks} processes: give a multiple of {ranks}"
        )
    each = len(rows) // ranks
    return list(rows[accelerator.process_index * each : (accelerator.process_index + 1) * each])


def whiten_over_ranks(
    accelerator: Accelerator,
    masked_whiten: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    mask: Tensor,
) -> Tensor:
    """`masked_whiten` over the rows of all ranks; this rank's rows of the result, `[rows, response]` as `x`.

    The longest response of each rank differs, so the rows are padded to the longest of all before they are gathered.
    """
    rows, response = x.shape
    everybody_x, everybody_mask = (
        accelerator.gather(accelerator.pad_across_processes(tensor.contiguous(), dim=1))
        for tensor in (x, mask)
    )
    whitened = masked_whiten(everybody_x, everybody_mask)
    first = accelerator.process_index * rows
    return whitened[first : first + rows, :response]


def token_share(accelerator: Accelerator, mask: Tensor) -> Tensor:
    """The share of the whole batch's tokens that this rank holds, between 0 and 1, `[]`.

    A token mean over the batch is the sum over ranks of `token_share * the rank's own token mean`. The plain mean of
    the ranks' means would let a token count more where the responses are short.
    """
    own = mask.sum()
    return own / accelerator.reduce(own, reduction="sum").clamp(min=1)


def sum_gradients(accelerator: Accelerator, model: nn.Module) -> None:
    """Replace every gradient by its sum over all ranks."""
    for weight in model.parameters():
        if weight.grad is not None:
            weight.grad = accelerator.reduce(weight.grad, reduction="sum")


def sum_figures(accelerator: Accelerator, figures: dict[str, float]) -> dict[str, float]:
    """The sum over all ranks of each figure."""
    own = torch.tensor(list(figures.values()), dtype=torch.float32, device=accelerator.device)
    return dict(zip(figures, accelerator.reduce(own, reduction="sum").tolist(), strict=True))


def check_same_weights(accelerator: Accelerator, model: nn.Module) -> None:
    """Compare two sums over all weights between the ranks.

    Every rank takes the same step from the same weights, so they stay the same to the last bit; a rank that has
    drifted away would go on training another model without any error.

    Raises:
        LabError: on every rank, when the sums differ.
    """
    weights = [weight.detach().double() for weight in model.parameters()]
    own = torch.stack([sum(w.sum() for w in weights), sum(w.square().sum() for w in weights)])
    sums = accelerator.gather(own.unsqueeze(0))
    if not (sums == sums[0]).all():
        raise LabError(
            "the ranks hold different weights: something that the update depends on is drawn at random or read from "
            "somewhere on each of them"
        )
