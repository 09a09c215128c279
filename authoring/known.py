"""Write what the checks know: run the solution and the bank through every case (see `rlhf_lab/checks/known.py`)."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_lab.checks.case import Case
from rlhf_lab.checks.compare import first_difference
from rlhf_lab.checks.known import FOLDER
from rlhf_lab.checks.run import RAISES, cases_of, observe
from rlhf_lab.course import Exercise, exercises
from rlhf_lab.student_code import fresh_code
from tests.bank import Entry, entries

from .paths import SOLUTIONS


@contextmanager
def package_with(entry: Entry | None, exercise: Exercise) -> Iterator[Path]:
    """A folder that holds the solutions as `rlhf_exercises`, with one implementation of the bank in them."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "rlhf_exercises"
        shutil.copytree(SOLUTIONS, folder, ignore=shutil.ignore_patterns("__pycache__", "notebooks"))
        if entry is not None:
            (folder / exercise.file).write_text(entry.source(exercise.module), encoding="utf-8")
        yield folder


def write_known(names: list[str]) -> None:
    """Write `known/EXERCISE.json` for these exercises, or for all."""
    for name in names or exercises():
        content = gather_known(exercises()[name])
        text = json.dumps(content, indent=None, ensure_ascii=False, separators=(",", ":"))
        text = text.replace('{"name"', '\n{"name"')  # one mistake a line: a change of the bank is a readable diff
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {len(content['accepted'])} cases, {len(content['mistakes'])} known mistakes", flush=True)


def gather_known(exercise: Exercise) -> dict:
    """What `known/EXERCISE.json` has to hold.

    Raises:
        ValueError: when the solution or other correct code raises in a case.
    """
    cases = cases_of(exercise)
    accepted = {case.title: [shown] for case, shown in zip(cases, _shown(None, exercise, cases), strict=True)}
    if len(accepted) < len(cases):
        raise ValueError(f"{exercise.name}: two cases have the same title")
    mistakes = []
    for entry in sorted(entries(exercise.name), key=lambda entry: not entry.correct):  # correct ones first
        observed = {}
        for case, shown in zip(cases, _shown(entry, exercise, cases), strict=True):
            if all(first_difference(shown, other, case.tolerance) for other in accepted[case.title]):
                observed[case.title] = shown
                if entry.correct:
                    accepted[case.title].append(shown)
        if not entry.correct:
            mistakes.append({"name": entry.says, "observed": observed})
    for title, alternatives in accepted.items():
        if raising := next((shown for shown in alternatives if RAISES in shown), None):
            raise ValueError(f"{exercise.name}, {title}: correct code raised {raising[RAISES]}")
    return {"accepted": accepted, "mistakes": mistakes}


def _shown(entry: Entry | None, exercise: Exercise, cases: list[Case]) -> list[dict]:
    with package_with(entry, exercise) as folder, fresh_code(folder) as code:
        return [observe(case, code, folder).observed for case in cases]
