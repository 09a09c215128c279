"""Observations as plain JSON, and the first place where two of them differ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

NOTHING = 1e-6  # is shown as 0: rounding is not worth reading
DIGITS = 6  # significant digits that are kept; tolerances are wider


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: tensors as nested lists, numbers rounded, anything unknown as its type's name."""
    if isinstance(value, Tensor):
        return plain(value.detach().cpu().tolist())
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        value = int.__index__(value)  # a subclass may have any operators
        return value if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        value = float.__float__(value)
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [plain(entry) for entry in value]
    return f"a {type(value).__name__}"


@dataclass(frozen=True)
class Difference:
    """The first place where what came out is not what was expected."""

    place: str
    got: Any
    expected: Any

    def __str__(self) -> str:
        return f"{self.place} is {_short(self.got)}, expected {_short(self.expected)}"


def first_difference(got: Any, expected: Any, tolerance: float, place: str = "") -> Difference | None:
    """Compare two plain observations, entry by entry in the order of `expected`; None when they agree.

    Numbers agree within `tolerance`, absolute or relative; whole numbers and floats are not told apart.
    """
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in expected:
            inner = f"{place}.{key}" if place else key
            if key not in got:
                return Difference(inner, "missing", expected[key])
            if difference := first_difference(got[key], expected[key], tolerance, inner):
                return difference
        return None
    if isinstance(expected, list) and isinstance(got, list):
        if shape_of(got) != shape_of(expected):
            return Difference(f"the shape of {place}", shape_of(got), shape_of(expected))
        for index, (g, e) in enumerate(zip(got, expected, strict=True)):
            inner = f"{place[:-1]}, {index}]" if place.endswith("]") else f"{place}[{index}]"
            if difference := first_difference(g, e, tolerance, inner):
                return difference
        return None
    return None if _same(got, expected, tolerance) else Difference(place, got, expected)


def shape_of(value: list) -> list[int]:
    """Lengths of a nested list, as a tensor's shape; of a ragged one, as far down as the lengths agree."""
    shape = [len(value)]
    while value and all(isinstance(entry, list) and len(entry) == len(value[0]) for entry in value):
        value = [inner for entry in value for inner in entry]
        shape.append(len(value) // math.prod(shape))
    return shape


def _same(got: Any, expected: Any, tolerance: float) -> bool:
    numbers = (int, float)
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(got, numbers) and isinstance(expected, numbers):
        return abs(got - expected) <= tolerance * max(1.0, abs(expected))
    return got == expected


def _short(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float):
        return "0" if abs(value) < NOTHING else f"{value:.4g}"
    text = str(value) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 90 else text[:87] + "..."
