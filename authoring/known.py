"""Write what the checks know: run the solution and the bank through every case (see `rlhf_lab/checks/known.py`)."""

import json
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from rlhf_lab.checks.differences import first_difference
from rlhf_lab.checks.known import FOLDER
from rlhf_lab.checks.run import RAISES, Outcome, cases_of, observe_all
from rlhf_lab.course import Exercise, exercises
from rlhf_lab.student_code import fresh_code
from tests.bank import BANK, Entry, entries

from .paths import SOLUTIONS

Shown = dict[Entry | None, list[Outcome]]  # what an implementation showed in each case; None is the solution


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
    for name, shown in show_bank(names or exercises()).items():
        content = gather_known(exercises()[name], shown)
        text = json.dumps(content, indent=None, ensure_ascii=False, separators=(",", ":"))
        text = text.replace(
            '{"name"', '\n{"name"'
        )  # a mistake a line: a change of the bank is a readable diff
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(
            f"{name}: {len(content['accepted'])} cases, {len(content['mistakes'])} known mistakes", flush=True
        )


def gather_known(exercise: Exercise, shown: Shown) -> dict:
    """What `known/EXERCISE.json` has to hold, from what the solution and the bank showed.

    Raises:
        ValueError: when two cases have one title, or correct code is refused in a case or raises in it.
    """
    cases = cases_of(exercise)
    accepted = {case.title: [out.observed] for case, out in zip(cases, shown[None], strict=True)}
    if len(accepted) < len(cases):
        raise ValueError(f"{exercise.name}: two cases have the same title")
    mistakes = []
    for entry in sorted(shown.keys() - {None}, key=lambda entry: (not entry.correct, BANK.index(entry))):
        observed = {}
        for case, out in zip(cases, shown[entry]):
            if all(first_difference(out.observed, other, case.tolerance) for other in accepted[case.title]):
                observed[case.title] = out.observed
                if entry.correct and not entry.differs:
                    raise ValueError(f"{exercise.name}: {entry.says!r} is refused by the case {case.title!r}")
                if entry.correct:
                    accepted[case.title].append(out.observed)
        if not entry.correct:
            mistakes.append({"name": entry.says, "observed": observed})
    for title, alternatives in accepted.items():
        if raising := next((observed for observed in alternatives if RAISES in observed), None):
            raise ValueError(f"{exercise.name}, {title}: correct code raised {raising[RAISES]}")
    return {"accepted": accepted, "mistakes": mistakes}


def show_bank(names: Iterable[str]) -> dict[str, Shown]:
    """What the solution and the bank show in each of these exercises, from as many processes as there are cores."""
    jobs = [(name, at) for name in names for at in range(-1, len(entries(name)))]
    with ProcessPoolExecutor(
        initializer=_one_thread, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        outcomes = pool.map(_show, jobs, chunksize=8)
        shown: dict[str, Shown] = {}
        for (name, at), outcome in zip(jobs, outcomes, strict=True):
            shown.setdefault(name, {})[None if at < 0 else entries(name)[at]] = outcome
    return shown


def _show(job: tuple[str, int]) -> list[Outcome]:
    """The outcomes of one implementation: number `at` of an exercise's part of the bank; -1 is the solution."""
    name, at = job
    exercise = exercises()[name]
    with package_with(None if at < 0 else entries(name)[at], exercise) as folder, fresh_code(folder) as code:
        return observe_all(exercise, code, folder)


def _one_thread() -> None:
    """The models of the checks are too small for a second thread to help."""
    torch.set_num_threads(1)
