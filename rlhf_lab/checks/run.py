"""Run the check of an exercise on the code in a folder."""

import contextlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..course import Exercise, find
from ..student_code import Blame, BrokenFile, describe, find_blame, fresh_code, stub_of
from ..taught_code import TaughtCode
from .case import Case, Observation, WrongReturn, seed
from .differences import Difference, first_difference, plain
from .known import Known, load_known

PRINTED = 1000  # characters of what a student's code printed that a report shows
RAISES = "raises"  # the key of an observation that is an exception


@dataclass(frozen=True)
class Outcome:
    """What a case showed.

    Attributes:
        observed: the observation, plain; `{"raises": text}` where there was an exception.
        crashed: whether that was an exception of the student's code, and not a return value of the wrong kind.
        blame: the student's line that the exception came through.
        stub: name of the function whose stub was met.
        printed: what the student's code printed meanwhile.
        stopped: whether the run was interrupted (Ctrl-C, or Jupyter's stop button).
    """

    observed: Observation
    crashed: bool = False
    blame: Blame | None = None
    stub: str | None = None
    stopped: bool = False
    printed: str = ""


@dataclass(frozen=True)
class Line:
    """One line of a report: `ok`, `FAIL`, or `--` where it was not looked at; `notes` stand under it."""

    status: str
    title: str
    detail: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The answer to `check(EXERCISE)`.

    Attributes:
        state: "passed", "failed", "not written", "waits" (for another exercise), "broken" (the file does not
            import) or "stopped" (by the person).
        lines: one a case.
        closing: one sentence: what to do next.
        mistake: the mistake that was recognised, in a sentence, or None.
    """

    exercise: Exercise
    state: str
    file: Path
    lines: tuple[Line, ...] = ()
    closing: str = ""
    mistake: str | None = None

    @property
    def passed(self) -> bool:
        return self.state == "passed"


def check(name: str, folder: Path) -> Report:
    """Check one exercise of the package in `folder`, as it is saved there now.

    Raises:
        LabError: when there is no exercise of this name.
    """
    exercise, file = find(name), folder / find(name).file
    try:
        with fresh_code(folder) as code:
            return check_code(exercise, code, file)
    except BrokenFile as broken:
        return broken_report(exercise, file, broken)


def broken_report(exercise: Exercise, file: Path, broken: BrokenFile) -> Report:
    """The report of a file that cannot be imported."""
    closing = f"The file cannot be read as Python yet. {broken.place}: {broken.problem}"
    return Report(exercise, "broken", file, closing=closing)


def check_code(exercise: Exercise, code: TaughtCode, file: Path) -> Report:
    """Check one exercise of code that is imported already."""
    outcomes = observe_all(exercise, code, file.parent)
    return judge(
        exercise, file, outcomes, load_known(exercise.name), lambda: _first_unready(exercise, code, file)
    )


def observe_all(exercise: Exercise, code: TaughtCode, folder: Path) -> list[Outcome]:
    """Run the cases of an exercise, up to the first stub or interruption."""
    outcomes = []
    for case in cases_of(exercise):
        outcomes.append(observe(case, code, folder))
        if outcomes[-1].stub is not None or outcomes[-1].stopped:
            break
    return outcomes


def judge(
    exercise: Exercise,
    file: Path,
    outcomes: list[Outcome],
    known: Known,
    find_unready: Callable[[], Exercise | None] = lambda: None,
) -> Report:
    """Say what the outcomes mean.

    Args:
        find_unready: looks, where a case failed, for an exercise that this one calls and that is not right yet.
    """
    cases = cases_of(exercise)
    failed = next(
        (i for i, (case, out) in enumerate(zip(cases, outcomes)) if _failure(known, case, out)), None
    )
    if failed is None:
        lines = tuple(Line("ok", case.title, case.tried) for case in cases)
        return Report(exercise, "passed", file, lines, f"{len(cases)} of {len(cases)}. Done.")

    outcome = outcomes[failed]
    if outcome.stub is not None:
        return _not_written(exercise, file, cases, failed, outcome.stub)
    if outcome.stopped:
        lines = _lines(known, cases, outcomes, failed, None)
        return Report(
            exercise, "stopped", file, lines, "Stopped before it was finished: this says nothing yet."
        )
    if unready := find_unready():
        closing = f"Waits for {unready.number} {unready.name}, which it calls and which is not right yet."
        return Report(exercise, "waits", file, _lines(known, cases, outcomes, failed, None), closing)
    mistake = _name(known, cases, outcomes, failed)
    closing = f"{failed} of {len(cases)}."
    return Report(exercise, "failed", file, _lines(known, cases, outcomes, failed, mistake), closing, mistake)


def cases_of(exercise: Exercise) -> list[Case]:
    # each module declares its cases when it is imported
    from . import dpo, grpo, ppo, ppo_loop, reward_model, sft, toy, trainer  # noqa: F401
    from .case import CASES

    return CASES[exercise.name]


def observe(case: Case, code: TaughtCode, folder: Path) -> Outcome:
    """Run one case. Whatever the student's code does, it comes back as an outcome; what it prints, too."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        outcome = _observe(case, code, folder)
    return replace(outcome, printed=printed.getvalue())


def _observe(case: Case, code: TaughtCode, folder: Path) -> Outcome:
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbgrader gives no point to a cell that says anything on stderr
            torch.manual_seed(seed())
            return Outcome(plain(case.observe(code)))
    except WrongReturn as wrong:
        return Outcome({RAISES: str(wrong)})
    except KeyboardInterrupt as interrupt:
        return Outcome({RAISES: "stopped"}, True, find_blame(interrupt, folder), stopped=True)
    except BaseException as error:  # GeneratorExit, SystemExit and what the student derives from them
        return Outcome({RAISES: describe(error)}, True, find_blame(error, folder), stub_of(error))


def _failure(known: Known, case: Case, outcome: Outcome) -> Difference | None:
    """Where an outcome differs from correct code; from the solution, where it differs from all."""
    differences = [
        first_difference(outcome.observed, accepted, case.tolerance)
        if RAISES not in outcome.observed
        else Difference(RAISES, outcome.observed[RAISES], None)
        for accepted in known.accepted[case.title]
    ]
    return differences[0] if all(differences) else None


def _name(known: Known, cases: list[Case], outcomes: list[Outcome], failed: int) -> str | None:
    """The mistake behind a failure: one of the bank that shows the same in every case, else what the failing case
    stands for, else one of the bank that shows the same in the failing case."""
    if (mistake := recognise(known, cases, outcomes)) is not None:
        return mistake
    here = [
        mistake
        for mistake in known.mistakes
        if cases[failed].title in mistake.observed
        and known.matches(mistake, cases[failed], outcomes[failed].observed)
    ]
    if cases[failed].mistake and not outcomes[failed].crashed:  # a crash can have any cause, a typo for one
        return cases[failed].mistake
    return here[0].name if here else None


def recognise(known: Known, cases: list[Case], outcomes: list[Outcome]) -> str | None:
    """The sentence about the one of the bank's mistakes that shows the same in every case, or None."""
    for mistake in known.mistakes:
        if all(known.matches(mistake, case, out.observed) for case, out in zip(cases, outcomes, strict=True)):
            return mistake.name
    return None


def _first_unready(exercise: Exercise, code: TaughtCode, file: Path) -> Exercise | None:
    """The first exercise that this one calls and that does not pass its own check."""
    for name in exercise.needs:
        needed = find(name)
        report = check_code(needed, code, file.with_name(needed.file))
        if not report.passed:
            return _first_unready(needed, code, file) or needed
    return None


def _not_written(exercise: Exercise, file: Path, cases: list[Case], at: int, stub: str) -> Report:
    lines = tuple(Line("ok", case.title, case.tried) for case in cases[:at])
    if stub.split(".")[0] == exercise.name:
        closing = (
            f"Not done yet: write {stub} in {file.parent.name}/{file.name}. {len(cases)} cases wait for it."
        )
        return Report(exercise, "not written", file, lines, closing)
    closing = f"Waits for {stub}, which it calls and which is not written yet."
    return Report(exercise, "waits", file, lines, closing)


def _lines(
    known: Known, cases: list[Case], outcomes: list[Outcome], failed: int, mistake: str | None
) -> tuple[Line, ...]:
    lines = [Line("ok", case.title, case.tried) for case in cases[:failed]]
    case, outcome = cases[failed], outcomes[failed]
    notes = [f"tried: {case.tried}"]
    if RAISES in outcome.observed:
        detail = str(outcome.observed[RAISES])
        if outcome.stopped:
            detail = "stopped before it had finished"
        elif outcome.blame is not None:
            detail = f"your code raised {detail}"
        if outcome.blame is not None:
            notes.append(str(outcome.blame))
    else:
        detail = str(_failure(known, case, outcome))
    if outcome.printed.strip():
        shown = outcome.printed.strip()
        notes.append(f"printed: {shown if len(shown) <= PRINTED else shown[:PRINTED] + ' ...'}")
    if mistake is not None:
        notes.append(f"-> {mistake}")
    lines.append(Line("FAIL", case.title, detail, tuple(notes)))
    if later := len(cases) - failed - 1:
        title = f"{later} more case{'s' if later > 1 else ''}"
        lines.append(Line("--", title, "not looked at until the line above is right"))
    return tuple(lines)
