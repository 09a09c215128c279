"""Hostile submissions gain nothing: no point, no look at a hidden test, nothing left behind."""

from pathlib import Path

import pytest

from grader_tests.examiner import Examiner
from tests.attacks import PACKAGE_ATTACKS, attacked_package


@pytest.fixture(scope="module")
def examiner():
    with Examiner(training=False, patience=0.2) as examiner:
        yield examiner


@pytest.mark.parametrize("attack", PACKAGE_ATTACKS, ids=lambda attack: attack.name)
def test_no_points_for_an_attack_from_the_package(attack, examiner):
    names = ["compute_gae"]
    verdicts = examiner.examine(attacked_package(attack), names)
    assert {name: verdict.score for name, verdict in verdicts.items() if verdict.score} == {}, attack.says
    assert list(Path("/tmp").glob("owned-by-a-*")) == []


def test_after_all_attacks_the_examiner_still_gives_full_marks(examiner):
    solution = {path.name: path.read_bytes() for path in Path("solutions").glob("*.py")}
    verdict = examiner.examine(solution, ["compute_gae"])["compute_gae"]
    assert (verdict.score, verdict.messages) == (verdict.max, ())
