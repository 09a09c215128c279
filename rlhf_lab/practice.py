"""The practice of notebook 00: a small file with a mistake, to see what a check says before anything counts.

It is no exercise: it lies in `runs/practice`, gives no points, and can be begun again at any time.
"""

import linecache
import tempfile
from pathlib import Path

import torch

from .checks import display_report
from .checks.case import case, tensor
from .checks.known import Known, KnownMistake
from .checks.run import broken_report, judge, observe_all
from .course import Exercise
from .runs import write_bytes
from .settings import STUB_PACKAGE
from .student_code import BrokenFile, import_file, package_folder

TEXT = '''"""Practice for notebook 00. Nothing here counts: change what you like, save, and run the check again."""


def count_tokens(attention_mask):
    """Number of real tokens in each row of a mask [batch, seq]: 1 is a real token, 0 is padding.

    [[1, 1, 1, 0], [1, 1, 0, 0]]  ->  [3, 2]
    """
    return attention_mask.sum(dim=0)
'''
MISTAKE, REPAIR = "dim=0", "dim=1"

EXERCISE = Exercise(
    number="0",
    name="count_tokens",
    module="practice",
    notebook="00_welcome",
    difficulty=1,
    importance=1,
    minutes=2,
    points=0,
    needs=(),
    hints=(),
)
TWO_BY_TWO, RIGHT, LEFT = "two rows of two", "two rows of four", "padding on the left"
KNOWN = Known(
    accepted={TWO_BY_TWO: [{"counts": [2, 1]}], RIGHT: [{"counts": [3, 2]}], LEFT: [{"counts": [2, 4]}]},
    mistakes=[
        KnownMistake(
            "dim=0 goes down the columns: it counts, for each position, the rows that have a token there",
            {RIGHT: {"counts": [2, 2, 1, 0]}, LEFT: {"counts": [1, 1, 2, 2]}},
        )
    ],
)


def _count(code, mask: list[list[int]]) -> dict:
    return {"counts": tensor("count_tokens", code.count_tokens(torch.tensor(mask)))}


@case("count_tokens", TWO_BY_TWO, "[[1, 1], [1, 0]]")
def _two_by_two(code):
    return _count(code, [[1, 1], [1, 0]])


@case("count_tokens", RIGHT, "[[1, 1, 1, 0], [1, 1, 0, 0]]")
def _right(code):
    return _count(code, [[1, 1, 1, 0], [1, 1, 0, 0]])


@case("count_tokens", LEFT, "[[0, 0, 1, 1], [1, 1, 1, 1]]")
def _left(code):
    return _count(code, [[0, 0, 1, 1], [1, 1, 1, 1]])


def begin() -> None:
    """Write the practice file anew, with its mistake."""
    write_bytes(_file(), TEXT.encode())
    print(f"{_file().parent.name}/{_file().name} is written, with one mistake in it.")


def check() -> None:
    """Check the practice file as it is saved now."""
    if not _file().exists():
        begin()
    _show(_file())


def repaired() -> None:
    """Show what the check says of a repaired copy; the practice file stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "practice" / _file().name
        write_bytes(copy, TEXT.replace(MISTAKE, REPAIR).encode())
        _show(copy)


def _file() -> Path:
    return package_folder(STUB_PACKAGE).parent / "runs" / "practice" / EXERCISE.file


def _show(file: Path) -> None:
    linecache.checkcache()
    try:
        code = import_file("rlhf_practice", file)
        report = judge(EXERCISE, file, observe_all(EXERCISE, code, file.parent), KNOWN)
    except BrokenFile as broken:
        report = broken_report(EXERCISE, file, broken)
    display_report(report)
