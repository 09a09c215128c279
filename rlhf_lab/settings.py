"""Every setting of a run, in one place, with the defaults of each kind of backbone."""

# the command line of an older Python reads this file too, before it says that it is too old
from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass, field

from .errors import LabError

STAGES = ("sft", "reward_model", "ppo")  # of a run, in their order; the taught modules have the same names
MODULES = (*STAGES, "dpo", "grpo", "toy", "trainer")  # that are taught, in the course's order
STUB_PACKAGE = "rlhf_exercises"  # what a student edits
MODULE_BYTES = 1 << 20  # of a student's module, at most; the largest solution has 20 kB
NOTEBOOK_BYTES = 1 << 26  # of a student's notebook with its outputs, at most


def _setting(default, help: str, decides: bool = True):
    return field(default=default, metadata={"help": help, "decides": decides})


@dataclass(frozen=True)
class Settings:
    """What a run does; the command line has an option for each field. Lengths are in tokens, rates are AdamW's."""

    backbone: str = _setting("tiny", "tiny, smollm2, gpt2, a local folder or a hub id")
    data: str = _setting(
        "toy", "toy, toy-en, toy-zh, ratings (human feedback), hh-rlhf, rm-static, or a folder of JSONL files"
    )
    rows: int = _setting(2000, "dialogues drawn from hh-rlhf or rm-static; other data are read whole")
    reward: str = _setting(
        "rm", "what PPO is trained on: rm (the trained reward model), vader, sst2, or a classifier"
    )
    judge: str = _setting(
        "auto", "the judge beside it, never trained on: toy (ground truth), vader, sst2, a classifier"
    )
    code: str = _setting("solutions", "the taught package to run")
    seed: int = _setting(0, "of every random number of the run")
    device: str = _setting("auto", "auto, cpu, cuda or cuda:N")
    dtype: str = _setting("auto", "auto, float32 or bfloat16")
    profile: str = _setting(
        "auto", "how a batch goes through a GPU: 8gb, 16gb, 24gb, none or auto", decides=False
    )
    max_len: int = _setting(40, "length of a row in SFT and reward-model training")
    sft_epochs: int = _setting(3, "0 starts PPO from the backbone as it is")
    sft_batch: int = _setting(16, "demonstrations in a step")
    sft_lr: float = _setting(5e-4, "learning rate of SFT")
    rm_epochs: int = _setting(2, "epochs of reward-model training")
    rm_batch: int = _setting(32, "pairs in a step")
    rm_lr: float = _setting(5e-4, "learning rate of the reward model")
    steps: int = _setting(50, "PPO steps")
    batch: int = _setting(32, "responses sampled in a PPO step")
    new_tokens: int = _setting(24, "at which a response is cut")
    ppo_lr: float = _setting(1e-4, "learning rate of PPO")
    ppo_warmup: int = _setting(0, "steps in which PPO's learning rate rises to that (not the value head's)")
    value_lr_factor: float = _setting(1.0, "learning rate of the value head, as a multiple of PPO's")
    ppo_epochs: int = _setting(4, "updates on each rollout")
    kl_coef: float = _setting(0.05, "price of a nat of KL to the reference")

    @property
    def stages_before_ppo(self) -> tuple[str, ...]:
        """The stages that a run trains before PPO: a stand-in reward needs no reward model."""
        return ("sft", "reward_model") if self.reward == "rm" else ("sft",)

    @property
    def deciding(self) -> dict:
        """The settings that decide what a run computes: all but the profile, which an unfinished run may change."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata["decides"]
        }


# A pretrained model knows its language: it needs smaller steps, and has less to learn from a toy corpus.
PRETRAINED = dict(
    sft_epochs=2, sft_lr=1e-4, rm_epochs=1, rm_lr=2e-5, max_len=64, batch=16, new_tokens=20, ppo_lr=5e-6
)

# The snippets are short, and a liked one ends within 20 tokens. In a second epoch SmolLM2 learns them by heart.
RATED = dict(max_len=28, new_tokens=20, sft_epochs=1)
# People write in more ways than the toy corpus does: it takes more responses to say which words are liked, and larger
# steps. AdamW's first steps are its largest (each weight moves by the whole rate), so the rate starts low. The value head
# starts from nothing: at the model's rate it runs behind the rising reward for thirty steps, and an advantage that is
# nearly the reward itself favours the tokens next to it, so responses became short and alike.
RATED_PRETRAINED = dict(
    batch=64, ppo_epochs=2, ppo_lr=2e-5, ppo_warmup=10, value_lr_factor=10.0, kl_coef=0.06
)


def flag(name: str) -> str:
    """The command line's option for a setting."""
    return f"--{name.replace('_', '-')}"


def add_option(parser: argparse.ArgumentParser, name: str, help_text: str | None = None) -> None:
    """Give a command the option for a setting, which is None where it is not given."""
    (setting,) = [field for field in dataclasses.fields(Settings) if field.name == name]
    usual = f"{setting.metadata['help']} (default {setting.default})"
    parser.add_argument(flag(name), type=type(setting.default), default=None, help=help_text or usual)


def checked_settings(values: dict) -> Settings:
    """The settings of these values.

    Raises:
        LabError: when a number is out of its range.
    """
    for name, value in values.items():
        lowest = 0 if name in ("seed", "sft_epochs", "kl_coef", "ppo_warmup") else 1e-12
        highest = 2**63 - 1 if name == "seed" else 1_000_000
        if isinstance(value, (int, float)) and not value <= highest:  # NaN is not either
            raise LabError(f"{flag(name)} is {value}: it must be at most {highest}")
        if isinstance(value, (int, float)) and value < lowest:
            raise LabError(
                f"{flag(name)} is {value}: it must be {'at least 0' if not lowest else 'positive'}"
            )
    return Settings(**values)


def defaults_for(backbone: str, data: str) -> dict:
    """The settings that differ from `Settings` for this backbone and these data."""
    pretrained, rated = backbone != "tiny", data == "ratings"
    return (
        (PRETRAINED if pretrained else {})
        | (RATED if rated else {})
        | (RATED_PRETRAINED if pretrained and rated else {})
    )
