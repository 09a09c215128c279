"""How far the gradient of several processes is from that of one: the figures of docs/scale-out.md.

    accelerate launch --multi_gpu --num_processes 2 -m authoring.scale_out

Every rank holds one fixed batch of eight rows as a whole. The taught `ppo_step`, `grpo_step`, `train_sft` and `train_rm`
update on all of it, and what they leave in `.grad` is the measure. Then each rank takes its part of the rows, and the
gradient of all ranks together is set beside it. Two mistakes that are easily made are measured in the same way.
"""

import contextlib
import copy
import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from unittest import mock

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from rlhf_lab.backbones import load_causal_lm, load_tokenizer, quiet_transformers
from rlhf_lab.checkpoints import SFT, ShippedReward
from rlhf_lab.data import load_data
from rlhf_lab.scale_out import ranks, steps
from solutions import grpo, ppo, reward_model, sft

from .comparison import Comparison
from .tables import markdown_table

ROWS, NEW_TOKENS, GROUP, MAX_LEN = 8, 24, 2, 40
NOT_CLIPPED = 1e9


def compare(accelerator: Accelerator) -> list[Comparison]:
    """All quantities; a gradient's difference is relative to its largest entry, a figure's to 1 or its own size."""
    quiet_transformers()
    return [*_compare_ppo(accelerator), *_compare_grpo(accelerator), *_compare_supervised(accelerator)]


# --- batches ----------------------------------------------------------------------------------------


def _moved(model: nn.Module, seed: int) -> nn.Module:
    """A copy of the model a little away from it, the zeros of a fresh value head included."""
    generator = torch.Generator().manual_seed(seed)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for weight in moved.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=generator)
    return moved


def _prompts(how_many: int) -> list[str]:
    prompts = sorted(set(load_data("toy").prompts_train["prompt"]), key=lambda text: (len(text), text))
    return [prompts[at * (len(prompts) - 1) // (how_many - 1)] for at in range(how_many)]


def _take(rollout, rows: list[int]):
    """Some rows of a rollout, with the columns that none of them uses cut off on both sides."""
    tensors = {
        field.name: getattr(rollout, field.name)[rows]
        for field in dataclasses.fields(rollout)
        if isinstance(getattr(rollout, field.name), torch.Tensor)
    }
    used = tensors["full_mask"].bool().any(0)
    response = int(tensors["response_mask"].sum(-1).max())
    for name, tensor in tensors.items():
        if name.startswith("full_"):
            tensors[name] = tensor[:, used]
        elif tensor.ndim == 2:
            tensors[name] = tensor[:, :response]
    return dataclasses.replace(rollout, **tensors, texts=[rollout.texts[row] for row in rows])


def _own_part(accelerator: Accelerator, rollout):
    rows = range(len(rollout.full_ids))
    return _take(rollout, ranks.own_rows(accelerator, rows))


# --- gradients --------------------------------------------------------------------------------------


def _gradient(model: nn.Module, update: Callable[[torch.optim.Optimizer], dict]) -> tuple[dict, dict]:
    """What an update that changes nothing leaves in `.grad`, by name, and the figures that it returns."""
    model.zero_grad()
    figures = update(torch.optim.SGD(model.parameters(), lr=0.0))
    return _gradients_of(model), figures


def _gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("module."): weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


def _distance(theirs: dict[str, torch.Tensor], ours: dict[str, torch.Tensor]) -> float:
    assert theirs.keys() == ours.keys()
    largest = max(gradient.abs().max() for gradient in ours.values())
    return max(((theirs[name] - ours[name]).abs().max() / largest).item() for name in ours)


def _largest_difference(theirs: dict[str, float], ours: dict[str, float]) -> float:
    assert theirs.keys() == ours.keys()
    return max(abs(theirs[name] - ours[name]) / max(abs(ours[name]), 1.0) for name in ours)


# --- PPO and GRPO -----------------------------------------------------------------------------------


def ppo_batch() -> tuple[nn.Module, "ppo.Rollout"]:
    """A policy, and a rollout of another one near it; the short responses come first."""
    torch.manual_seed(0)
    reference = ppo.PolicyWithValueHead(str(SFT)).requires_grad_(False)
    sampling = _moved(reference, seed=1)
    rollout = ppo.rollout(
        sampling, reference, ShippedReward(), load_tokenizer(SFT), _prompts(ROWS), NEW_TOKENS
    )
    by_length = rollout.response_mask.sum(-1).argsort(stable=True).tolist()
    policy = _moved(sampling, seed=2).requires_grad_(True)
    return policy, _take(rollout, by_length)


def _compare_ppo(accelerator: Accelerator) -> list[Comparison]:
    policy, rollout = ppo_batch()
    own = _own_part(accelerator, rollout)

    def on_one(max_grad_norm: float):
        return _gradient(
            policy,
            lambda optim: ppo.ppo_step(policy, optim, rollout, ppo_epochs=1, max_grad_norm=max_grad_norm),
        )

    def on_all(model: nn.Module = policy, max_grad_norm: float = NOT_CLIPPED):
        return _gradient(
            model,
            lambda optim: steps.ppo_step(
                ppo, accelerator, model, optim, own, ppo_epochs=1, max_grad_norm=max_grad_norm
            ),
        )

    gradient, info = on_one(NOT_CLIPPED)
    found, found_info = on_all()
    clipped, found_clipped = on_one(0.1)[0], on_all(max_grad_norm=0.1)[0]
    with _whitened_alone():
        whitened_alone, _ = on_all()
    with _mean_of_means(accelerator):
        mean_of_means, _ = on_all()
    with _summed_by_wrapper(accelerator):
        wrapped, _ = on_all(accelerator.prepare(policy))
    return [
        Comparison("PPO: gradient", _distance(found, gradient)),
        Comparison("PPO: gradient, clipped", _distance(found_clipped, clipped)),
        Comparison("PPO: gradient, through DistributedDataParallel", _distance(wrapped, gradient)),
        Comparison("PPO: figures", _largest_difference(found_info, info)),
        Comparison(
            "PPO: gradient, whitened on each rank alone", _distance(whitened_alone, gradient), agrees=False
        ),
        Comparison(
            "PPO: gradient, mean of the ranks' means", _distance(mean_of_means, gradient), agrees=False
        ),
    ]


def _whitened_alone():
    """The mistake of whitening before the ranks are put together."""
    return mock.patch.object(
        ranks, "whiten_over_ranks", lambda accelerator, masked_whiten, x, mask: masked_whiten(x, mask)
    )


def _mean_of_means(accelerator: Accelerator):
    """The mistake of weighing every rank alike, however many tokens it holds."""
    alike = torch.tensor(1 / accelerator.num_processes)
    return mock.patch.object(ranks, "token_share", lambda accelerator, mask: alike)


@contextlib.contextmanager
def _summed_by_wrapper(accelerator: Accelerator):
    """The wrapper averages the gradients, so that the shares are multiplied by the number of ranks."""
    share = ranks.token_share
    with (
        mock.patch.object(ranks, "sum_gradients", lambda accelerator, model: None),
        mock.patch.object(
            ranks,
            "token_share",
            lambda accelerator, mask: accelerator.num_processes * share(accelerator, mask),
        ),
    ):
        yield


def _compare_grpo(accelerator: Accelerator) -> list[Comparison]:
    torch.manual_seed(0)
    reference = load_causal_lm(SFT).requires_grad_(False)
    sampling = _moved(reference, seed=1)
    rollout = grpo.group_rollout(
        sampling, reference, ShippedReward(), load_tokenizer(SFT), _prompts(ROWS // GROUP), GROUP, NEW_TOKENS
    )
    policy = _moved(sampling, seed=2).requires_grad_(True)
    own = _own_part(accelerator, rollout)
    gradient, info = _gradient(
        policy,
        lambda optim: grpo.grpo_step(policy, optim, rollout, n_epochs=1, max_grad_norm=NOT_CLIPPED),
    )
    found, found_info = _gradient(
        policy,
        lambda optim: steps.grpo_step(
            grpo, accelerator, policy, optim, own, n_epochs=1, max_grad_norm=NOT_CLIPPED
        ),
    )
    return [
        Comparison("GRPO: gradient", _distance(found, gradient)),
        Comparison("GRPO: figures", _largest_difference(found_info, info)),
    ]


# --- SFT and reward model ---------------------------------------------------------------------------


def _compare_supervised(accelerator: Accelerator) -> list[Comparison]:
    """The taught loops as they are, on a model and a loader that Accelerate has prepared: one step."""
    data, tokenizer, device = load_data("toy"), load_tokenizer(SFT), accelerator.device
    texts = sft.SFTDataset(data.sft_train.select(range(ROWS)), tokenizer, MAX_LEN)
    pairs = reward_model.RMDataset(data.pairs_train.select(range(ROWS)), tokenizer, MAX_LEN)
    lm = load_causal_lm(SFT)
    torch.manual_seed(0)
    scorer = reward_model.RewardModel(str(SFT))
    return [
        Comparison(
            "`train_sft` as it is, prepared by Accelerate: gradient",
            _one_step(accelerator, sft.train_sft, lm, texts, device),
            agrees=False,
        ),
        Comparison(
            "`train_rm` as it is, prepared by Accelerate: gradient",
            _one_step(accelerator, reward_model.train_rm, scorer, pairs, device),
        ),
    ]


def _one_step(accelerator: Accelerator, train, model: nn.Module, dataset, device) -> float:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # each rank would draw its own
    model.to(device)
    alone, shared = copy.deepcopy(model), copy.deepcopy(model)
    train(alone, DataLoader(dataset, batch_size=ROWS), n_epochs=1, lr=1e-3, device=device)
    wrapped, loader = accelerator.prepare(
        shared, DataLoader(dataset, batch_size=ROWS // accelerator.num_processes)
    )
    train(wrapped, loader, n_epochs=1, lr=1e-3, device=device)
    return _distance(_gradients_of(wrapped), _gradients_of(alone))


def main() -> int:
    accelerator = ranks.start_accelerator("cpu")
    comparisons = compare(accelerator)
    if accelerator.is_main_process:
        if "--json" in sys.argv[1:]:
            print(json.dumps([asdict(one) for one in comparisons]))
        else:
            rows = [(one.quantity, f"{one.error:.1e}", _verdict(one)) for one in comparisons]
            columns = f"{accelerator.num_processes} processes beside one", "largest difference", ""
            print(markdown_table(columns, rows))
    accelerator.end_training()
    return 0 if all(one.as_expected for one in comparisons) else 1


def _verdict(one: Comparison) -> str:
    if not one.as_expected:
        return "UNEXPECTED"
    return "agrees" if one.agrees else "differs"


if __name__ == "__main__":
    sys.exit(main())
