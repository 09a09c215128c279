"""The doctor: what a student runs before handing in. It knows what was released and the visible checks, nothing hidden.

Each line it prints is a `Finding`: `ok`, a `warning` (something is not done yet, or grading puts it right), or a
`problem`, which may cost points. Whatever is wrong with a folder, it is a line and no traceback.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..course import find
from ..errors import LabError
from ..settings import STUB_PACKAGE
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
        yield _with_loss(finding, hand_in.exercises)
    if usable:
        for finding in try_out(hand_in.package, hand_in.exercises):
            yield _with_loss(finding, hand_in.exercises)
    else:
        yield Finding("warning", "checks", "not run: the package has to be readable first")


def _with_loss(finding: Finding, names: Sequence[str]) -> Finding:
    """The finding; where a file cannot be read or imported, or the package is not there, with the points that go.

    Args:
        names: of the exercises that are asked for.
    """
    file = finding.place.partition(",")[0]  # a line may follow
    points = sum(e.points for e in map(find, names) if file in (STUB_PACKAGE, f"{STUB_PACKAGE}/{e.file}"))
    if finding.status != "problem" or not points:
        return finding
    sentence = f"{finding.sentence} (as it is, all {points:g} points of its exercises are lost)"
    return replace(finding, sentence=sentence, lost=points)


def to_text(finding: Finding) -> str:
    return f"{finding.status:<8} {finding.place:<32} {finding.sentence}"


def closing(findings: Iterable[Finding]) -> str:
    """The sentence at the end: whether this can be handed in, and the points that the visible checks promise."""
    findings = list(findings)
    problems, warnings = (sum(f.status == status for f in findings) for status in ("problem", "warning"))
    if lost := sum(f.lost for f in findings):  # nothing was checked, so there is nothing to estimate
        return f"{_count(problems, 'problem')}: as it is, {lost:g} points are lost."
    if problems:
        verdict = f"{_count(problems, 'problem')} may cost points."
    elif warnings:
        verdict = f"It can be handed in; {_count(warnings, 'warning')} to read before."
    else:
        verdict = "Ready to hand in."
    graded = [f for f in findings if f.of]
    if not graded:
        return verdict
    passed = sum(f.points == f.of and not f.waits for f in graded)
    points, of = sum(f.points for f in graded), sum(f.of for f in graded)
    estimate = (
        f"{verdict} {passed} of {_count(len(graded), 'exercise')} pass: estimated {points:g} of {of:g} points, by the "
        f"visible checks only (grading tests more, and a wrong exercise may earn a part of its points)."
    )
    if waiting := sum(f.of for f in graded if f.waits):
        estimate += (
            f" {waiting:g} of these points are of exercises that wait for another one: grading puts right code in that one's "
            f"place."
        )
    return estimate


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
