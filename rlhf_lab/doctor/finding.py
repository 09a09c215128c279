"""One line of what the doctor says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something that was found out.

    Attributes:
        status: "ok", "warning" or "problem" (it may cost points).
        place: the file or exercise.
        sentence: what is so, and what to do.
        points, of: what an exercise has earned by the visible checks, and what it is worth.
    """

    status: str
    place: str
    sentence: str
    points: float = 0
    of: float = 0
