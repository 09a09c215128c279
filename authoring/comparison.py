"""A quantity computed in two ways, and whether the two are as near as they should be."""

from dataclasses import dataclass

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Comparison:
    """One quantity of ours beside that of another.

    Attributes:
        error: the largest difference; the module that compares says relative to what.
        convention: what had to be made equal first, or what differs on purpose; empty where nothing does.
        agrees: whether the two are meant to agree.
    """

    quantity: str
    error: float
    convention: str = ""
    agrees: bool = True

    @property
    def as_expected(self) -> bool:
        return (self.error <= TOLERANCE) == self.agrees
