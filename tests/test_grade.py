"""A class is graded: every submission gets its verdict, whatever is killed, and whatever one of them does."""

import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from grader_tests.course.exam import Exam
from grader_tests.course.export import export
from grader_tests.course.feedback import build_page, feedback
from grader_tests.course.grade import grade, only_run
from grader_tests.course.gradebook import read_marks
from grader_tests.course.regrade import regrade
from grader_tests.course.report import report
from grader_tests.course.workers import Fault, Workers
from rlhf_lab.errors import LabError
from tests.small_course import FakeExam, hand_in, make_course

PPO = "03_ppo"
CLASS = ("ada", "bob", "chen", "dora", "emil", "fay")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    return make_course(tmp_path_factory.mktemp("course") / "rlhf", PPO)


@pytest.fixture
def course(released, tmp_path):
    shutil.copytree(released.root, tmp_path / "rlhf")
    return type(released)(tmp_path / "rlhf")


@pytest.fixture
def exam(tmp_path):
    return FakeExam(log=tmp_path / "log")


def marks(course, student: str) -> dict[str, float | None]:
    return {name: grade.auto for name, grade in read_marks(course, PPO, student).grades.items()}


def states(run) -> dict[str, str]:
    return {outcome.student: outcome.state for outcome in run.outcomes}


def test_the_gradebook_holds_the_verdict_and_a_second_run_does_nothing(course, exam, capsys):
    hand_in(course, PPO, "ada", "# solved compute_gae")
    hand_in(course, PPO, "bob")
    run = grade(course.root, jobs=1, exam=exam)
    assert states(run) == {"ada": "graded", "bob": "graded"} and run.status == 0
    assert marks(course, "ada")["compute_gae"] == 8 and marks(course, "bob")["compute_gae"] == 0
    assert course.read_verdict(PPO, "ada").exercises["rollout"].messages == ("The sign is wrong.",)
    said = capsys.readouterr().out
    assert "2/2" in said and "8 of 51" in said
    assert states(grade(course.root, jobs=1, exam=exam)) == {"ada": "kept", "bob": "kept"}
    assert len(exam.examined()) == 2


def test_new_work_and_new_tests_are_graded_again_unless_only_new_work_is_asked_for(course, exam):
    hand_in(course, PPO, "ada")
    hand_in(course, PPO, "bob")
    grade(course.root, exam=exam)
    mended = replace(exam, version="2", worth=1.0)
    hand_in(course, PPO, "bob", "# solved rollout")
    assert states(grade(course.root, only_new=True, exam=mended)) == {"ada": "kept", "bob": "graded"}
    assert (marks(course, "ada")["rollout"], marks(course, "bob")["rollout"]) == (0, 6)
    assert states(grade(course.root, exam=mended)) == {"ada": "graded", "bob": "kept"}
    assert marks(course, "ada")["rollout"] == 1


def test_a_fault_of_one_leaves_the_others_and_no_old_points(course, exam, capsys):
    for student in ("ada", "bob", "chen"):
        hand_in(course, PPO, student, "# solved rollout")
    grade(course.root, exam=exam)
    hand_in(course, PPO, "ada", "# die")
    hand_in(course, PPO, "bob", "# fault")
    hand_in(course, PPO, "chen", "# solved compute_gae")
    (course.root / "submitted" / "dora").touch()
    capsys.readouterr()
    run = grade(course.root, exam=exam)
    assert states(run) == {"ada": "failed", "bob": "failed", "chen": "graded"} and run.status == 1
    for student in ("ada", "bob"):
        assert course.read_verdict(PPO, student) is None
        assert marks(course, student)["rollout"] is None
    said = capsys.readouterr().out
    assert "FAILED 03_ppo ada: The process that was working on it died" in said
    assert "FAILED 03_ppo bob: RuntimeError: the examiner fell over" in said
    assert "NOT GRADED submitted/dora" in said
    assert exam.examined().count("ada") == 1 + 2  # tried twice


def test_a_process_that_dies_once_costs_nothing(course, exam):
    hand_in(course, PPO, "ada", "# die", "# solved rollout")
    run = grade(course.root, exam=replace(exam, deadly=2))
    assert states(run) == {"ada": "graded"} and exam.examined() == ["ada", "ada"]


def test_without_notebook_and_module_there_is_a_verdict_all_the_same(course, exam):
    folder = hand_in(course, PPO, "ada", "# solved rollout")
    shutil.rmtree(folder)
    folder.mkdir()
    run = grade(course.root, exam=exam)
    verdict = run.outcomes[0].verdict
    assert states(run) == {"ada": "graded"} and verdict.score == 0 and verdict.max == 51
    assert verdict.exercises["rollout"].messages == ("rlhf_exercises/ppo.py was not handed in.",)
    assert set(marks(course, "ada").values()) == {0.0}
    assert not exam.examined()


def test_a_submission_of_which_nothing_could_be_taken_is_no_ordinary_zero(course, exam, capsys):
    for student, name in (("gus", "handin.zip"), ("hal", "timestamp.txt")):
        course.submitted(PPO, student).mkdir(parents=True)
        (course.submitted(PPO, student) / name).write_text("2026-11-29 12:00:00 UTC")
    hand_in(course, PPO, "ada", "# solved rollout")
    for state in ("graded", "kept"):
        run = grade(course.root, exam=exam)
        assert states(run) == dict.fromkeys(("ada", "gus", "hal"), state) and run.status == 1
        said = capsys.readouterr().out
        assert "NOTHING TAKEN 03_ppo gus: handin.zip is an archive: it was not unpacked." in said
        assert "NOTHING TAKEN 03_ppo hal: " in said and "NOTHING TAKEN 03_ppo ada" not in said
        assert "confined by: nothing, this is a fake." in said
    rows = {row["student"]: row for row in read_csv(export(course.root))}
    assert {name: row["state"] for name, row in rows.items()} == {
        "ada": "graded",
        "gus": "nothing could be taken",
        "hal": "nothing could be taken",
    }


def test_work_in_a_wrong_place_is_said_everywhere(course, exam, capsys):
    hand_in(course, PPO, "ada", "# solved rollout")
    (course.root / "submitted" / "eve" / "ppo").mkdir(parents=True)
    (course.root / "submitted" / "notes.txt").touch()
    sentence = "submitted/eve/ppo: no assignment has this name: rename the folder to one of 03_ppo"
    assert grade(course.root, exam=exam).status == 1
    assert f"NOT GRADED {sentence}" in capsys.readouterr().out
    ada, eve = read_csv(export(course.root))
    assert (ada["remarks"], eve["state"], eve["remarks"]) == ("", "not handed in", f"{sentence}.")
    assert report(course.root, PPO).read_text().count(sentence) == 1
    assert grade(course.root, students=["ada"], exam=exam).status == 0
    hand_in(course, PPO, "eve", "# solved rollout")
    assert grade(course.root, students=["eve"], exam=exam).status == 1
    assert f"NOT GRADED {sentence}" in capsys.readouterr().out
    eve = read_csv(export(course.root))[1]
    assert (eve["state"], eve["remarks"]) == ("graded", f"{sentence}.")


def test_where_nothing_is_handed_in_it_is_said_where_it_is_expected(course, exam):
    for command in (
        lambda: grade(course.root, exam=exam),
        lambda: regrade(course.root, exam=exam),
        lambda: export(course.root),
    ):
        with pytest.raises(LabError, match=r"nothing has been handed in: .* as submitted/STUDENT/03_ppo/$"):
            command()
    assert not (course.root / "marks.csv").exists()
    hand_in(course, PPO, "ada")
    assert read_csv(export(course.root))[0]["state"] == "not graded"


def test_a_name_that_is_too_long_for_files_is_one_students_sentence(course, exam, capsys):
    hand_in(course, PPO, "ada", "# solved rollout")
    (course.root / "submitted" / ("王" * 84) / PPO).mkdir(parents=True)
    hand_in(course, PPO, "王" * 66, "# solved rollout")
    run = grade(course.root, exam=exam)
    assert states(run) == {"ada": "graded", "王" * 66: "graded"} and len(run.strays) == 1
    assert "this name is too long" in capsys.readouterr().out
    assert feedback(course.root).status == 0 and len(read_csv(export(course.root))) == 2
    report(course.root, PPO)


def test_verdicts_without_the_tests_that_train_are_said(course, exam, capsys):
    for student in ("ada", "bob"):
        hand_in(course, PPO, student, "# solved rollout")
    short = replace(exam, version=Exam(training=False, seed=course.seed).fingerprint())
    grade(course.root, students=["ada"], exam=short)
    assert "1 of these verdicts leave out the tests that train a model" in capsys.readouterr().out
    grade(course.root, students=["bob"], exam=exam)
    assert "leave out" not in capsys.readouterr().out
    ada, bob = read_csv(export(course.root))
    assert ada["remarks"] == "Graded without the tests that train a model." and bob["remarks"] == ""


def test_a_gradebook_that_says_something_else_is_put_right(course, exam):
    hand_in(course, PPO, "ada", "# solved rollout")
    grade(course.root, exam=exam)
    with Gradebook(course.gradebook_url) as gradebook:
        gradebook.find_grade("rollout", PPO, PPO, "ada").auto_score = 2.0
        gradebook.db.commit()
    assert states(grade(course.root, exam=exam)) == {"ada": "graded"}
    assert marks(course, "ada")["rollout"] == 6 and exam.examined() == ["ada"]


def test_what_nbgrader_cannot_record_is_said_and_the_verdict_stays(course, exam):
    hand_in(course, PPO, "ada", "# solved rollout")
    config = course.config_file.read_text()
    course.config_file.write_text(config + "\nget_config().Autograde.autograde_preprocessors = []\n")
    run = grade(course.root, exam=exam)
    assert run.status == 1 and "it holds None points" in run.failed[0].reason
    course.config_file.write_text(config)
    assert states(grade(course.root, exam=exam)) == {"ada": "graded"} and exam.examined() == ["ada"]


# Killed

SCRIPT = """
import sys
from pathlib import Path
from grader_tests.course.grade import grade
from tests.small_course import FakeExam
if __name__ == "__main__":
    grade(sys.argv[1], scheduler=sys.argv[3] or None, exam=FakeExam(log=Path(sys.argv[2]), seconds=float(sys.argv[4])))
"""


@contextlib.contextmanager
def grading(course, exam, scheduler="", seconds=0.3):
    """The same in a process of its own."""
    command = [sys.executable, "-c", SCRIPT, str(course.root), str(exam.log), scheduler, str(seconds)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_killed_in_the_middle_nothing_is_lost_and_nothing_done_twice(course, exam):
    for student in CLASS:
        hand_in(course, PPO, student, "# solved rollout")
    with grading(course, exam, seconds=3.0) as process:  # long enough to come between, on a busy machine too
        for _ in range(2):
            assert process.stdout.readline()
        process.kill()
    done = [student for student in CLASS if course.read_verdict(PPO, student)]
    assert 2 <= len(done) < len(CLASS)
    run = grade(course.root, exam=exam)
    assert set(states(run).values()) <= {"graded", "kept"} and len(run.outcomes) == len(CLASS)
    assert all(marks(course, student)["rollout"] == 6 for student in CLASS)
    again = [student for student in done if exam.examined().count(student) > 1]
    assert again == []


def test_two_runs_in_one_course_are_refused(course, exam):
    hand_in(course, PPO, "ada")
    with only_run(course), pytest.raises(LabError, match="another grading run is working"):
        grade(course.root, exam=exam)


def test_students_that_are_unknown_are_refused(course, exam):
    hand_in(course, PPO, "ada")
    hand_in(course, PPO, "adam")
    (course.root / "submitted" / "eve" / "ppo").mkdir(parents=True)
    for student, sentence in (
        ("zoe", "zoe handed in nothing that could be graded"),
        ("ad", "ad handed in nothing that could be graded: there is ada, adam"),
        ("eve", "eve handed in nothing that could be graded: submitted/eve/ppo: no assignment has this name"),
    ):
        with pytest.raises(LabError, match=f"^{sentence}"):
            grade(course.root, students=["ada", student], exam=exam)


# Workers


def sleep_or_die(what: str) -> str:
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sleep":
        time.sleep(60)
    if what == "raise":
        raise ValueError("no")
    return what


def test_what_goes_wrong_in_one_process_costs_its_own_task_only():
    tasks = [(what,) for what in ("a", "die", "b", "raise", "sleep", "c")]
    with Workers(2, limit=3.0) as workers:
        assert len(list(workers.run(sleep_or_die, [("a",), ("b",)]))) == 2  # they are warm
        results = {task[0]: result for task, result in workers.run(sleep_or_die, tasks)}
    assert [results[name] for name in "abc"] == ["a", "b", "c"]
    assert "died (exit status -9)" in results["die"].reason
    assert results["raise"].reason == "ValueError: no" and "sleep_or_die" in results["raise"].details
    assert isinstance(results["sleep"], Fault)


# What a person wrote


def comment_on(course, student: str) -> None:
    with Gradebook(course.gradebook_url) as gradebook:
        question = gradebook.find_grade("why_dropout_off", PPO, PPO, student)
        question.manual_score, question.needs_manual_grade = 1.5, False
        gradebook.find_comment("why_dropout_off", PPO, PPO, student).manual_comment = "Well said."
        gradebook.db.commit()


def answer(course, student: str, text: str) -> None:
    """Answer the question why_dropout_off."""
    path = course.submitted(PPO, student) / f"{PPO}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cells = {cell.metadata.get("nbgrader", {}).get("grade_id"): cell for cell in notebook.cells}
    cells["why_dropout_off"].source = text
    nbformat.write(notebook, path)


def test_only_answers_that_changed_are_read_again(course, exam):
    for student in ("ada", "bob"):
        hand_in(course, PPO, student, "# solved rollout")
        answer(course, student, "Because of the ratio.")
    grade(course.root, exam=exam)
    for student in ("ada", "bob"):
        comment_on(course, student)
        hand_in(course, PPO, student, "# solved compute_gae")
    answer(course, "ada", "Because of the ratio.")
    answer(course, "bob", "Because of the noise.")
    assert states(grade(course.root, exam=exam)) == {"ada": "graded", "bob": "graded"}
    ada, bob = (read_marks(course, PPO, student) for student in ("ada", "bob"))
    assert (ada.grades["why_dropout_off"].manual, ada.grades["why_dropout_off"].waits) == (1.5, False)
    assert (bob.grades["why_dropout_off"].manual, bob.grades["why_dropout_off"].waits) == (1.5, True)
    for student, marks_ in (("ada", ada), ("bob", bob)):
        made = build_page(course, course.assignment(PPO), student, PPO)
        shown = sum(part.score for part in made.exercises) + sum(
            each.score for each in made.answers if each.marked or not each.waits
        )
        assert shown == made.total[0] == marks_.total == 9.5
    feedback(course.root)
    page = (course.feedback(PPO, "bob") / f"{PPO}.html").read_text(encoding="utf-8")
    assert "to be read again" in page and "1.5 of 2" in page and "the points are not final" in page
    assert "to be read again" not in (course.feedback(PPO, "ada") / f"{PPO}.html").read_text(encoding="utf-8")


def test_half_a_notebook_of_a_run_that_was_killed_is_written_anew(course, exam):
    hand_in(course, PPO, "ada", "# solved rollout")
    grade(course.root, exam=exam)
    (course.autograded(PPO, "ada") / f"{PPO}.ipynb").write_text("{")
    hand_in(course, PPO, "ada", "# solved compute_gae")
    assert states(grade(course.root, exam=exam)) == {"ada": "graded"}


def test_a_regrade_says_whose_marks_change_and_keeps_what_a_person_wrote(course, exam, capsys):
    hand_in(course, PPO, "ada", "# solved rollout")
    hand_in(course, PPO, "bob", *(f"# solved {name}" for name in course.assignment(PPO).exercises))
    folder = course.submitted(PPO, "ada") / f"{PPO}.ipynb"
    folder.write_text(folder.read_text().replace("YOUR ANSWER HERE", "An answer."))
    grade(course.root, exam=exam)
    comment_on(course, "ada")
    changes, run = regrade(course.root, exam=replace(exam, version="2", worth=1.0))
    assert run.status == 0 and {change.student for change in changes} == {"ada"} and len(changes) == 9
    first = changes[0]
    assert (first.exercise, first.before, first.after) == ("PolicyWithValueHead", 0, 1)
    assert first.message == "The sign is wrong."
    assert "9 marks of 1 students changed." in capsys.readouterr().out
    grades = read_marks(course, PPO, "ada").grades
    assert grades["why_dropout_off"].manual == 1.5 and not grades["why_dropout_off"].waits
    with Gradebook(course.gradebook_url) as gradebook:
        assert gradebook.find_comment("why_dropout_off", PPO, PPO, "ada").comment == "Well said."


def test_a_regrade_that_was_stopped_still_knows_the_marks_from_before(course, exam, monkeypatch):
    for student in ("ada", "bob"):
        hand_in(course, PPO, student, "# solved rollout")
    grade(course.root, exam=exam)
    mended = replace(exam, version="2", worth=1.0)

    def stopped(course_dir, jobs, students, **options):
        grade(course_dir, jobs, ["ada"], **options)
        raise KeyboardInterrupt

    monkeypatch.setattr("grader_tests.course.regrade.grade", stopped)
    with pytest.raises(KeyboardInterrupt):
        regrade(course.root, exam=mended)
    monkeypatch.undo()
    changes, run = regrade(course.root, exam=mended)
    assert states(run) == {"ada": "kept", "bob": "graded"}
    assert {(change.student, change.before, change.after) for change in changes} == {
        ("ada", 0, 1),
        ("bob", 0, 1),
    }
    assert regrade(course.root, exam=mended)[0] == []


# Export


def read_csv(path) -> list[dict]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_has_every_point_and_no_formula(course, exam):
    hand_in(course, PPO, "ada", "# solved rollout")
    folder = course.submitted(PPO, "ada")
    (folder / f"{PPO}.ipynb").unlink()
    grade(course.root, exam=exam)
    with Gradebook(course.gradebook_url) as gradebook:
        gradebook.update_or_create_student(
            "ada", last_name='=HYPERLINK("x")', first_name="=ＳＵＭ", email="-1+2"
        )
        gradebook.add_student("zoe", last_name="@x")
        gradebook.find_grade("why_dropout_off", PPO, PPO, "ada").manual_score = 1.0
        gradebook.db.commit()
    ada, zoe = read_csv(export(course.root))
    assert (ada["student"], ada["rollout"], ada["why_dropout_off"], ada["total"]) == (
        "ada",
        "6.0",
        "1.0",
        "7.0",
    )
    assert "The notebook 03_ppo was not found" in ada["remarks"]
    assert ada["last_name"] == '\'=HYPERLINK("x")' and ada["email"] == "'-1+2" and zoe["last_name"] == "'@x"
    assert (zoe["state"], zoe["rollout"], zoe["total"]) == ("not handed in", "", "0.0")
    placed = [name for name in ada if name in course.assignment(PPO).cells[PPO]]
    assert (
        placed == [name for name in course.assignment(PPO).cells[PPO] if name in placed] and len(placed) > 10
    )


def test_a_damaged_verdict_leaves_the_table_of_the_class(course, exam):
    for student in ("ada", "bob"):
        hand_in(course, PPO, student, "# solved rollout")
    grade(course.root, exam=exam)
    course.verdict(PPO, "ada").write_text("{")
    ada, bob = read_csv(export(course.root))
    assert (ada["total"], bob["total"]) == ("6.0", "6.0")
    assert (ada["remarks"], bob["remarks"]) == ("The verdict is damaged: grade again.", "")


def test_nbgraders_own_export_works_with_both_exporters(course, exam, tmp_path):
    hand_in(course, PPO, "ada", "# solved rollout")
    grade(course.root, exam=exam)
    ours, theirs = tmp_path / "ours.csv", tmp_path / "theirs.csv"
    script = "from nbgrader.apps.nbgraderapp import main; main()"
    for path, options in (
        (ours, ["--exporter=grader_tests.course.export.ExerciseExport"]),
        (theirs, ["--exporter=nbgrader.plugins.export.CsvExportPlugin"]),
    ):
        command = [sys.executable, "-c", script, "export", "--to", str(path), *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=course.root, env=environment, check=True, capture_output=True)
    assert read_csv(ours)[0]["rollout"] == "6.0"
    marks_, before = export(course.root), export(course.root).read_bytes()
    command = [sys.executable, "-c", script, "export"]
    subprocess.run(command, cwd=course.root, env=environment, check=True, capture_output=True)
    assert (course.root / "grades.csv").is_file() and marks_.read_bytes() == before
    with open(theirs, newline="") as file:
        assert next(csv.DictReader(file))["score"] == "6.0"


# A cluster


@pytest.fixture
def cluster(tmp_path):
    """A Dask scheduler and two workers, each a process; yields the scheduler's address and the workers."""
    pytest.importorskip("distributed", reason="Dask is not installed: pip install distributed")
    file = tmp_path / "scheduler.json"
    dask = (
        [sys.executable, "-m", "distributed.cli.dask_scheduler"],
        [sys.executable, "-m", "distributed.cli.dask_worker"],
    )
    options = ["--scheduler-file", str(file)]
    started = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    one = [*options, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    processes = [
        subprocess.Popen(
            [*dask[0], *options, "--host", "127.0.0.1", "--port", "0", "--no-dashboard"], **started
        ),
        *(
            subprocess.Popen([*dask[1], *one], **started, env={**os.environ, "PYTHONPATH": str(ROOT)})
            for _ in "ab"
        ),
    ]
    try:
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield json.loads(file.read_text())["address"], processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_cluster_loses_a_worker_and_nothing_else(course, exam, cluster):
    address, dask_workers = cluster
    for student in CLASS:
        hand_in(course, PPO, student, "# solved rollout")
    with grading(course, exam, scheduler=address, seconds=1.0) as process:
        lines = [process.stdout.readline()]
        dask_workers[0].kill()
        lines += process.stdout.read().splitlines()
        assert process.wait(timeout=60) == 0
    assert all(sum(f" {student} " in line for line in lines) == 1 for student in CLASS)  # each recorded once
    assert all(marks(course, student)["rollout"] == 6 for student in CLASS)
    # what the lost worker had in hand was examined once more, nothing else
    assert len(CLASS) <= len(exam.examined()) <= len(CLASS) + 2
    assert set(states(grade(course.root, exam=exam)).values()) == {"kept"}


def test_a_scheduler_that_is_not_there_is_named(course, exam, monkeypatch):
    pytest.importorskip("distributed", reason="Dask is not installed: pip install distributed")
    monkeypatch.setattr("grader_tests.course.cluster.SCHEDULER_ANSWERS", 1.0)
    hand_in(course, PPO, "ada")
    with pytest.raises(LabError, match="no Dask scheduler answers at 127.0.0.1:1"):
        grade(course.root, scheduler="127.0.0.1:1", exam=exam)
