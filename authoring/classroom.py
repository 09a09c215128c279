"""Classes whose marks are known: submissions made from the bank of implementations and from attacks."""

import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

from grader_tests.course.paths import Course
from rlhf_lab.course import exercises, select
from rlhf_lab.settings import STUB_PACKAGE
from tests.attacks import PACKAGE_ATTACKS, attacked_package
from tests.bank import Entry, entries

from .paths import SOLUTIONS

FULL, LOST, NONE = "full", "lost", "none"  # what an exercise is worth: all its points, not all of them, 0
ANSWER = "Because the advantage of a token is only known once its whole response has been scored."
SCRIPT = "document.title = 'owned'"
HOSTILE_MARKDOWN = f'<script>{SCRIPT}</script> <img src="x" onerror="{SCRIPT}"> [look](javascript:{SCRIPT})'


@dataclass(frozen=True)
class Pupil:
    """One student and what the examiner has to say.

    Attributes:
        name: of the folder in submitted/.
        says: what is special about the submission, in a sentence.
        modules: text of the modules that were written.
        marks: by exercise; those that are not named are worth `usual`.
        usual: FULL, or NONE.
        spoil: what else was done to the folder that is handed in.
    """

    name: str
    says: str
    modules: dict[str, str]
    marks: dict[str, str] = field(default_factory=dict)
    usual: str = FULL
    spoil: Callable[[Path], None] = lambda folder: None

    def mark(self, exercise: str) -> str:
        return self.marks.get(exercise, self.usual)


def hand_in(course: Course, assignment: str, pupils: Sequence[Pupil]) -> None:
    """Write their folders into submitted/."""
    for pupil in pupils:
        folder = course.submitted(assignment, pupil.name)
        shutil.copytree(course.release(assignment), folder)
        for module, text in pupil.modules.items():
            (folder / STUB_PACKAGE / f"{module}.py").write_text(text, encoding="utf-8")
        for path in folder.glob("*.ipynb"):
            _answer(path)
        pupil.spoil(folder)


def large_class(assignment: str, number: int) -> list[Pupil]:
    """As many students as wanted, each with another implementation of the bank, exercise after exercise in turn."""
    names = [exercise.name for exercise in select(assignment)]
    rows = [entries(name) for name in names]
    in_turn = [row[i] for i in range(max(map(len, rows))) for row in rows if i < len(row)]
    return [_from_bank(f"s{n:03d}", in_turn[n % len(in_turn)]) for n in range(number)]


def class_of_twelve(assignment: str = "03_ppo") -> list[Pupil]:
    """A small class with one of each kind, for `ppo.py`."""
    solution = _solution("ppo")
    blank_marks = {"usual": NONE, "modules": {}}
    wrong = {
        name: next(e for e in entries(name) if not e.correct)
        for name in ("compute_gae", "ppo_losses", "rollout")
    }
    correct = next(e for e in entries("masked_whiten") if e.correct)
    attack = next(a for a in PACKAGE_ATTACKS if a.name == "search_disk")
    return [
        Pupil("ada", "everything is right", {"ppo": solution}),
        Pupil("bob", "nothing was written", **blank_marks),
        *(
            _from_bank(name, entry)
            for name, entry in zip(("chen", "dora", "emil"), wrong.values(), strict=True)
        ),
        _from_bank("fatima", correct),
        Pupil("gus", "a syntax error", {"ppo": solution + "\ndef broken(:\n"}, usual=NONE),
        Pupil(
            "hana",
            "one function never comes back",
            {"ppo": solution + "\n\ndef masked_whiten(x, mask, eps=1e-8):\n    while True:\n        pass\n"},
            {"masked_whiten": NONE},
        ),
        Pupil(
            "ivan",
            "the notebook was renamed, its metadata is lost",
            {"ppo": solution},
            spoil=_rename_and_strip,
        ),
        Pupil("juno", "hostile outputs and answers in the notebook", {"ppo": solution}, spoil=_poison),
        Pupil(
            "kai",
            f"an attack: {attack.says}",
            {"ppo": attacked_package(attack)["ppo.py"].decode()},
            usual=NONE,
        ),
        Pupil("lea", "the file is a link to the solution", **blank_marks, spoil=_link_to_solution),
    ]


def _from_bank(name: str, entry: Entry) -> Pupil:
    module = exercises()[entry.exercise].module
    marks = {} if entry.correct else {entry.exercise: LOST}
    return Pupil(name, entry.says, {module: entry.source(module)}, marks)


def _solution(module: str) -> str:
    return (SOLUTIONS / f"{module}.py").read_text(encoding="utf-8")


def _answer(path: Path) -> None:
    """Type something into the cells that a person grades."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        mark = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "markdown" and mark.get("solution"):
            cell.source = ANSWER
    nbformat.write(notebook, path)


def _rename_and_strip(folder: Path) -> None:
    (path,) = folder.glob("*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("nbgrader", None)
    nbformat.write(notebook, folder / f"{path.stem} (1).ipynb")
    path.unlink()


def _poison(folder: Path) -> None:
    (path,) = folder.glob("*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        mark = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "markdown" and mark.get("solution"):
            cell.source += f"\n\n{HOSTILE_MARKDOWN}"
        if cell.cell_type == "code":
            html = {"text/html": f"<script>{SCRIPT}</script>", "text/plain": "a table"}
            cell.outputs = [nbformat.v4.new_output("display_data", data=html)]
            if mark.get("grade"):
                forged = {"text/plain": "8.0"}
                cell.outputs.insert(
                    0, nbformat.v4.new_output("execute_result", data=forged, execution_count=1)
                )
    notebook.cells.append(nbformat.v4.new_markdown_cell(HOSTILE_MARKDOWN))
    notebook.cells.append(nbformat.v4.new_raw_cell(HOSTILE_MARKDOWN))
    nbformat.write(notebook, path)


def _link_to_solution(folder: Path) -> None:
    path = folder / STUB_PACKAGE / "ppo.py"
    path.unlink()
    path.symlink_to(SOLUTIONS / "ppo.py")


def unexpected_marks(course: Course, assignment: str, pupils: Sequence[Pupil]) -> list[str]:
    """One line for each mark of the gradebook that is not what the class was made for."""
    from grader_tests.course.gradebook import read_marks

    lines = []
    for pupil in pupils:
        marks = read_marks(course, assignment, pupil.name)
        grades = marks.grades if marks else {}
        for exercise, points in course.assignment(assignment).exercises.items():
            score = grades[exercise].auto if exercise in grades else None
            expected = pupil.mark(exercise)
            as_expected = (
                score is not None
                and {
                    FULL: score == points,
                    LOST: score < points,
                    NONE: score == 0,
                }[expected]
            )
            if not as_expected:
                lines.append(
                    f"{pupil.name}: {exercise} is {score} of {points:g}, expected {expected} ({pupil.says})"
                )
    return lines


def describe(pupils: Sequence[Pupil]) -> str:
    """One line a student."""
    return "\n".join(f"   {pupil.name:7} {textwrap.shorten(pupil.says, 90)}" for pupil in pupils)
