"""nbgrader's configuration of a course: how submissions are put together, scored without being run, and shown."""

import logging
import os
import sys
from pathlib import Path

from nbgrader.preprocessors import AssignLatePenalties, SaveAutoGrades
from traitlets.config import Config

from rlhf_lab.errors import LabError
from rlhf_lab.settings import STUB_PACKAGE

from .paths import Course
from .plugins import DefuseHTML, RestoreCells, ShowVerdict

# What neither nbgrader's exchange nor its copies need: what comes with the course or is made at work, and files that a
# browser would run as pages of the instructor's own server.
IGNORED = [
    ".ipynb_checkpoints", "*.pyc", "__pycache__", ".git", ".venv", "*.egg-info", "rlhf_lab", "runs",
    "*.htm*", "*.xht*", "*.mht*", "*.svg*", "*.xml", "*.xsl*",
]  # fmt: skip

# Of what a learning platform packs, as extracted/STUDENT/.../ or extracted/STUDENT.zip: notebooks and the package,
# wherever they lie, but not what editors and macOS put beside them.
COLLECTED = (
    r"(?!.*/(?:\.|__MACOSX/|rlhf_lab/))"
    r".*/extracted/(?P<student_id>\w[\w.@-]*)/(?:.*/)?"
    rf"(?P<file_id>{STUB_PACKAGE}/.+|[^/]+\.ipynb)"
)


def search_path() -> str:
    """A PATH on which nbgrader finds alembic: to make a gradebook it calls that program, which lies beside this Python.

    Where there is no PATH, as under a bare service manager, the system's default stands in.
    """
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def configure(c: Config, root: Path) -> None:
    """Set what the course in `root` needs on nbgrader's configuration `c`."""
    course = Course(root)
    c.CourseDirectory.root = str(course.root)
    c.CourseDirectory.db_url = course.gradebook_url
    c.CourseDirectory.ignore = IGNORED
    c.Autograde.exclude_overwriting = _student_files(course)
    c.Autograde.pre_convert_hook = "grader_tests.course.plugins.refuse_unsafe"
    c.Autograde.sanitize_preprocessors = [RestoreCells, DefuseHTML]
    c.Autograde.autograde_preprocessors = [ShowVerdict, SaveAutoGrades, AssignLatePenalties]
    c.GenerateFeedback.exporter_class = "grader_tests.course.feedback.FeedbackExporter"
    c.GenerateFeedback.preprocessors = []
    c.CoursePreprocessor.course_root = str(course.root)
    c.HTMLExporter.sanitize_html = True
    c.FileNameCollectorPlugin.named_regexp = COLLECTED
    c.FileNameCollectorPlugin.valid_ext = [".ipynb", ".py"]


def _student_files(course: Course) -> dict[str, list[str]]:
    """By assignment the files that are the student's: nbgrader puts its own version in the place of all others.

    nbgrader understands exact paths only, no patterns. Where nothing has been released, or course.json cannot be read,
    there are none: nbgrader's commands then have no assignment to work on.
    """
    if not course.description.exists():
        return {}
    try:
        released = course.assignments
    except LabError as error:
        logging.getLogger(__name__).warning("%s", error)
        return {}
    return {
        name: [f"{STUB_PACKAGE}/{module}.py" for module in assignment.modules]
        for name, assignment in released.items()
    }
