"""The report on a class: counts, the mistakes by name, what to talk about, and a page that is one file."""

import re
from dataclasses import replace

import pytest

from grader_tests.course.exam import Exam
from grader_tests.course.gradebook import Grade, Marks, NotebookMarks
from grader_tests.course.paths import Assignment, Course
from grader_tests.course.report import CLASSES, report, summarise
from grader_tests.verdict import ExerciseVerdict, SubmissionVerdict
from rlhf_lab.course import select
from rlhf_lab.errors import LabError
from rlhf_lab.runs import read_json

POINTS = {exercise.name: float(exercise.points) for exercise in select("03_ppo")}
SEED = 7
# Of each exercise the mistakes and how many of twelve students made each; points are lost in halves and wholes.
MISTAKES = {
    "PolicyWithValueHead": {"The last layer of the value head does not start at zero.": 2},
    "gather_logprobs": {"The last position is kept although no token follows it.": 1},
    "shape_token_rewards": {
        "The score stands at the last column and not at the last valid token.": 4,
        "The KL penalty has the wrong sign.": 1,
    },
    "compute_gae": {
        "The value of a padded position enters the TD error of the last real token.": 5,
        "compute_gae is not written yet.": 2,
        "Returns are made of rewards alone.": 1,
    },
    "masked_whiten": {},
    "ppo_losses": {
        "The loss takes the larger of the clipped and the unclipped objective's gain.": 3,
        "The value loss is not clipped.": 3,
        'Called with <b>"gradients"</b> & all: they reach the old values.': 1,
    },
    "response_mask": {"The EOS itself is left out.": 1},
    "response_logprobs_and_values": {},
    "rollout": {"The policy is left in another mode than before.": 2},
    "ppo_step": {"Advantages are computed anew in each epoch.": 3, "ppo_step is not written yet.": 3},
}


def verdict_of(student: int, **changes) -> SubmissionVerdict:
    """The verdict of one of the twelve, of today's hidden tests: whose turn it is makes the mistake."""
    verdicts = {}
    for offset, (name, points) in enumerate(POINTS.items()):
        turns = [mistake for mistake, count in MISTAKES[name].items() for _ in range(count)]
        turn = (student * 5 + offset) % 12
        if turn >= len(turns):
            verdicts[name] = ExerciseVerdict(name, points, points)
            continue
        score = 0.0 if "not written" in turns[turn] or turn % 2 else points / 2
        messages, examined = (turns[turn], "One more sentence."), "not written" not in turns[turn]
        verdicts[name] = ExerciseVerdict(name, score, points, messages, examined)
    remarks = ("03_ppo (1).ipynb was recognised as 03_ppo by its cells.",) if student == 3 else ()
    made = SubmissionVerdict(
        "03_ppo",
        f"student-{student:02}",
        verdicts,
        remarks,
        "bubblewrap",
        Exam(seed=SEED).fingerprint(),
        "",
        1.0,
    )
    return replace(made, **changes)


@pytest.fixture
def course(tmp_path):
    """A course in which twelve students have a verdict, one has none, and one has handed in another assignment only."""
    course = Course(tmp_path)
    course.seed = SEED
    names = {"01_sft": {"masked_ce_loss": 5.0}, "03_ppo": POINTS}
    course.write_assignments(
        {
            name: Assignment(name, (name,), ("sft",), points, {"why_dropout_off": 2}, {name: tuple(points)})
            for name, points in names.items()
        }
    )
    for number in range(12):
        course.write_verdict(verdict_of(number))
        course.submitted("03_ppo", f"student-{number:02}").mkdir(parents=True)
    course.submitted("03_ppo", "waits").mkdir(parents=True)
    course.submitted("01_sft", "elsewhere").mkdir(parents=True)
    return course


def test_mistakes_are_counted_by_name_and_come_in_order(course):
    gae = next(each for each in summarise(course, "03_ppo").exercises if each.name == "compute_gae")
    counted = {each.sentence: len(each.students) for each in (*gae.mistakes, *gae.unexamined)}
    assert counted == MISTAKES["compute_gae"]
    assert [len(mistake.students) for mistake in gae.mistakes] == [5, 1]
    assert [each.sentence for each in gae.unexamined] == ["compute_gae is not written yet."]
    assert gae.solved == 4 and gae.tried == 10 and gae.share_solved == pytest.approx(0.4)
    wrong = [student for mistake in gae.mistakes for student in mistake.students]
    assert gae.lost == pytest.approx(sum(8 - gae.scores[student] for student in wrong)) and gae.lost > 0
    assert gae.classes == {"none": 5, "under half": 0, "half or more": 3, "all": 4}


def test_of_questions_only_what_a_person_has_read_has_a_mean(course, monkeypatch):
    def marks(**values):
        return Marks({"03_ppo": NotebookMarks({"why_dropout_off": Grade(**values)}, {}, 0.0)}, None)

    by_student = {
        "read": marks(auto=None, manual=1.5, score=1.5, waits=False),
        "waits": marks(auto=None, manual=None, score=0.0, waits=True),
        "again": marks(auto=None, manual=2.0, score=2.0, waits=True),
        "blank": marks(auto=0.0, manual=None, score=0.0, waits=False),
    }
    monkeypatch.setattr("grader_tests.course.report.all_marks", lambda course, name: by_student)
    (question,) = summarise(course, "03_ppo").questions
    assert (question.waiting, question.blank, question.scores) == (2, 1, (1.5,))


def test_what_to_talk_about_is_what_cost_the_class_most(course):
    content = summarise(course, "03_ppo")
    lost = {each.name: each.lost for each in content.exercises}
    assert list(content.topics) == sorted(content.topics, key=lost.get, reverse=True)
    assert set(content.topics) == {"compute_gae", "ppo_losses", "ppo_step", "shape_token_rewards"}
    assert [each.name for each in content.to_talk_about] == list(content.topics)


def test_what_is_missing_blank_or_broken_is_said_once_and_is_no_mistake(course):
    right = {name: ExerciseVerdict(name, points, points) for name, points in POINTS.items()}
    reasons = {
        0: "rlhf_exercises/ppo.py was not handed in.",
        1: "PPO (1).PY is larger than the 1 MB that a file of its kind may have.",
        2: "ppo.py does not parse: line 3: no exercise in it can be examined.",
        3: "ppo.py raises NameError while it is imported.",
    }
    for number in range(12):
        course.write_verdict(verdict_of(number, exercises=right))
    for number, reason in reasons.items():
        lost = {name: ExerciseVerdict(name, 0.0, points, (reason,), False) for name, points in POINTS.items()}
        course.write_verdict(verdict_of(number, exercises=lost))
    blank = ExerciseVerdict("rollout", 0.0, POINTS["rollout"], ("rollout is not written yet.",), False)
    course.write_verdict(verdict_of(4, exercises=right | {"rollout": blank}))
    wrong = ExerciseVerdict("ppo_losses", 1.0, POINTS["ppo_losses"], ("The sign is wrong.",))
    for number in (5, 6, 7):
        course.write_verdict(verdict_of(number, exercises=right | {"ppo_losses": wrong}))
    content = summarise(course, "03_ppo")
    assert content.topics == ("ppo_losses",)
    assert content.unexamined == {reason: [f"student-{n:02}"] for n, reason in reasons.items()} | {
        "rollout is not written yet.": ["student-04"]
    }
    page = report(course.root, "03_ppo").read_text(encoding="utf-8")
    assert "5 of the 8 who wrote it solved it" in page and "Most often (3): The sign is wrong." in page
    assert all(page.count(reason) == 1 for reason in reasons.values())


def test_who_has_handed_in_nothing_and_who_has_no_verdict(course):
    content = summarise(course, "03_ppo")
    assert (content.missing, content.ungraded) == (("elsewhere",), ("waits",))
    assert content.remarks == {"student-03": ("03_ppo (1).ipynb was recognised as 03_ppo by its cells.",)}
    course.verdict("03_ppo", "student-00").write_text("{")
    assert summarise(course, "03_ppo").ungraded == ("student-00", "waits")


def test_what_is_no_folder_of_a_student_is_not_in_the_class(course):
    (course.root / "submitted" / ".Trash" / "03_ppo").mkdir(parents=True)
    (course.root / "submitted" / "link").symlink_to(course.submitted("03_ppo", "waits").parent)
    content = summarise(course, "03_ppo")
    assert (content.missing, content.ungraded) == (("elsewhere",), ("waits",))


KEPT_APART = "Students' code was kept apart by: bubblewrap."


def test_verdicts_of_different_tests_are_said(course):
    assert summarise(course, "03_ppo").notes == (KEPT_APART,)
    course.write_verdict(verdict_of(0, exam="older", confinement="process limits"))
    older, kept_apart = summarise(course, "03_ppo").notes
    assert older.startswith("1 verdicts come from another version of the hidden tests")
    assert kept_apart.endswith("bubblewrap, process limits.")


def test_where_no_code_was_run_nothing_is_said_of_how_it_was_kept_apart(course):
    course.write_verdict(verdict_of(0, confinement="nothing was run"))
    assert summarise(course, "03_ppo").notes == (KEPT_APART,)


def test_a_class_graded_wholly_with_older_tests_is_said(course):
    for number in range(12):
        course.write_verdict(verdict_of(number, exam="older"))
    assert summarise(course, "03_ppo").notes == (
        "12 verdicts come from another version of the hidden tests: grade again.",
        KEPT_APART,
    )


def test_a_class_graded_without_the_training_tests_is_said(course):
    for number in range(12):
        course.write_verdict(verdict_of(number, exam=Exam(training=False, seed=SEED).fingerprint()))
    assert summarise(course, "03_ppo").notes == (
        "12 verdicts leave out the tests that train a model.",
        KEPT_APART,
    )


def test_verdicts_in_the_points_of_an_earlier_release_are_said(course):
    released = course.assignment("03_ppo")
    course.write_assignments(
        {**course.assignments, "03_ppo": replace(released, exercises=POINTS | {"compute_gae": 9.0})}
    )
    points, kept_apart = summarise(course, "03_ppo").notes
    assert points == "12 verdicts are in points that the exercises had in an earlier release: grade again."


def test_the_page_is_one_file_in_which_every_text_is_text(course):
    path = report(course.root, "03_ppo")
    assert path == course.report("03_ppo")
    page = path.read_text(encoding="utf-8")
    assert "&lt;b&gt;" in page and "<b>" not in page and "<script" not in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:image/png;base64,|#)""", page)
    assert "12 students graded" in page and "1 without a submission" in page
    assert "<strong>1 without a verdict: grade again.</strong>" in page
    content = read_json(path.with_suffix(".json"))
    assert content["topics"] == list(summarise(course, "03_ppo").topics)
    gae = next(each for each in content["exercises"] if each["name"] == "compute_gae")
    assert gae["solved"] == 4 and len(gae["mistakes"][0]["students"]) == 5


def test_a_class_in_which_everybody_is_right(course):
    right = {name: ExerciseVerdict(name, points, points) for name, points in POINTS.items()}
    for number in range(12):
        course.write_verdict(verdict_of(number, exercises=right))
    content = summarise(course, "03_ppo")
    assert content.topics == () and content.median == content.max
    assert all(each.classes == dict.fromkeys(CLASSES, 0) | {"all": 12} for each in content.exercises)
    assert "Nothing stands out" in report(course.root, "03_ppo").read_text(encoding="utf-8")


def test_a_report_on_nobody_is_one_sentence(course):
    with pytest.raises(LabError, match="nobody has a verdict in 01_sft yet"):
        report(course.root, "01_sft")
    with pytest.raises(LabError, match="there is no assignment '02'"):
        report(course.root, "02")
