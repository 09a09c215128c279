"""Which wrong implementation of the bank the hidden tests catch, and whether on its own exercise only."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from grader_tests.examiner import Examiner, reference_modules
from rlhf_lab.course import exercises
from tests.bank import Entry, entries

from .paths import ROOT
from .tables import markdown_table, write_table

DOCS = ROOT / "docs" / "grading.md"

_examiner: Examiner | None = None  # of this process


@dataclass(frozen=True)
class Sentence:
    """What the examiner said about one implementation.

    Attributes:
        score, max: of the exercise that the implementation is of.
        elsewhere: the other exercises that lost points.
        messages: of its own exercise.
    """

    entry: Entry
    score: float
    max: float
    elsewhere: tuple[str, ...]
    messages: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether this is what a fair grader says."""
        return not self.elsewhere and (self.score == self.max) == self.entry.correct


def examine_bank(names: list[str], training: bool = True) -> list[Sentence]:
    """What the examiner says about every implementation of the bank of these exercises, or of all.

    Each is examined for all of them, so that one which costs points elsewhere is seen.
    """
    names = names or list(exercises())
    jobs = [(name, at, names, training) for name in names for at in range(len(entries(name)))]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context) as pool:
        return list(pool.map(_examine, jobs, chunksize=8))


def _examine(job: tuple[str, int, list[str], bool]) -> Sentence:
    global _examiner
    name, at, names, training = job
    if _examiner is None:
        _examiner = Examiner(training=training, naming=False)
        # the solution's own verdicts are looked up from here on
        _examiner.examine(package_of(None), names)
    entry = entries(name)[at]
    verdicts = _examiner.examine(package_of(entry), names)
    elsewhere = tuple(n for n, verdict in verdicts.items() if n != name and verdict.score < verdict.max)
    own = verdicts[name]
    return Sentence(entry, own.score, own.max, elsewhere, own.messages)


def package_of(entry: Entry | None) -> dict[str, bytes]:
    """The files of a submission that holds this implementation and the solution otherwise."""
    files = {f"{stage}.py": text.encode() for stage, text in reference_modules().items()}
    if entry is not None:
        module = exercises()[entry.exercise].module
        files[f"{module}.py"] = entry.source(module).encode()
    return files


def kill_table(sentences: list[Sentence]) -> str:
    """The table as Markdown."""
    columns = "exercise", "wrong", "caught", "on the right exercise only", "correct variants", "accepted"
    rows = []
    for name in dict.fromkeys(sentence.entry.exercise for sentence in sentences):
        number = exercises()[name].number
        rows.append(_row(f"{number} `{name}`", [s for s in sentences if s.entry.exercise == name]))
    return markdown_table(columns, [*rows, _row("all", sentences)])


def _row(title: str, sentences: list[Sentence]) -> tuple[object, ...]:
    wrong = [s for s in sentences if not s.entry.correct]
    right = [s for s in sentences if s.entry.correct]
    caught = [s for s in wrong if s.score < s.max]
    return (
        title,
        len(wrong),
        len(caught),
        sum(not s.elsewhere for s in caught),
        len(right),
        sum(s.right for s in right),
    )


def main(names: list[str]) -> int:
    """Print the table, and every implementation that was not judged fairly; 1 when there is one.

    The table of the whole bank is also written to the docs.
    """
    sentences = examine_bank(names, training=False)
    table = kill_table(sentences)
    print(table)
    if not names:
        write_table(DOCS, "kills", table)
    unfair = [sentence for sentence in sentences if not sentence.right]
    for s in unfair:
        print(complaint(s))
    return 1 if unfair else 0


def complaint(sentence: Sentence) -> str:
    """Why a sentence is not fair, in one line."""
    kind = "correct, refused" if sentence.entry.correct else "wrong, not caught"
    if sentence.elsewhere:
        kind = f"costs points of {', '.join(sentence.elsewhere)}"
    marks = f"{sentence.score:g}/{sentence.max:g} {' '.join(sentence.messages)}"
    return f"{sentence.entry.exercise}: {kind}: {sentence.entry.says} {marks}"
