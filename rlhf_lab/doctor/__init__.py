"""The doctor: what a student runs before handing in. It knows what was released and the visible checks, nothing hidden.

Each line it prints is a `Finding`: `ok`, a `warning` (something is not done yet, or grading puts it right), or a
`problem`, which may cost points. Whatever is wrong with a folder, it is a line and no traceback.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import LabError
from .finding import Finding
from .handin import find_hand_in
from .notebook import examine_notebook
from .package import examine_package
from .trial import try_out

__all__ = ["Finding", "closing", "examine", "to_text"]


def examine(folder: Path) -> Iterator[Finding]:
    """Everything there is to say about a folder, as it is found out.

    Args:
        folder: of an assignment (a notebook beside rlhf_exercises/), or of the course (notebooks/ and
            rlhf_exercises/).

    Raises:
        LabError: when there is no such folder.
    """
    if not folder.is_dir():
        what = "is a file: unpack it, and name the folder" if folder.exists() else "does not exist"
        raise LabError(f"{folder} {what}")
    hand_in, findings = find_hand_in(folder)
    yield from findings
    for name, path in hand_in.notebooks.items():
        yield from examine_notebook(name, path)
    usable = True
    for finding in examine_package(hand_in.package):
        usable = usable and finding.status != "problem"
        yield finding
    if usable:
        yield from try_out(hand_in.package, hand_in.exercises)
    else:
        yield Finding("warning", "checks", "not run: the package has to be readable first")


def to_text(finding: Finding) -> str:
    return f"{finding.status:<8} {finding.place:<32} {finding.sentence}"


def closing(findings: Iterable[Finding]) -> str:
    """The sentence at the end: whether this can be handed in, and the points that the visible checks promise."""
    findings = list(findings)
    problems, warnings = (sum(f.status == status for f in findings) for status in ("problem", "warning"))
    if problems:
        verdict = f"{_count(problems, 'problem')} may cost points."
    elif warnings:
        verdict = f"It can be handed in; {_count(warnings, 'warning')} to read before."
    else:
        verdict = "Ready to hand in."
    graded = [f for f in findings if f.of]
    if not graded:
        return verdict
    passed = sum(f.points == f.of for f in graded)
    points, of = sum(f.points for f in graded), sum(f.of for f in graded)
    return (
        f"{verdict} {passed} of {_count(len(graded), 'exercise')} pass: estimated {points:g} of {of:g} points, by the "
        f"visible checks only (grading tests more)."
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
