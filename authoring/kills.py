"""Which wrong implementation of the bank the visible checks catch, and whether they name the mistake."""

from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_lab.checks.known import load_known
from rlhf_lab.checks.run import judge
from rlhf_lab.course import Exercise, exercises
from tests.bank import Entry, entries

from .known import Shown
from .tables import markdown_table


@dataclass(frozen=True)
class Kill:
    """What the check said about one implementation.

    Attributes:
        state: of the report.
        named: the sentence that the check gave, or None.
        named_unseen: the same, when the check had never seen this implementation: what a student who makes a new
            variation of the mistake would read.
    """

    entry: Entry
    state: str
    named: str | None
    named_unseen: str | None


def judge_entries(exercise: Exercise, shown: Shown) -> list[Kill]:
    """What the check of an exercise says about each implementation of the bank, from what they showed."""
    known, file = load_known(exercise.name), Path(exercise.file)
    kills = []
    for entry in entries(exercise.name):
        unseen = replace(known, mistakes=[m for m in known.mistakes if m.name != entry.says])
        report = judge(exercise, file, shown[entry], known)
        blind = judge(exercise, file, shown[entry], unseen)
        kills.append(Kill(entry, report.state, report.mistake, blind.mistake))
    return kills


def kill_table(shown: dict[str, Shown]) -> tuple[str, list[Kill]]:
    """The table as Markdown, and everything that it counts, from what the bank showed in each exercise."""
    rows, kills = [], []
    for name, of_exercise in shown.items():
        exercise = exercises()[name]
        tried = judge_entries(exercise, of_exercise)
        kills += tried
        rows.append((f"{exercise.number} `{name}`", *_counts(tried)))
    rows.append(("all", *_counts(kills)))
    columns = (
        "exercise", "wrong", "caught by name", "of these, named when never seen before", "caught without a name",
        "left for the hidden test", "correct variants", "accepted",
    )  # fmt: skip
    return markdown_table(columns, rows), kills


def _counts(kills: list[Kill]) -> tuple[int, ...]:
    wrong = [kill for kill in kills if not kill.entry.correct]
    right = [kill for kill in kills if kill.entry.correct]
    caught = [kill for kill in wrong if kill.state != "passed"]
    return (
        len(wrong),
        sum(kill.named is not None for kill in caught),
        sum(kill.named_unseen is not None for kill in caught),
        sum(kill.named is None for kill in caught),
        len(wrong) - len(caught),
        len(right),
        sum(kill.state == "passed" for kill in right),
    )
