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
        waits: whether its check says nothing before another exercise is right. Such an exercise is written and is
            graded apart from the other one, so `points` has all that it is worth.
        lost: points of a file's exercises, which are lost as long as this is so.
    """

    status: str
    place: str
    sentence: str
    points: float = 0
    of: float = 0
    waits: bool = False
    lost: float = 0
