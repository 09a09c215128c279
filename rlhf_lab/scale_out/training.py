"""The loop: draw prompts, answer this rank's share of them, update together."""

import copy
import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ..checkpoints import SFT, ShippedReward
from ..devices import reads_in_float32
from ..errors import LabError
from ..lab import Lab
from ..returned import check_rollout
from ..rewards import CheckedReward
from ..runs import check_finished
from ..stages import ppo as ppo_stage
from . import ranks, steps

COMPARE_EVERY = 10  # steps between two comparisons of the ranks' weights


@dataclass(frozen=True)
class Start:
    """What a training begins with, alike on every rank.

    Attributes:
        policy: PPO's policy with its value head; GRPO trains its `.lm` alone.
        ref_policy: its frozen copy.
    """

    policy: nn.Module
    ref_policy: nn.Module
    reward_fn: Callable[[Tensor, Tensor], Tensor]
    tokenizer: Any
    prompts: Sequence[str]


def load_start(lab: Lab, from_run: bool) -> Start:
    """SFT model and reward of `lab`'s run folder, or the shipped ones of `tiny`.

    Raises:
        LabError: when the run has not finished the stages that come before PPO.
    """
    torch.manual_seed(
        lab.settings.seed
    )  # the value head is drawn at random, and has to be the same on every rank
    if not from_run:
        policy = reads_in_float32(lab.code.ppo.PolicyWithValueHead(str(SFT)).to(lab.compute.device))
        ref_policy = copy.deepcopy(policy).eval().requires_grad_(False)
        if lab.settings.reward == "rm":
            shipped = ShippedReward()
            shipped.model.to(lab.compute.device)
            reward_fn = CheckedReward("rm", shipped)
        else:
            reward_fn = ppo_stage.load_reward_function(lab)
    else:
        check_finished(lab.folder, *lab.settings.stages_before_ppo)
        policy, ref_policy = ppo_stage.load_policies(lab)
        reward_fn = ppo_stage.load_reward_function(lab)
    return Start(policy, ref_policy, reward_fn, lab.tokenizer, list(lab.data.prompts_train["prompt"]))


def train(
    lab: Lab,
    accelerator: Accelerator,
    start: Start,
    group_size: int | None,
    on_step: Callable[[dict[str, float]], None],
) -> nn.Module:
    """Train with PPO, or with GRPO in groups of `group_size`; return the model that was trained.

    The settings count for the whole batch: `batch` responses a step over all ranks. Random numbers are of two kinds:
    prompts are drawn alike on every rank, responses are sampled from a seed of the rank's own.

    Args:
        on_step: called on every rank with the figures of each step, which are the same on all of them.

    Raises:
        LabError: on every rank, when one of them cannot go on.
    """
    settings = lab.settings
    answers = functools.partial(_answers, lab, start, group_size)
    if group_size is None:
        learner, optim = start.policy, ppo_stage.optimizer_of(start.policy, settings)
        n_prompts = settings.batch
        step = functools.partial(steps.ppo_step, lab.code.ppo, ppo_epochs=settings.ppo_epochs)
    else:
        learner = start.policy.lm
        optim = torch.optim.AdamW(learner.parameters(), lr=settings.ppo_lr, fused=True)
        n_prompts = settings.batch // group_size
        step = functools.partial(steps.grpo_step, lab.code.grpo, n_epochs=settings.ppo_epochs)

    alike = torch.Generator().manual_seed(settings.seed)
    torch.manual_seed(ranks.seed_for_rank(settings.seed, accelerator.process_index))
    for number in range(settings.steps):
        if number % COMPARE_EVERY == 0:
            ranks.check_same_weights(accelerator, learner)
        ppo_stage.set_rate(optim, settings, number)
        clock = time.perf_counter()
        drawn = torch.randint(len(start.prompts), (n_prompts,), generator=alike).tolist()
        prompts = ranks.own_rows(accelerator, [start.prompts[i] for i in drawn])
        batch = ranks.on_all_ranks(accelerator, functools.partial(answers, prompts))
        info = step(accelerator, learner, optim, batch, kl_coef=settings.kl_coef)
        for name, value in info.items():
            if not math.isfinite(value):
                raise LabError(
                    f"step {number}: {name} is {value}; a smaller learning rate is the first thing to try"
                )
        on_step({"step": number, **info, "seconds": time.perf_counter() - clock})
    ranks.check_same_weights(accelerator, learner)
    return learner


def _answers(lab: Lab, start: Start, group_size: int | None, prompts: list[str]):
    """This rank's rows of the batch."""
    if group_size is not None:
        return lab.code.grpo.group_rollout(
            start.policy.lm,
            start.ref_policy.lm,
            start.reward_fn,
            start.tokenizer,
            prompts,
            group_size,
            lab.settings.new_tokens,
        )
    batch = lab.code.ppo.rollout(
        start.policy, start.ref_policy, start.reward_fn, start.tokenizer, prompts, lab.settings.new_tokens
    )
    check_rollout(batch, len(prompts))
    return batch


def check_batch(batch: int, group_size: int | None, n_ranks: int) -> None:
    """Raise LabError unless a batch is the same number of whole groups (PPO: of rows) on every rank."""
    rows = n_ranks * (group_size or 1)
    if batch % rows != 0:
        groups = f" in groups of {group_size}" if group_size else ""
        raise LabError(
            f"--batch {batch} cannot be shared out equally to {n_ranks} processes{groups}: give a multiple of {rows}"
        )


def default_folder(method: str, n_ranks: int, seed: int) -> Path:
    return Path("runs") / f"scale-out-{method}-{n_ranks}-seed{seed}"
