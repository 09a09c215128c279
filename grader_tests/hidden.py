"""What a hidden test is: a named case with points, an experiment on the candidate's code, and a sentence for the student.

A test asks the candidate to call functions on drawn inputs and raises `Wrong` when an answer is not right. It runs in
the examiner's process; the candidate's code does not.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .candidate import Answer, Candidate


class Wrong(Exception):
    """The candidate's answer is not right. Its text is for the student; without one, the test's own message is."""


@dataclass(frozen=True)
class HiddenTest:
    """One named case.

    Attributes:
        exercise: name of the function or class under test.
        title: what has to hold, in a few words; unique within the exercise. Students read it.
        points: of the exercise's points, lost when it fails.
        catches: the mistakes it must catch, each in a few words; for us.
        message: the mistake, in a sentence to the student: never the formula, never the inputs.
        after: titles of tests that must have passed, else this one is lost too: "leaves its arguments alone" is
            worth nothing from a function that does nothing.
        training: whether it trains a model, and is left out where that is switched off.
        gpu: whether it is run on a GPU where there is one: it puts what it trains on the candidate's `device`.
        experiment: the test itself.
    """

    exercise: str
    title: str
    points: float
    catches: tuple[str, ...]
    message: str
    after: tuple[str, ...]
    training: bool
    gpu: bool
    experiment: Callable[[Candidate, "Draw"], None]


TESTS: dict[str, list[HiddenTest]] = {}  # of each exercise, in the order in which they are run


def hidden(
    exercise: str,
    title: str,
    points: float,
    catches: Sequence[str],
    message: str,
    after: Sequence[str] = (),
    training: bool = False,
    gpu: bool = False,
):
    """Declare the decorated function as the next hidden test of an exercise."""

    def register(experiment: Callable[[Candidate, "Draw"], None]):
        test = HiddenTest(
            exercise, title, points, tuple(catches), message, tuple(after), training, gpu, experiment
        )
        TESTS.setdefault(exercise, []).append(test)
        return experiment

    return register


class Draw:
    """The random inputs of one test: other ones in every course, the same ones for every student of it."""

    def __init__(self, seed: int, title: str):
        self.seed = seed
        self._random = np.random.RandomState([seed, *title.encode()])

    def normal(self, *shape: int, mean: float = 0.0, std: float = 1.0) -> Tensor:
        return torch.tensor(self._random.normal(mean, std, shape), dtype=torch.float32)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return torch.tensor(self._random.uniform(low, high, shape), dtype=torch.float32)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from `low` to `high - 1`, as `torch.long`."""
        return torch.tensor(self._random.randint(low, high, shape), dtype=torch.long)

    def number(self, low: float, high: float) -> float:
        return float(self._random.uniform(low, high))

    def whole(self, low: int, high: int) -> int:
        """From `low` to `high - 1`."""
        return int(self._random.randint(low, high))

    def shuffled(self, values: Sequence) -> list:
        return [values[i] for i in self._random.permutation(len(values))]


def right_mask(*lengths: int, width: int | None = None) -> Tensor:
    """A mask `[batch, width]` of rows with this many 1s, padded on the right."""
    columns = torch.arange(width or max(lengths))
    return (columns < torch.tensor(lengths).unsqueeze(1)).long()


def left_mask(*lengths: int, width: int | None = None) -> Tensor:
    """The same, padded on the left."""
    return right_mask(*lengths, width=width).flip(1)


def check(holds: bool, message: str | None = None) -> None:
    """Raises `Wrong` when it does not hold."""
    if not holds:
        raise Wrong(message or "")


def tensor(value: Any, *shape: int, what: str = "what it returns") -> Tensor:
    """`value`, which has to be a tensor; of this shape where one is given."""
    if not isinstance(value, Tensor):
        raise Wrong(f"A tensor was expected as {what}, and a {kind(value)} came.")
    if shape and list(value.shape) != list(shape):
        raise Wrong(f"The shape of {what} is not what the docstring says.")
    return value


def parts(value: Any, n: int) -> Sequence:
    """`value`, which has to be a tuple or list of `n` things."""
    if not isinstance(value, (tuple, list)) or len(value) != n:
        raise Wrong(f"{n} things were expected together, and a {kind(value)} came.")
    return value


def entries(value: Any, *names: str) -> dict:
    """`value`, which has to be a dictionary with these keys."""
    if not isinstance(value, dict):
        raise Wrong(f"A dictionary was expected, and a {kind(value)} came.")
    if missing := [name for name in names if name not in value]:
        raise Wrong(f"There is no {missing[0]!r} in the dictionary that it returns.")
    return value


def number(value: Any) -> float:
    """`value`, which has to be one number: a float, an int, or a tensor of one."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.detach())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Wrong(f"One number was expected, and a {kind(value)} came.")
    return float(value)


def kind(value: Any) -> str:
    return str(getattr(value, "kind", type(value).__name__))


def unchanged(answer: Answer, arguments: Sequence[Tensor]) -> None:
    """Raises `Wrong` when one of the first arguments of a call, which are tensors, is not what it was before it."""
    for position, value in enumerate(arguments):
        check(torch.equal(tensor(answer.after[position]), value))


def defaults_of(function: Callable) -> dict[str, Any]:
    """What each argument of a function of the solution's is when it is left out, where it may be."""
    parameters = inspect.signature(function).parameters.values()
    return {given.name: given.default for given in parameters if given.default is not inspect.Parameter.empty}


def close(got: Any, expected: Any, mask: Tensor | None = None, tolerance: float = 1e-4) -> bool:
    """Whether numbers or tensors agree within `tolerance`, absolute and relative, where the mask is 1."""
    got = torch.as_tensor(got).detach().double()
    expected = torch.as_tensor(expected).detach().double()
    if got.shape != expected.shape:
        return False
    if mask is not None:
        got, expected = got[mask.bool()], expected[mask.bool()]
    return torch.allclose(got, expected, rtol=tolerance, atol=tolerance)


def agree(
    got: Any, expected: Any, mask: Tensor | None = None, tolerance: float = 1e-4, message: str = ""
) -> None:
    """Raises `Wrong` when they are not `close`."""
    check(close(got, expected, mask, tolerance), message)
