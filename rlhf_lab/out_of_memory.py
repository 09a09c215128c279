"""What a run says when the graphics card is full: one sentence, and a command that goes on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .errors import LabError
from .lab import Lab
from .memory import in_gib
from .profiles import PROFILES, SMALLEST


@contextmanager
def told(sentence: Callable[[], str]) -> Iterator[None]:
    """Turn torch's OutOfMemoryError into a `LabError` with the sentence."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise LabError(sentence()) from None


def in_stage(lab: Lab, stage: str) -> str:
    """The sentence for a stage of a run: what it was doing, what there is and is needed, and what to give."""
    need = lab.needs(lab.profile)[stage].total
    under = "without a profile" if lab.profile is None else f"with --profile {lab.profile.name}"
    computed = f"{in_gib(need)} by computation {under}"
    return (
        f"the memory of the device was full in {stage}: {_card(lab.compute)}, and the stage needs {computed}; "
        + (_advice(lab, stage))
    )


def _advice(lab: Lab, stage: str) -> str:
    smallest = PROFILES[SMALLEST]
    if lab.profile != smallest:
        need = in_gib(lab.needs(smallest)[stage].total)
        return (
            f"give the same command with --profile {SMALLEST} ({need}) and without --fresh: what was finished is "
            f"kept, and no number of the run depends on the profile"
        )
    name, batch = {
        "sft": ("sft-batch", lab.settings.sft_batch),
        "reward_model": ("rm-batch", lab.settings.rm_batch),
        "ppo": ("batch", lab.settings.batch),
    }[stage]
    if batch == 1:
        return "end what else is using the card, or give a smaller --backbone and --fresh"
    return (
        f"give the same command with --{name} {batch // 2} --fresh: another batch makes another run, and the old one is "
        f"moved aside"
    )


def in_bench(compute, batch: int) -> str:
    """The sentence for the bench, which has no profile: it measures the taught step as it is."""
    smaller = f"a batch of {max(1, batch // 2)} (--batch {max(1, batch // 2)})"
    return f"the memory of the device was full in bench: {_card(compute)}; give {smaller}, or --device cpu"


def in_methods(compute, method: str) -> str:
    """The sentence for the comparison of methods, whose sizes are fixed."""
    return (
        f"the memory of the device was full in {method}: {_card(compute)}; end what else is using it, and give the same "
        f"command again"
    )


def _card(compute) -> str:
    card = compute.free_and_total()
    if card is None:
        return "it is the CPU's"
    return f"it has {in_gib(card[1])}, of which {in_gib(card[0])} are free now"
