"""The clinic: every case is complete, has one diagnosis, and the check copes with whatever it is handed."""

import json
import math

import pytest
from IPython.display import HTML, Markdown

from authoring.clinic import RUNS
from rlhf_lab import clinic
from rlhf_lab.clinic import CASES, DIAGNOSES, FOLDER, HEALTHY, views
from rlhf_lab.clinic.views import COLUMNS, FIRST_STEP
from rlhf_lab.course import exercises

ANSWERS = {letter: RUNS[letter].diagnosis for letter in CASES}
CURVES = (
    "mean_reward", "judge", "approx_kl", "kl_to_ref", "clipfrac", "policy_loss", "value_loss", "eos_share", "distinct_2",
    "response_length",
)  # fmt: skip


def test_there_is_a_case_for_every_broken_run_and_more_diagnoses_than_cases():
    assert set(CASES) == set(RUNS) - {HEALTHY} and len(CASES) >= 10
    assert len(set(ANSWERS.values())) == len(CASES) < len(DIAGNOSES)
    assert set(ANSWERS.values()) <= set(DIAGNOSES)


@pytest.mark.parametrize("name", [HEALTHY, *CASES])
def test_a_case_holds_all_that_is_shown(name):
    case = clinic.read_case(name)
    steps = [entry["step"] for entry in case["history"]]
    assert steps == list(range(len(steps))) and len(steps) >= 40
    assert all(math.isfinite(entry[curve]) for entry in case["history"] for curve in CURVES)
    assert set(case["first_step"]) == set(FIRST_STEP)
    assert len(case["samples"]) == 8
    assert len(case["rows"]) == 2 and case["rows"][0] != case["rows"][1]
    for row in case["rows"]:
        assert {len(row[column]) for column in ("tokens", *COLUMNS)} == {len(row["tokens"])}
        assert math.isfinite(row["score"])


def test_the_files_are_small():
    assert sum(path.stat().st_size for path in FOLDER.glob("*.json")) < 1_000_000


@pytest.mark.parametrize("letter", CASES)
def test_a_case_has_exactly_one_diagnosis_and_does_not_say_which(letter):
    right = [name for name in DIAGNOSES if clinic.grade_fraction({letter: name}) > 0]
    assert right == [ANSWERS[letter]]
    text = (FOLDER / f"{letter}.json").read_text(encoding="utf-8").lower()
    assert not any(name.lower() in text for name in DIAGNOSES)
    assert set(json.loads(text)) == {"salt", "key", "first_step", "history", "samples", "rows"}


def test_two_cases_do_not_share_a_salt():
    assert len({clinic.read_case(letter)["salt"] for letter in CASES}) == len(CASES)


@pytest.mark.parametrize("name", RUNS)
def test_the_change_of_a_run_still_applies_to_the_solutions(name):
    change = RUNS[name].change
    if change is not None:
        exercise = exercises()[change.exercise]
        compile(change.source(exercise.module), exercise.file, "exec")


def test_the_diagnosis_of_a_case_is_explained_and_the_place_is_where_the_change_is():
    for letter, name in ANSWERS.items():
        diagnosis, change = DIAGNOSES[name], RUNS[letter].change
        assert diagnosis.seen and diagnosis.why and diagnosis.cure
        assert (diagnosis.place == change.exercise) if change else (diagnosis.place not in exercises())
    for diagnosis in DIAGNOSES.values():
        assert diagnosis.line and diagnosis.where


# --- check ----------------------------------------------------------------------------------------


def test_all_right_answers_are_explained(capsys):
    clinic.check(ANSWERS)
    shown = capsys.readouterr().out
    for letter, name in ANSWERS.items():
        assert f"{letter}  right: {name}\n   Seen: {DIAGNOSES[name].seen}" in shown
        assert DIAGNOSES[name].where in shown
    assert shown.endswith(f"{len(CASES)} of {len(CASES)} right.\n")
    assert clinic.grade_fraction(ANSWERS) == 1.0


def test_a_wrong_answer_is_not_explained_and_does_not_give_the_right_one_away(capsys):
    wrong = {letter: "no KL penalty" for letter in CASES}
    clinic.check(wrong)
    shown = capsys.readouterr().out
    assert shown.count("not yet") == len(CASES) and "Seen:" not in shown
    assert not any(name in shown for name in ANSWERS.values())
    assert clinic.grade_fraction(wrong) == 0.0


def test_nothing_answered(capsys):
    clinic.check(dict.fromkeys(CASES))
    shown = capsys.readouterr().out
    assert shown.count("not answered") == len(CASES) and shown.endswith(f"0 of {len(CASES)} right.\n")


def test_a_fraction():
    some = dict(list(ANSWERS.items())[:3])
    assert clinic.grade_fraction(some) == pytest.approx(3 / len(CASES))


def test_capitals_and_spaces_do_not_matter():
    assert (
        clinic.grade_fraction(
            {f" {letter.lower()} ": f"  {name.upper()} " for letter, name in ANSWERS.items()}
        )
        == 1.0
    )


@pytest.mark.parametrize(
    "answer, said",
    [
        ("dropuot on", "the nearest names are dropout on"),
        ("KL SIGN FLIPED", "the nearest names are KL sign flipped, policy loss sign flipped"),
        ("gremlins", "lab.clinic.diagnoses() lists the names"),
    ],
)
def test_a_misspelled_name_gets_the_nearest_ones(answer, said, capsys):
    clinic.check({CASES[0]: answer})
    assert f"{CASES[0]}  no diagnosis is called {answer!r}: {said}\n" in capsys.readouterr().out


@pytest.mark.parametrize("answers", [None, [], "A", 3, {"dropout on"}])
def test_what_is_not_a_dictionary_is_said(answers, capsys):
    clinic.check(answers)
    assert capsys.readouterr().out == (
        f'check takes a dictionary such as {{"A": "dropout on"}}, not a {type(answers).__name__}\n'
    )
    assert clinic.grade_fraction(answers) == 0.0


def test_unknown_letters_and_answers_of_a_wrong_type(capsys):
    answers = {"Z": "dropout on", 7: "dropout on", CASES[0]: 3, CASES[1]: ["dropout on"], CASES[2]: ""}
    clinic.check(answers)
    shown = capsys.readouterr().out
    assert "there is no case 'Z': the letters are A, " in shown and "there is no case 7: " in shown
    assert f"{CASES[0]}  not answered: give the name of a diagnosis, not a int" in shown
    assert f"{CASES[2]}  not answered\n" in shown
    assert clinic.grade_fraction(answers) == 0.0


# --- views ----------------------------------------------------------------------------------------


@pytest.fixture
def shown(monkeypatch):
    """What is displayed, thing by thing."""
    things = []
    monkeypatch.setattr(views, "display", things.append)
    return things


def page_of(things):
    return "".join(
        thing.data if isinstance(thing, (HTML, Markdown)) else thing._repr_html_() for thing in things
    )


def test_a_case_is_shown_beside_the_healthy_run(shown):
    letter = CASES[0]
    clinic.show(letter.lower())
    title, figure, first_step, samples, *tables = shown
    assert title.data == f"#### Case {letter}"
    history, healthy = (clinic.read_case(name)["history"] for name in (letter, HEALTHY))
    lines = {line.get_label(): list(line.get_ydata()) for axes in figure.axes for line in axes.lines}
    assert lines["judge"] == [entry["judge"] for entry in history]
    assert lines["_healthy judge"] == [entry["judge"] for entry in healthy]
    assert "the healthy run" in first_step.data and "largest ratio" in first_step.data
    assert clinic.read_case(letter)["samples"][0]["prompt"] in samples.data
    assert len(tables) == 2
    assert ANSWERS[letter] not in page_of([title, first_step, samples, *tables])


def test_the_healthy_run_and_the_list_are_shown(shown):
    clinic.healthy()
    clinic.diagnoses()
    assert len(shown) == 7
    assert not any(line.get_label().startswith("_healthy") for axes in shown[1].axes for line in axes.lines)
    assert all(f"<bdi>{name}</bdi>" in shown[-1].data for name in DIAGNOSES)


def test_a_letter_that_no_case_has(capsys):
    clinic.show("Z")
    clinic.show(None)
    assert capsys.readouterr().out.count("there is no case") == 2
