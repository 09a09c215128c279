"""The bank against the checks: what is wrong is caught, mostly by name, and what is right is accepted."""

from collections import Counter

import pytest

from authoring.kills import judge_entries, kill_table
from authoring.known import gather_known, package_with, show_bank
from rlhf_lab.checks.differences import first_difference
from rlhf_lab.checks.known import load_known
from rlhf_lab.checks.run import cases_of, check_code
from rlhf_lab.course import exercises
from rlhf_lab.student_code import fresh_code
from tests.bank import BANK, Entry, body, entries, wrong

BY_NAME = 0.7  # share of the wrong implementations that the visible checks have to name


@pytest.fixture(scope="module")
def shown():
    """What the whole bank shows: the one slow thing here, done once."""
    return show_bank(exercises())


def test_the_bank_is_large():
    assert sum(not entry.correct for entry in entries()) >= 200
    assert sum(entry.correct for entry in entries()) >= 40
    count = Counter(entry.exercise for entry in entries())
    assert count.keys() == exercises().keys()


def test_no_two_entries_are_the_same_text():
    sources = Counter(
        (entry.exercise, entry.source(exercises()[entry.exercise].module)) for entry in entries()
    )
    assert [name for (name, _), times in sources.items() if times > 1] == []


@pytest.mark.parametrize("name", list(exercises()))
def test_what_is_known_is_what_the_bank_shows(name, shown):
    """`known/` is in step with solutions, cases and bank: `python -m authoring known`."""
    fresh, kept = gather_known(exercises()[name], shown[name]), load_known(name)
    assert [mistake["name"] for mistake in fresh["mistakes"]] == [mistake.name for mistake in kept.mistakes]
    for case in cases_of(exercises()[name]):
        assert len(kept.accepted[case.title]) == len(fresh["accepted"][case.title]), case.title
        for old, new in zip(kept.accepted[case.title], fresh["accepted"][case.title], strict=True):
            assert first_difference(new, old, case.tolerance) is None, case.title
    for mistake, new in zip(kept.mistakes, fresh["mistakes"], strict=True):
        assert mistake.observed.keys() == new["observed"].keys(), mistake.name
        for case in cases_of(exercises()[name]):
            old = mistake.observed.get(case.title)
            assert (
                old is None or first_difference(new["observed"][case.title], old, case.tolerance) is None
            ), mistake


@pytest.mark.parametrize("name", list(exercises()))
def test_correct_variants_are_accepted(name, shown):
    refused = [
        kill.entry.says for kill in judge_entries(exercises()[name], shown[name])
        if kill.entry.correct and kill.state != "passed"
    ]  # fmt: skip
    assert refused == []


def test_most_wrong_implementations_are_caught_by_name(shown):
    table, kills = kill_table(shown)
    print(f"\n{table}")
    wrong_ones = [kill for kill in kills if not kill.entry.correct]
    named = [kill for kill in wrong_ones if kill.state == "failed" and kill.named]
    assert len(named) / len(wrong_ones) >= BY_NAME
    # the names must not come from having seen the very same code before
    unseen = [kill for kill in wrong_ones if kill.state == "failed" and kill.named_unseen]
    assert len(unseen) / len(wrong_ones) >= BY_NAME


@pytest.mark.parametrize("name", list(exercises()))
def test_a_wrong_implementation_fails_no_other_exercise(name):
    """Others pass, or wait for it. Two of each exercise here, since each costs a check of all that call it."""
    exercise = exercises()[name]
    callers = [other for other in exercises().values() if name in other.needs]
    for entry in [entry for entry in entries(name) if not entry.correct][:2]:
        with package_with(entry, exercise) as folder, fresh_code(folder) as code:
            for other in callers:
                report = check_code(other, code, folder / other.file)
                assert report.state in ("passed", "waits"), (entry.says, other.name, report)


def test_a_change_that_does_not_apply_is_refused():
    entry = Entry("masked_ce_loss", "x", (("no such text", ""),), "", correct=False)
    with pytest.raises(ValueError, match="found 0 times"):
        entry.source("sft")


def test_a_whole_body_is_replaced():
    entry = Entry("masked_ce_loss", "x", (body("return 7"),), "", correct=False)
    text = entry.source("sft")
    assert "    ### BEGIN SOLUTION\n    return 7\n    ### END SOLUTION" in text
    assert "def train_sft(" in text


def test_the_bank_is_written_with_wrong_and_right():
    before = len(BANK)
    wrong("masked_ce_loss", "only for this test", ("a", "b"))
    assert BANK.pop() == Entry("masked_ce_loss", "only for this test", (("a", "b"),), "", correct=False)
    assert len(BANK) == before
