"""What the methods start from and are judged by: the shipped checkpoints, or a run folder."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..backbones import load_tokenizer
from ..checkpoints import SFT, ShippedReward
from ..data import CourseData, load_data
from ..data.judge import ToyJudge
from ..data.ratings import clear_rows
from ..devices import Compute, choose_compute
from ..lab import open_lab
from ..rewards import RewardFunction, TextScorer
from ..runs import check_finished, read_settings
from ..settings import Settings
from ..stages.ppo import load_reward_function
from ..taught_code import TaughtCode, load_code


@dataclass(frozen=True)
class Start:
    """One SFT model with everything that PPO, DPO and GRPO read.

    Attributes:
        sft: folder of the SFT model, the reference of all three.
        settings: their lengths, and PPO's and GRPO's steps, batch, updates and learning rate.
        dpo_batch, dpo_lr: pairs in a step of DPO, and its learning rate.
        dpo_pairs, grpo_steps: preference pairs of DPO's one epoch and steps of GRPO, at most: a laptop has to get through
            them on a real model.
    """

    code: TaughtCode | None
    sft: Path
    tokenizer: Any
    data: CourseData
    reward_fn: RewardFunction | None
    judge: TextScorer
    settings: Settings
    compute: Compute
    dpo_batch: int
    dpo_lr: float
    dpo_pairs: int
    grpo_steps: int

    @property
    def clear_pairs_heldout(self):
        """The held-out pairs; of rated ones those whose margin is clear."""
        pairs = self.data.pairs_heldout
        if "margin" not in pairs.column_names:
            return pairs
        return pairs.select(clear_rows(pairs))


def start_shipped(code: str | None = None) -> Start:
    """The shipped checkpoints of `tiny`; without `code`, to measure alone."""
    return Start(
        code=load_code(code) if code else None,
        sft=SFT,
        tokenizer=load_tokenizer(SFT),
        data=load_data("toy"),
        reward_fn=ShippedReward() if code else None,
        judge=ToyJudge(),
        settings=Settings(),
        compute=choose_compute("cpu", "float32"),
        dpo_batch=32,
        dpo_lr=3e-4,
        dpo_pairs=1_000_000,
        grpo_steps=1_000_000,
    )


def start_of_run(code: str, folder: Path) -> Start:
    """What a run folder has finished: its SFT model, its reward and its settings.

    Raises:
        LabError: when it is no run folder, or its SFT model or its reward model is not finished.
    """
    settings = read_settings(folder)
    check_finished(folder, *settings.stages_before_ppo)
    lab = open_lab(dataclasses.replace(settings, code=code), folder)
    return Start(
        code=lab.code,
        sft=lab.sft_model,
        tokenizer=lab.tokenizer,
        data=lab.data,
        reward_fn=load_reward_function(lab),
        judge=lab.judge,
        settings=settings,
        compute=lab.compute,
        dpo_batch=settings.rm_batch,
        dpo_lr=settings.rm_lr,
        dpo_pairs=1200,
        grpo_steps=20,
    )
