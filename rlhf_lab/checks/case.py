"""What a check consists of: cases, each a small experiment on the student's code.

A case calls the code and returns what it saw, `{"advantages": tensor, "carries a gradient": False}`. It does not know
what is right: that stands in `known/`, where `python -m authoring known` has written what the solution shows, what
other correct code shows, and what each known mistake shows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..student_code import builtin_kind, stub_of
from ..taught_code import TaughtCode

Observation = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One line of a check.

    Attributes:
        exercise: name of the function or class under test.
        title: what has to hold, in a few words; unique within the exercise.
        tried: what was tried, in a few words.
        mistake: what is wrong where this case fails although those before it passed; empty where that can be
            many things.
        tolerance: of numbers, absolute and relative.
        observe: the experiment. It may return tensors, numbers, texts, booleans, None, and lists or dictionaries
            of them.
    """

    exercise: str
    title: str
    tried: str
    mistake: str
    tolerance: float
    observe: Callable[[TaughtCode], Observation]


CASES: dict[str, list[Case]] = {}  # of each exercise, in the order in which they are shown


def case(exercise: str, title: str, tried: str, mistake: str = "", tolerance: float = 1e-4):
    """Declare the decorated function as the next case of an exercise."""

    def register(observe: Callable[[TaughtCode], Observation]):
        CASES.setdefault(exercise, []).append(Case(exercise, title, tried, mistake, tolerance, observe))
        return observe

    return register


class WrongReturn(Exception):
    """What the student's code returned is of the wrong kind; the sentence says what came and what was expected."""


def in_words(value: Any) -> str:
    """A value's kind, for a sentence: "a tensor [2, 6]", "a tuple of 2", "None"."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def tensor(function: str, value: Any, shape: Sequence[int] | None = None) -> Tensor:
    """`value`, which has to be a tensor (of this shape, where one is given).

    Raises:
        WrongReturn: when it is not.
    """
    if not isinstance(value, Tensor) or (shape is not None and list(value.shape) != list(shape)):
        expected = "a tensor" + (f" {list(shape)}" if shape is not None else "")
        raise WrongReturn(f"{function} returned {in_words(value)}, expected {expected}")
    return value


def parts(function: str, value: Any, *names: str) -> Sequence:
    """`value`, which has to be a tuple or list of as many things as there are names."""
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        raise WrongReturn(f"{function} returned {in_words(value)}, expected ({', '.join(names)})")
    return value


def entries(function: str, value: Any, *names: str) -> Mapping:
    """`value`, which has to be a dictionary with these keys."""
    if not isinstance(value, Mapping):
        raise WrongReturn(f"{function} returned {in_words(value)}, expected a dictionary")
    if missing := [name for name in names if name not in value]:
        raise WrongReturn(
            f"{function} returned no {missing[0]!r}, only {', '.join(map(str, value)) or 'nothing'}"
        )
    return value


def one_number(what: str, value: Any) -> float:
    """`value`, which has to be one number: a float, an int, or a tensor of one."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.detach()
    elif not isinstance(value, (int, float)):
        raise WrongReturn(f"{what} is {in_words(value)}, expected a number")
    return float(value)


_draw = 0  # see other_numbers


def seed() -> int:
    """The seed that torch's generator starts a case with."""
    return _draw


def numbers(seed: int, *shape: int, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal random numbers that are the same on every machine and in every release of torch."""
    random = np.random.RandomState(seed + 10_000 * _draw)
    return torch.tensor(random.normal(mean, std, shape), dtype=torch.float32)


@contextmanager
def other_numbers(draw: int) -> Iterator[None]:
    """Let `numbers` give others: every case becomes an experiment on inputs that nobody has seen before."""
    global _draw
    _draw = draw
    try:
        yield
    finally:
        _draw = 0


def on_mask(x: Tensor, mask: Tensor) -> Tensor:
    """`x` with 0 outside the mask: what stands there is free, and its place in the tensor is kept."""
    return x.where(mask.bool(), torch.zeros((), dtype=x.dtype))


def raised(call: Callable[[], Any], *words: str) -> str:
    """Which exception `call` raises, and which of these words its text lacks.

    A class of the student's own goes by the name of Python's that it is derived from.
    """
    try:
        call()
    except Exception as error:
        if stub_of(error) or isinstance(error, WrongReturn):
            raise
        missing = [word for word in words if word not in str(error)]
        return builtin_kind(error) + (f" without {', '.join(missing)} in its text" if missing else "")
    return "no exception"
