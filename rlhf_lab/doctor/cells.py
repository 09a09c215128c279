"""What can have happened to a marked cell since it was released: one rule, for the doctor and for grading."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MISSING = "missing"
TWICE = "twice"  # or more often
TYPE = "type"
MARKS = "marks"
TEXT = "text"  # of a cell that the student does not write
COUNT = ("grade", "solution", "locked", "points")  # of nbgrader's marks, those that grading goes by


def mark_of(cell) -> dict[str, Any]:
    """What nbgrader knows of a notebook's cell; empty where there is nothing usable."""
    mark = cell.metadata.get("nbgrader")
    return mark if isinstance(mark, dict) and isinstance(mark.get("grade_id"), str) else {}


def is_same_text(text: str, other: str) -> bool:
    return text.strip() == other.strip()


def oddities(released: Mapping[str, Any], found: Sequence) -> Iterator[str]:
    """Whatever differs from a released cell; lost marks are none of it, since such a cell was found all the same.

    Args:
        released: nbgrader's marks of the cell, with its `cell_type` and `source`.
        found: the cells of the student's notebook that are this one, or copies and pieces of it.
    """
    if not found:
        yield MISSING
        return
    if len(found) > 1:
        yield TWICE
    if any(cell.cell_type != released["cell_type"] for cell in found):
        yield TYPE
    marks = [mark for cell in found if (mark := mark_of(cell))]
    if any(mark.get(key) != released.get(key) for mark in marks for key in COUNT):
        yield MARKS
    if not released["solution"] and any(not is_same_text(cell.source, released["source"]) for cell in found):
        yield TEXT
