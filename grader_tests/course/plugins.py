"""What nbgrader does to a submission, in its own terms: three preprocessors, a hook and a collector.

`nbgrader_config` sets them.

`nbgrader autograde` and the formgrader's button then put the notebook together on the released one, make it harmless to
look at, and write the examiner's verdict where the output of a test would stand. No kernel is started: what the
student's notebook does when it runs plays no part in the marks.
"""

import math
import os
from pathlib import Path, PurePosixPath

import nbformat
from nbformat import NotebookNode
from nbgrader.plugins import FileNameCollectorPlugin
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution
from traitlets import Unicode

from rlhf_lab.errors import LabError

from ..verdict import ExerciseVerdict, SubmissionVerdict
from .cells import restore
from .defuse import as_typed, defuse
from .intake import STUDENT, package_above, take_in
from .paths import Course


class CoursePreprocessor(NbGraderPreprocessor):
    """A preprocessor that knows its course and the submission that it works on."""

    course_root = Unicode(help="folder of the course").tag(config=True)

    @property
    def course(self) -> Course:
        return Course(self.course_root)

    def released(self, resources: dict) -> NotebookNode:
        """The released version of the notebook that is being graded."""
        which = resources["nbgrader"]
        path = self.course.release(which["assignment"]) / f"{which['notebook']}.ipynb"
        return nbformat.read(path, as_version=4)


class RestoreCells(CoursePreprocessor):
    """Put the submitted notebook together on the released one."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        restored, remarks = restore(nb, self.released(resources))
        for remark in remarks:
            self.log.warning("%s", remark)
        return restored, resources


class DefuseHTML(CoursePreprocessor):
    """Let nothing that the student wrote or displayed become live on the pages of formgrader and feedback."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        defuse(nb.cells, self.released(resources).cells)
        return nb, resources


class ShowVerdict(CoursePreprocessor):
    """Write the examiner's verdict as the output of each cell that is scored by it."""

    submission = Unicode(
        help="fingerprint of what is being graded, where the caller has taken it in; otherwise it is taken in here"
    ).tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Raises LabError when there is no verdict, or it is none on this assignment as it is now."""
        verdict = self._verdict(resources["nbgrader"]["assignment"], resources["nbgrader"]["student"])
        for cell in nb.cells:
            if is_grade(cell) and not is_solution(cell):
                mark = cell.metadata["nbgrader"]
                exercise = verdict.exercises.get(mark["grade_id"])
                if exercise is None or exercise.max != mark["points"]:
                    raise LabError(
                        _again(verdict.student, "its verdict is on another version of the assignment")
                    )
                cell.outputs = verdict_outputs(exercise)
        if verdict.remarks:
            lines = "\n".join(f"- {remark}" for remark in verdict.remarks)
            cell = nbformat.v4.new_markdown_cell(
                f"**Remarks of the examiner**\n\n{as_typed(lines)}", id="remarks"
            )
            nb.cells.insert(0, cell)
        return nb, resources

    def _verdict(self, assignment: str, student: str) -> SubmissionVerdict:
        verdict = self.course.read_verdict(assignment, student)
        if verdict is None:
            raise LabError(_again(student, "there is no verdict yet"))
        submission = self.submission or take_in(self.course, assignment, student).fingerprint
        if submission != verdict.submission:
            raise LabError(_again(student, "what lies in submitted/ is not what the verdict is about"))
        return verdict


def _again(student: str, problem: str) -> str:
    return f"{student}: {problem}; run python -m grader_tests grade"


def verdict_outputs(verdict: ExerciseVerdict) -> list[NotebookNode]:
    """The outputs of a grade cell: why, and the score, which nbgrader reads from the text of the result."""
    score = min(verdict.max, max(0.0, verdict.score)) if math.isfinite(verdict.score) else 0.0
    text = "".join(f"{message}\n" for message in (f"{score:g} of {verdict.max:g} points", *verdict.messages))
    return [
        nbformat.v4.new_output("stream", name="stdout", text=text),
        nbformat.v4.new_output("execute_result", data={"text/plain": repr(float(score))}),
    ]


def refuse_unsafe(notebooks: list[str], **_) -> None:
    """nbgrader's hook in front of a submission: stop when there is a link or a device in it, or markup in its name.

    nbgrader follows links and copies what they lead to, and writes names into its pages as they are.
    `python -m grader_tests grade` gives it clean copies, so this is for its own commands. An ordinary exception would
    be logged and passed over; this one ends the grading.
    """
    for folder in {Path(notebook).parent for notebook in notebooks}:
        if not STUDENT.fullmatch(folder.parent.name):
            raise SystemExit(f"{folder.parent.name!a} is no name for a student: rename the folder")
        for path in (folder, folder.parent, *folder.rglob("*")):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                name = ascii(os.path.relpath(path, folder.parent.parent))
                raise SystemExit(
                    f"{name} is a link or a device: run python -m grader_tests grade, which takes it in safely"
                )


class OneSubmission(FileNameCollectorPlugin):
    """Collects for `nbgrader zip_collect` what the configured pattern finds, but no folder with several submissions.

    An archive of several students' folders under a name of its own would become one student, who is called like it.
    """

    def __init__(self, **settings):
        super().__init__(**settings)
        self._known: dict[str, bool] = {}  # by folder

    def collect(self, submitted_file: str) -> dict | None:
        found = super().collect(submitted_file)
        if found is None or self._is_one(submitted_file.removesuffix(found["file_id"])):
            return found
        return None

    def _is_one(self, top: str) -> bool:
        """Whether what lies below `top` is one submission: each package in it lies where the topmost does, or deeper."""
        if top not in self._known:
            packages = {
                package
                for path in Path(top).rglob("*.py")
                if (found := super(OneSubmission, self).collect(str(path)))
                and str(path).removesuffix(found["file_id"]) == top
                and (package := package_above(PurePosixPath(path))) is not None
            }
            parents = sorted({package.parent for package in packages}, key=lambda place: len(place.parts))
            self._known[top] = all(place.is_relative_to(parents[0]) for place in parents)
            if not self._known[top]:
                self.log.warning(
                    "%s holds several submissions, and does not say whose: give each a folder or zip with the "
                    "student's name in downloaded/ASSIGNMENT/archive/",
                    top,
                )
        return self._known[top]
