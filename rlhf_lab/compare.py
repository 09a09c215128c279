"""A student's function and the solution side by side: the cases of the check, with other random numbers."""

from pathlib import Path

from .checks.case import Case, other_numbers
from .checks.differences import first_difference
from .checks.run import RAISES, Outcome, cases_of, observe_all
from .course import Exercise
from .errors import LabError
from .side_by_side import solutions_folder
from .student_code import BrokenFile, fresh_code

DRAWS = 5  # how many times the cases are tried


def compare(exercise: Exercise, folder: Path) -> str:
    """What the two did, a line for each case.

    A difference is not always a mistake: where the contract leaves something free, correct code may differ.

    Raises:
        LabError: when there are no solutions here, or the student's file cannot be imported.
    """
    reference = _outcomes(exercise, solutions_folder(folder))
    theirs = _outcomes(exercise, folder)
    if stubs := [outcome.stub for draw in theirs for outcome in draw if outcome.stub is not None]:
        return f"{exercise.number} {exercise.name}: {stubs[0]} is not written yet"
    lines = [
        f"{exercise.number} {exercise.name}: {folder.name}/{exercise.file} beside the solution, {DRAWS} draws"
    ]
    for at, case in enumerate(cases_of(exercise)):
        got, expected = ([draw[at] for draw in side] for side in (theirs, reference))
        lines.append(f"  {case.title:<44}  {_in_words(case, got, expected)}")
    return "\n".join(lines)


def _outcomes(exercise: Exercise, folder: Path) -> list[list[Outcome]]:
    """What the code in `folder` shows in each draw; imported anew for each, since cases keep what they have made."""
    outcomes = []
    for draw in range(1, DRAWS + 1):
        try:
            with other_numbers(draw), fresh_code(folder) as code:
                outcomes.append(observe_all(exercise, code, folder))
        except BrokenFile as broken:
            raise LabError(f"{broken.place}: {broken.problem}") from None
        if outcomes[-1][-1].stopped:
            raise KeyboardInterrupt
    return outcomes


def _in_words(case: Case, theirs: list[Outcome], reference: list[Outcome]) -> str:
    for draw, (got, expected) in enumerate(zip(theirs, reference, strict=True), 1):
        if RAISES in got.observed:
            return f"draw {draw}: {got.observed[RAISES]}" + (f" ({got.blame})" if got.blame else "")
        if difference := first_difference(got.observed, expected.observed, case.tolerance):
            return f"draw {draw}: {difference}"
    # some cases are about one example, whatever the draw
    one_example = all(outcome.observed == reference[0].observed for outcome in reference)
    return "the same" + (" (one example)" if one_example else "")
