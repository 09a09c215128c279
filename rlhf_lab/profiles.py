"""Profiles: what of a batch a graphics card holds at a time.

A profile changes no setting of a run and, up to the order of sums, no number (see `passes.py`); it says in how many
passes a batch goes through the models. So an unfinished run may go on under another one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .errors import LabError

GIB = 2**30


@dataclass(frozen=True)
class Profile:
    """How a card is used.

    Attributes:
        card: memory of the card that it is made for, in GiB.
        batch: the largest `--batch`, responses in a PPO step, that it is computed for.
        rows: of a batch that go through a model in one pass; the gradients of `batch / rows` passes are accumulated.
        checkpointing: whether each layer keeps its input alone for the backward pass, and is computed again there.
    """

    name: str
    card: int
    batch: int
    rows: int
    checkpointing: bool


# Largest first. tests/test_memory.py computes that each fits its card with a backbone of 124 or 135 million parameters,
# prompts and responses of `PROFILE_LENGTH` tokens, a reward model, and the reserve.
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("24gb", card=24, batch=64, rows=32, checkpointing=False),
        Profile("16gb", card=16, batch=32, rows=16, checkpointing=False),
        Profile("8gb", card=8, batch=16, rows=4, checkpointing=True),
    )
}
PROFILE_LENGTH = 128
SMALLEST = "8gb"
NOMINAL = 0.93  # a card says that it has a little less than is printed on it


def choose_profile(
    name: str, card: tuple[int, int] | None, need: Callable[[Profile | None], int]
) -> Profile | None:
    """The profile called `name`.

    Args:
        name: one of `PROFILES`, `none`, or `auto`: on a GPU the largest profile made for a card of this size or a
            smaller one whose need is free on it, or else the smallest; on a CPU none.
        card: free and total memory of the GPU, in bytes; None on a CPU.
        need: the computed memory of the run under a profile, in bytes.

    Raises:
        LabError: for another name.
    """
    if name == "none" or (name == "auto" and card is None):
        return None
    if name == "auto":
        free, total = card
        for profile in PROFILES.values():
            if NOMINAL * profile.card * GIB <= total and need(profile) <= free:
                return profile
        return PROFILES[SMALLEST]
    if name not in PROFILES:
        raise LabError(f"there is no profile {name!r}: use auto, {', '.join(PROFILES)} or none")
    return PROFILES[name]


def describe_profile(profile: Profile | None) -> str:
    """What a profile does, in words."""
    if profile is None:
        return "none: each batch in one pass"
    layers = ", layers computed again" if profile.checkpointing else ""
    return f"{profile.name}: at most {profile.rows} rows in a pass{layers}"
