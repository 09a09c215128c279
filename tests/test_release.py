"""Releasing: what students get, what they do not get, and when it is refused."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from traitlets.config import Config

from grader_tests.course import release as releasing
from grader_tests.course.bundle import write_bundle
from grader_tests.course.drafts import Draft, choose, stage_names
from grader_tests.course.leaks import leaks
from grader_tests.course.nbgrader_config import configure
from grader_tests.course.paths import Course
from grader_tests.course.release import release
from rlhf_lab.course import exercises
from rlhf_lab.errors import LabError
from rlhf_lab.settings import MODULES
from tests.small_course import FakeExaminer

STAGE = "03_ppo"


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Course:
    root = tmp_path_factory.mktemp("class") / "course"
    release(Course(root), FakeExaminer(), [STAGE])
    return Course(root)


def contents(root: Path) -> dict[str, str]:
    """Hash of every file; not of the database, which nbgrader only opens."""
    paths = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def submit(course: Course) -> None:
    with Gradebook(course.gradebook_url) as gradebook:
        gradebook.update_or_create_student("alice")
        gradebook.update_or_create_submission(STAGE, "alice")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 1, "assignments": []}',
        '{"format": 1, "assignments": {"a": {}}}',
    ],
)
def test_a_damaged_description_is_one_sentence_and_no_trouble_to_nbgrader(tmp_path, content, caplog):
    course = Course(tmp_path)
    course.description.write_text(content)
    with pytest.raises(LabError, match="changed or damaged"):
        _ = course.assignments
    config = Config()
    configure(config, tmp_path)
    assert config.Autograde.exclude_overwriting == {} and "changed or damaged" in caplog.text


# --- assignments --------------------------------------------------------------------------------------


def test_every_exercise_is_asked_for_once_in_one_stage_and_in_the_whole():
    points = {name: exercise.points for name, exercise in exercises().items()} | {"clinic": 5}
    stages = [draft.assignment for draft in choose(None, whole=False)]
    assert (
        [stage.name for stage in stages]
        == stage_names()
        == list(dict.fromkeys(s.notebooks[0] for s in stages))
    )
    assert {name: p for stage in stages for name, p in stage.exercises.items()} == points
    (whole,) = (draft.assignment for draft in choose(None, whole=True))
    assert whole.exercises == points
    assert whole.questions == {name: p for stage in stages for name, p in stage.questions.items()}
    with pytest.raises(LabError, match="no stage 09_dpo: there are 01_sft"):
        choose(["09_dpo"], whole=False)


@pytest.mark.parametrize(
    "draft", choose(None, whole=False) + choose(None, whole=True), ids=lambda draft: draft.name
)
def test_earlier_exercises_come_solved_and_own_and_later_ones_blank(draft: Draft):
    blank = draft.own | draft.later
    for name, exercise in exercises().items():
        text = draft.package[exercise.file].decode()
        assert (f"write {name}" in text) == (name in blank)
        assert (f"write {name}" in draft.solved_package[exercise.file].decode()) == (name in draft.later)
    assert not any(b"### BEGIN" in text or b"### END" in text for text in draft.solved_package.values())


@pytest.mark.parametrize(
    "draft", choose(None, whole=False) + choose(None, whole=True), ids=lambda draft: draft.name
)
def test_links_lead_to_what_is_in_the_assignment(draft: Draft):
    there = {f"{name}.ipynb" for name in (*draft.notebooks, "00_welcome")}
    there |= {f"rlhf_exercises/{name}" for name in draft.package} | {"runs/practice/practice.py"}
    boxes = set()
    for text in (*draft.source_notebooks.values(), draft.welcome):
        for cell in nbformat.reads(text, as_version=4).cells:
            for label, target in re.findall(
                r"\[([^\]]*)\]\(([^)]+)\)", cell.source if cell.cell_type == "markdown" else ""
            ):
                assert target.split("#")[0] in there, (label, target)
            for file, line, name in re.findall(r"\]\(rlhf_exercises/(.*)#line=(\d+)\), `(\w+)`", cell.source):
                lines = draft.package[file].decode().splitlines()
                assert "raise NotImplementedError(" in lines[int(line)]
                assert re.search(rf"write {name}(\.\w+)? in", lines[int(line) + 1])
                boxes.add(name)
    assert boxes == draft.own


# --- what is written ----------------------------------------------------------------------------------


def test_source_release_and_gradebook_agree(course):
    assignment = course.assignment(STAGE)
    for folder in (course.source(STAGE), course.release(STAGE)):
        names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        modules = ("__init__", *MODULES)
        assert names == {"03_ppo.ipynb", *(f"rlhf_exercises/{name}.py" for name in modules)}
    with Gradebook(course.gradebook_url) as gradebook:
        cells = {c.name: c.max_score for c in gradebook.find_assignment(STAGE).notebooks[0].grade_cells}
    assert cells == {**assignment.exercises, **assignment.questions}
    assert assignment.modules == ("ppo",)
    assert assignment.notebook_of("compute_gae") == "03_ppo"


def test_the_bundle_has_everything_to_work_with_and_nothing_hidden(course):
    archive = zipfile.ZipFile(course.bundle(STAGE))
    names = {name.removeprefix(f"{STAGE}/") for name in archive.namelist()}
    assert {n.split("/")[0] for n in names} == {
        "00_welcome.ipynb", "03_ppo.ipynb", "LICENSE", "Makefile", "README.md", "constraints.txt", "environment.yml",
        "pyproject.toml", "rlhf_exercises", "rlhf_lab",
    }  # fmt: skip
    assert not [name for name in names if "__pycache__" in name]
    for name in ("pyproject.toml", "README.md", "03_ppo.ipynb", "00_welcome.ipynb", "Makefile"):
        text = archive.read(f"{STAGE}/{name}").decode()
        assert not re.search("grader_tests|BEGIN SOLUTION|HIDDEN", text), name
    project = tomllib.loads(archive.read(f"{STAGE}/pyproject.toml").decode())
    assert project["tool"]["setuptools"]["packages"]["find"]["include"] == ["rlhf_lab*", "rlhf_exercises*"]
    secret = choose([STAGE], whole=False)[0].secret_lines
    assert "ratio = log_ratio.exp()" not in secret  # a hint says it
    assert any("surrogate" in line or "torch.max" in line for line in secret)


def test_the_same_files_are_the_same_zip(course):
    before = course.bundle(STAGE).read_bytes()
    with zipfile.ZipFile(course.bundle(STAGE)) as archive:
        files = {name.removeprefix(f"{STAGE}/"): archive.read(name) for name in archive.namelist()}
    write_bundle(course.bundle(STAGE), dict(reversed(files.items())), STAGE)
    assert course.bundle(STAGE).read_bytes() == before


def test_the_unpacked_bundle_works_on_its_own(course, tmp_path):
    zipfile.ZipFile(course.bundle(STAGE)).extractall(tmp_path)
    folder = tmp_path / STAGE
    code = (
        "import rlhf_lab, rlhf_lab.student_code as s; from pathlib import Path;"
        "print(Path(rlhf_lab.__file__).parents[1]); print(s.package_folder('rlhf_exercises'))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == [str(folder), str(folder / "rlhf_exercises")]
    command = [sys.executable, "-m", "rlhf_lab", "check", "response_mask", "last_token_index"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    checked = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, check=False
    )
    assert "1 of 2 exercises pass" in checked.stdout, checked  # the earlier stage's comes solved
    assert "Not done yet: write response_mask in rlhf_exercises/ppo.py" in checked.stdout


# --- releasing anew -----------------------------------------------------------------------------------


def test_again_is_the_same_and_other_assignments_stay(course):
    before = contents(course.root)
    other = course.assignment(STAGE)
    course.write_assignments({STAGE: other, "rlhf": other})
    release(course, FakeExaminer(), [STAGE])
    after = contents(course.root)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed <= {"course.json", "gradebook.db"}
    assert set(course.assignments) == {STAGE, "rlhf"}
    course.write_assignments({STAGE: other})


def test_what_the_instructor_set_in_the_configuration_stays(course):
    with open(course.config_file, "a") as file:
        file.write("\nget_config().CourseDirectory.course_id = 'spring'\n")
    release(course, FakeExaminer(), [STAGE])
    assert "spring" in course.config_file.read_text()


# --- refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("examiner", "sentence"),
    [
        (
            FakeExaminer(solved={"compute_gae": 7.5}),
            "the solution of compute_gae gets 7.5 of 8 points. The mask is lost.",
        ),
        (FakeExaminer(blank={"compute_gae": 0.5}), "compute_gae gets 0.5 points when nothing is written"),
    ],
)
def test_marks_that_are_wrong_are_refused_and_nothing_is_written(course, tmp_path, examiner, sentence):
    before = contents(course.root)
    for root in (tmp_path / "new", course.root):
        with pytest.raises(LabError, match=re.escape(f"{STAGE} is not released")) as error:
            release(Course(root), examiner, [STAGE])
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "new").exists()
    assert contents(course.root) == before


@pytest.mark.parametrize(
    ("name", "text", "sign"),
    [
        ("03_ppo.ipynb", "### BEGIN HIDDEN TESTS", "HIDDEN TESTS"),
        ("rlhf_exercises/ppo.py", "### BEGIN SOLUTION", "BEGIN SOLUTION"),
        ("rlhf_exercises/ppo.py", "from grader_tests import x", "grader_tests"),
        ("rlhf_exercises/ppo.py", "SECRET", "SECRET"),
        ("README.md", "see grader_tests/", "grader_tests"),
        ("rlhf_lab/x.py", '"""Examine a student\'s package: run the hidden tests', "examiner.py"),
    ],
)
def test_what_would_give_something_away_is_refused(course, monkeypatch, name, text, sign):
    bundle_files = releasing.bundle_files

    def careless(draft, released):
        files = bundle_files(draft, released)
        secret = max(draft.secret_lines, key=len)
        if sign == "examiner.py":
            files[name] = (Path(releasing.__file__).parents[1] / sign).read_bytes()
        elif name.endswith(".ipynb"):
            notebook = json.loads(files[name])
            notebook["cells"][3]["source"] = [text]
            files[name] = json.dumps(notebook).encode()
        else:
            files[name] = files.get(name, b"") + f"\n    {text.replace('SECRET', secret)}\n".encode()
        return files

    monkeypatch.setattr(releasing, "bundle_files", careless)
    before = contents(course.root)
    with pytest.raises(LabError, match=f"give away what is hidden: {name} holds"):
        release(course, FakeExaminer(), [STAGE])
    assert contents(course.root) == before


def test_a_model_answer_in_a_notebook_is_found():
    (draft,) = choose(["04_end_to_end"], whole=False)
    source = draft.source_notebooks["04_end_to_end"].encode()
    (sentence,) = leaks({"04_end_to_end.ipynb": source}, draft.secret_lines)
    assert int(re.search(r"and (\d+) more", sentence)[1]) > 20
    assert any('diagnoses["A"]' in line for line in draft.secret_lines)


def test_cells_must_not_come_and_go_once_there_are_submissions(course, monkeypatch):
    submit(course)
    release(course, FakeExaminer(), [STAGE])  # no cell has changed
    before = contents(course.root)
    instructor_notebook = releasing.instructor_notebook

    def one_less(name):
        notebook = instructor_notebook(name)
        marks = [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in notebook.cells]
        del notebook.cells[marks.index("why_dropout_off")]
        return notebook

    monkeypatch.setattr(releasing, "instructor_notebook", one_less)
    with pytest.raises(
        LabError, match=r"03_ppo has submissions, and cells were added or removed \(why_dropout_off\)"
    ):
        release(course, FakeExaminer(), [STAGE])
    assert contents(course.root) == before


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(LabError, match="is no course and not empty"):
        release(Course(tmp_path), FakeExaminer(), [STAGE])
    (tmp_path / "nbgrader_config.py").write_text("c = get_config()\n")
    with pytest.raises(LabError, match="is not this grader's"):
        release(Course(tmp_path), FakeExaminer(), [STAGE])
    assert len(list(tmp_path.iterdir())) == 2


def test_files_of_a_bundle_have_the_time_of_the_release_and_plain_permissions(tmp_path):
    path = tmp_path / "top.zip"
    path.write_bytes(b"damaged")
    write_bundle(path, {"a.txt": b"x"}, "top")
    with zipfile.ZipFile(path) as archive:
        (entry,) = archive.infolist()
    assert (entry.filename, entry.external_attr >> 16) == ("top/a.txt", 0o644)
    assert abs(datetime.now(UTC) - datetime(*entry.date_time, tzinfo=UTC)) < timedelta(minutes=5)
    before = path.stat().st_mtime_ns
    write_bundle(path, {"a.txt": b"x"}, "top")
    assert path.stat().st_mtime_ns == before
    write_bundle(path, {"a.txt": b"y"}, "top")
    with zipfile.ZipFile(path) as archive:
        assert archive.read("top/a.txt") == b"y"


@pytest.mark.parametrize("name", ["02_reward_model", "reward_model", "02", "2"])
def test_a_stage_has_several_names(name):
    assert [draft.name for draft in choose([name], whole=False)] == ["02_reward_model"]
