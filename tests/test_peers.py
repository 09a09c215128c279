"""Our DPO and GRPO agree with TRL's where they are meant to. Speed is measured by `python -m authoring peers` only."""

import pytest

pytest.importorskip("trl", reason="TRL is not installed: pip install -c constraints.txt -e '.[peers]'")

from authoring import peers  # noqa: E402  it is of no use without TRL


@pytest.fixture(scope="module")
def comparisons():
    return peers.compare_values()


def test_every_quantity_agrees_or_differs_as_the_page_says(comparisons):
    assert [one for one in comparisons if not one.as_expected] == []
    assert {one.quantity.split(":")[0].strip("`") for one in comparisons if one.agrees} == {
        "sequence_logprobs",
        "dpo_loss",
        "group_advantages",
        "grpo_loss",
    }


def test_a_difference_is_seen(monkeypatch):
    ours = peers.dpo.dpo_loss
    monkeypatch.setattr(peers.dpo, "dpo_loss", lambda *logprobs, beta: ours(*logprobs, beta=beta * 1.001))
    wrong = {one.quantity for one in peers.compare_values() if not one.as_expected}
    assert wrong == {"`dpo_loss`: loss", "`dpo_loss`: its gradient", "`dpo_loss`: mean implicit rewards"}
