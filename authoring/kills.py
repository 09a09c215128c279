"""Which wrong implementation of the bank the visible checks catch, and whether they name the mistake."""

from dataclasses import dataclass, replace
from unittest import mock

from rlhf_lab.checks import run
from rlhf_lab.checks.known import Known, load_known
from rlhf_lab.course import Exercise, exercises
from rlhf_lab.student_code import fresh_code
from tests.bank import Entry, entries

from .known import package_with


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


def try_entry(entry: Entry, exercise: Exercise) -> Kill:
    """Run the check of its exercise on one implementation."""
    known = load_known(exercise.name)
    unseen = replace(known, mistakes=[m for m in known.mistakes if m.name != entry.says])
    with package_with(entry, exercise) as folder, fresh_code(folder) as code:
        report = run.check_code(exercise, code, folder / exercise.file)
        with mock.patch.object(run, "load_known", lambda name: unseen if name == exercise.name else load_known(name)):
            blind = run.check_code(exercise, code, folder / exercise.file)
    return Kill(entry, report.state, report.mistake, blind.mistake)


def kill_table(names: list[str]) -> tuple[str, list[Kill]]:
    """The table as Markdown, and everything that it counts."""
    rows, kills = [], []
    for name in names or exercises():
        exercise = exercises()[name]
        tried = [try_entry(entry, exercise) for entry in entries(name)]
        kills += tried
        rows.append((f"{exercise.number} `{name}`", *_counts(tried)))
    rows.append(("all", *_counts(kills)))
    head = (
        "| exercise | wrong | caught by name | of these, named when never seen before | caught without a name "
        "| left for the hidden test | correct variants | accepted |\n|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *(f"| {' | '.join(map(str, row))} |" for row in rows)]), kills


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
