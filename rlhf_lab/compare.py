"""A student's function and the solution on the same random inputs: the cases of the check, with other numbers."""

from pathlib import Path

from .checks.case import Case, other_numbers
from .checks.compare import first_difference
from .checks.run import RAISES, Outcome, cases_of, observe
from .course import Exercise
from .errors import LabError
from .side_by_side import solutions_folder
from .student_code import BrokenFile, fresh_code

DRAWS = 10  # how many times each case is tried


def compare(exercise: Exercise, folder: Path) -> str:
    """What the two did, a line for each experiment.

    A difference is not always a mistake: where the contract leaves something free, correct code may differ.

    Raises:
        LabError: when there are no solutions here, or the student's file cannot be imported.
    """
    reference = _outcomes(exercise, solutions_folder(folder))
    theirs = _outcomes(exercise, folder)
    stubs = [outcome.stub for outcomes in theirs.values() for outcome in outcomes if outcome.stub is not None]
    if stubs:
        return f"{exercise.number} {exercise.name}: {stubs[0]} is not written yet"
    lines = [
        f"{exercise.number} {exercise.name}: {folder.name}/{exercise.file} beside the solution, {DRAWS} draws"
    ]
    for case in cases_of(exercise):
        lines.append(f"  {case.title:<44}  {_in_words(case, theirs[case.title], reference[case.title])}")
    return "\n".join(lines)


def _outcomes(exercise: Exercise, folder: Path) -> dict[str, list[Outcome]]:
    """Of each case, what the code in `folder` shows in every draw."""
    try:
        with fresh_code(folder) as code:
            return {case.title: [_observe(case, code, folder, draw) for draw in range(1, DRAWS + 1)]
                    for case in cases_of(exercise)}  # fmt: skip
    except BrokenFile as broken:
        raise LabError(f"{broken.place}: {broken.problem}") from None


def _observe(case: Case, code, folder: Path, draw: int) -> Outcome:
    with other_numbers(draw):
        return observe(case, code, folder)


def _in_words(case: Case, theirs: list[Outcome], reference: list[Outcome]) -> str:
    for draw, (got, expected) in enumerate(zip(theirs, reference, strict=True), 1):
        if RAISES in got.observed:
            return f"draw {draw}: {got.observed[RAISES]}" + (f" ({got.blame})" if got.blame else "")
        if difference := first_difference(got.observed, expected.observed, case.tolerance):
            return f"draw {draw}: {difference}"
    return "the same"
