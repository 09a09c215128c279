"""Release assignments: write nbgrader's source and release folders and the bundles for students, or refuse.

Everything is made and looked through in a folder of its own first. The course is touched when nothing is left to
refuse, so that a refusal has written and removed nothing.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from unittest import mock

import nbformat
from nbgrader.apps.api import NbGraderAPI
from traitlets.config import Config

from authoring.notebooks import instructor_notebook, student_notebook
from rlhf_lab.clinic import ANSWERS
from rlhf_lab.clinic.answers import read_answers
from rlhf_lab.doctor.cells import mark_of
from rlhf_lab.errors import LabError
from rlhf_lab.runs import replace_folder, write_bytes
from rlhf_lab.settings import STUB_PACKAGE

from .. import clinic
from ..verdict import ExerciseVerdict
from .bundle import bundle_files, write_bundle
from .drafts import Draft, choose
from .gradebook import cells_in_use
from .leaks import copies_of_hidden_tests, leaks
from .nbgrader_config import configure, search_path
from .paths import Assignment, Course

CONFIG = """\
# nbgrader's configuration of this course. It calls the grader's own, so that a mended grader reaches old courses too.
# What you set below the call is yours, and counts.
from pathlib import Path

from grader_tests.course.nbgrader_config import configure

configure(get_config(), Path(__file__).parent)
"""
CALL = "grader_tests.course.nbgrader_config"  # by which a configuration is known to be one of ours


class AnyExaminer(Protocol):
    """What release needs of an `Examiner`."""

    def examine(self, files: Mapping[str, bytes], names: Iterable[str]) -> dict[str, ExerciseVerdict]: ...


def release(
    course: Course, examiner: AnyExaminer, stages: Sequence[str] | None = None, whole: bool = False
) -> list[Assignment]:
    """Release assignments into a course's folder, which is made if it is not there; return them.

    An assignment that has been released before is released anew: texts and points may change.

    Args:
        stages: the assignments, as `choose` understands them; all four where it is None.
        whole: the whole course as the one assignment `rlhf` instead.

    Raises:
        LabError: when the solution does not get full marks or the blank assignment gets any, when students would get
            something hidden, when cells were added or removed and submissions are there, or when the folder is
            another course's. Nothing has been written or removed then.
    """
    drafts = choose(stages, whole)
    _check_folder(course)
    for draft in drafts:
        _check_cells(course, draft)
        _check_marks(draft, examiner)
    with tempfile.TemporaryDirectory() as folder:
        trial = Course(Path(folder))
        for draft in drafts:
            _check_leaks(draft, _write(trial, draft, in_gradebook=False), trial)
    if not course.config_file.exists():
        write_bytes(course.config_file, CONFIG.encode())
    for draft in drafts:
        files = _write(course, draft, in_gradebook=True)
        write_bundle(course.bundle(draft.name), files, draft.name)
        # the description comes last: it stands for an assignment that is there
        released = course.assignments if course.description.exists() else {}
        course.write_assignments({**released, draft.name: draft.assignment})
    return [draft.assignment for draft in drafts]


def _check_folder(course: Course) -> None:
    """Raise LabError when the folder belongs to something else."""
    if course.description.exists():
        course.assignments  # noqa: B018  a damaged one is said now
    if course.config_file.exists():
        if CALL not in course.config_file.read_text(encoding="utf-8", errors="replace"):
            raise LabError(
                f"{course.config_file} is not this grader's: choose a new folder, or let it call {CALL}.configure"
            )
    elif course.root.is_dir() and any(course.root.iterdir()):
        raise LabError(f"{course.root} is no course and not empty: choose a new folder")


def _check_cells(course: Course, draft: Draft) -> None:
    """Raise LabError when cells were added or removed since submissions came in: nbgrader cannot follow that."""
    before = cells_in_use(course, draft.name)
    if not before:
        return
    after = {
        (name, kind, cell.metadata["nbgrader"]["grade_id"])
        for name in draft.notebooks
        for cell in instructor_notebook(name).cells
        if "nbgrader" in cell.metadata
        for kind in ("source_cells", *_kinds(cell.metadata["nbgrader"]))
    }
    if changed := sorted({cell for *_, cell in before ^ after}):
        raise LabError(
            f"{draft.name} has submissions, and cells were added or removed ({', '.join(changed)}): "
            f"nbgrader cannot change an assignment in this way; release it into a new folder"
        )


def _kinds(mark: dict) -> list[str]:
    return ["grade_cells"] * mark["grade"] + ["solution_cells"] * mark["solution"]


def _check_marks(draft: Draft, examiner: AnyExaminer) -> None:
    """Raise LabError unless the solution gets full marks and the blank assignment none."""
    names = [name for name in draft.assignment.exercises if name != clinic.NAME]
    solved = examiner.examine(draft.solved_package, names)
    blank = examiner.examine(draft.package, names)
    if clinic.NAME in draft.assignment.exercises:
        solved[clinic.NAME] = _clinic(draft, instructor_notebook)
        blank[clinic.NAME] = _clinic(draft, student_notebook)
    for name, points in draft.assignment.exercises.items():
        if (solved[name].score, solved[name].max) != (points, points):
            raise LabError(
                f"{draft.name} is not released: the solution of {name} gets {solved[name].score:g} of {points:g} "
                f"points. {' '.join(solved[name].messages[:1])}".rstrip()
            )
        if blank[name].score != 0:
            raise LabError(
                f"{draft.name} is not released: {name} gets {blank[name].score:g} points when nothing is written"
            )


def _clinic(draft: Draft, notebook_of) -> ExerciseVerdict:
    cells = notebook_of(draft.assignment.notebook_of(clinic.NAME)).cells
    source = next(cell.source for cell in cells if mark_of(cell).get("grade_id") == ANSWERS)
    return clinic.clinic_verdict(read_answers(source)[0])


def _check_leaks(draft: Draft, bundle: Mapping[str, bytes], course: Course) -> None:
    """Raise LabError when students would get something hidden."""
    released = course.release(draft.name)
    names = {path.relative_to(released).as_posix() for path in released.rglob("*") if path.is_file()}
    workbench = {name: content for name, content in bundle.items() if name.startswith("rlhf_lab/")}
    rest = {name: content for name, content in bundle.items() if name not in workbench}
    if found := leaks(rest, draft.secret_lines) + copies_of_hidden_tests(bundle):
        raise LabError(f"{draft.name} is not released, it would give away what is hidden: {'; '.join(found)}")
    wanted = {f"{name}.ipynb" for name in draft.notebooks}
    wanted |= {f"{STUB_PACKAGE}/{name}" for name in draft.package}
    if names != wanted:
        raise LabError(
            f"{draft.name} is not released: nbgrader made {', '.join(sorted(names ^ wanted))} of it"
        )
    for name in draft.notebooks:
        notebook = nbformat.read(released / f"{name}.ipynb", as_version=4)
        if outputs := [cell.id for cell in notebook.cells if cell.get("outputs")]:
            raise LabError(f"{draft.name} is not released: there are outputs in {name}, cell {outputs[0]}")


def _write(course: Course, draft: Draft, in_gradebook: bool) -> dict[str, bytes]:
    """Write source and release folder, and the cells into the gradebook; return the files of the bundle.

    Raises:
        LabError: when nbgrader fails.
    """
    with replace_folder(course.source(draft.name)) as folder:
        for name, text in draft.source_notebooks.items():
            write_bytes(folder / f"{name}.ipynb", text.encode())
        for name, content in draft.package.items():
            write_bytes(folder / STUB_PACKAGE / name, content)
    _generate(course, draft.name, in_gradebook)
    return bundle_files(draft, course.release(draft.name))


def _generate(course: Course, name: str, in_gradebook: bool) -> None:
    """Let nbgrader make the release folder out of the source folder.

    Raises:
        LabError: when nbgrader fails.
    """
    config = Config()
    configure(config, course.root)
    config.SaveCells.enabled = in_gradebook
    config.GenerateAssignment.no_database = not in_gradebook
    with mock.patch.dict(os.environ, PATH=search_path()):  # nbgrader's own setenv would leave no PATH behind
        result = NbGraderAPI(config=config).generate_assignment(name, force=True, create=True)
    if not result["success"]:
        # the reason is the last line of a traceback in the log
        problems = re.findall(r"^ +(\w\S*: .+)$", result.get("log", ""), re.MULTILINE) or [
            "see nbgrader's log"
        ]
        raise LabError(f"nbgrader could not make {name}: {problems[-1]}")
