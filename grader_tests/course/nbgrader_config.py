"""nbgrader's configuration of a course: how submissions are put together, scored without being run, and shown."""

import logging
import os
import re
import sys
from pathlib import Path

from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import AssignLatePenalties, SaveAutoGrades
from traitlets.config import Config

from rlhf_lab.errors import LabError
from rlhf_lab.settings import STUB_PACKAGE

from .intake import UNUSED, time_handed_in
from .paths import Course
from .plugins import DefuseHTML, OneSubmission, RestoreCells, ShowVerdict

# What neither nbgrader's exchange nor its copies need: what comes with the course or is made at work, and files that a
# browser would run as pages of the instructor's own server.
IGNORED = [
    ".ipynb_checkpoints", "*.pyc", "__pycache__", ".git", ".venv", "*.egg-info", "rlhf_lab", "runs",
    "*.htm*", "*.xht*", "*.mht*", "*.svg*", "*.xml", "*.xsl*",
]  # fmt: skip

# A file or folder as learning platforms call it: Moodle's "Full Name_12345_assignsubmission_file_...", Canvas's
# "lastfirst_123_456_..." and "lastfirst_LATE_123_456_...".
NAME = r"\w[\w .@'-]*?"
PLATFORM = r"(?:_\d+_assignsubmission_[a-z]+_|(?:_LATE)?_\d{3,}_\d{3,}_)"
# Of what nbgrader has unpacked: whose it is, and where in the submission it lies. Left out is what is the workbench's,
# and what editors and macOS put beside the files.
COLLECTED = (
    r".*?/downloaded/[^/]+/extracted/"
    rf"(?:[^/]+/(?={NAME}{PLATFORM}))?"  # the platform's archive of the whole class
    rf"(?P<student_id>{NAME})(?:{PLATFORM}(?:[^/]*/)?|/(?![^/]*{PLATFORM}))"
    rf"(?P<file_id>(?!(?:.*/)?(?:\.|(?:{'|'.join(map(re.escape, sorted(UNUSED)))})/)).+)"
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
    c.ZipCollectApp.collector_plugin = OneSubmission
    c.FileNameCollectorPlugin.named_regexp = COLLECTED
    c.FileNameCollectorPlugin.valid_ext = [".ipynb", ".py"]
    _read_times_patiently()


def _read_times_patiently() -> None:
    """Let nbgrader read each timestamp.txt as intake does.

    Formgrader reads those in submitted/ themselves, which are as students have handed them in. It has no setting for
    this, so two of nbgrader's methods are replaced in the process that reads this configuration.
    """

    def get_submitted_timestamp(self, assignment_id, student_id):
        return time_handed_in(
            self.coursedir.format_path(self.coursedir.submitted_directory, student_id, assignment_id)
        )

    NbGraderAPI.get_submitted_timestamp = get_submitted_timestamp
    CourseDirectory.get_existing_timestamp = lambda self, dest_path: time_handed_in(dest_path)


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
