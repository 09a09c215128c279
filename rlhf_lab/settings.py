"""Every setting of a run, in one place, with the defaults of each kind of backbone."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """What a run does. Learning rates are AdamW's; lengths are in tokens."""

    backbone: str = "tiny"
    """`tiny`, `smollm2`, `gpt2`, a local folder or a hub id."""
    data: str = "toy"
    """`toy`, `toy-en`, `toy-zh`, or a folder of JSON-lines files."""
    reward: str = "rm"
    """What PPO is trained on: `rm` (the trained reward model), `vader`, `sst2`, or a classifier's folder."""
    judge: str = "auto"
    """The independent judge: `toy` (the corpus's ground truth), `vader`, `sst2`, or a classifier's folder."""
    code: str = "solutions"
    """The taught package to run."""
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    max_len: int = 40
    """Length of a row in SFT and reward-model training."""
    sft_epochs: int = 3
    """0 starts PPO from the backbone as it is."""
    sft_batch: int = 16
    sft_lr: float = 1e-3
    rm_epochs: int = 2
    rm_batch: int = 32
    rm_lr: float = 5e-4
    steps: int = 50
    """PPO steps; each samples `batch` responses."""
    batch: int = 32
    new_tokens: int = 24
    ppo_lr: float = 5e-4
    ppo_epochs: int = 4
    kl_coef: float = 0.05


# A pretrained model knows its language: it needs smaller steps, and has less to learn from a toy corpus.
PRETRAINED = dict(
    sft_epochs=1, sft_lr=5e-5, rm_epochs=1, rm_lr=2e-5, batch=16, new_tokens=20, ppo_lr=1e-5
)


def defaults_for(backbone: str) -> dict:
    """The settings that differ from `Settings` for this backbone."""
    return {} if backbone == "tiny" else dict(PRETRAINED)
