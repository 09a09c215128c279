"""The rounds that were played, in `runs/cloze.json` beside the student's package."""

import statistics
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import LabError
from ..runs import read_json, set_aside, write_json

SHOWN = 12  # rounds in the table
ENDS = 5  # rounds at each end that the trend compares
NUMBERS = ("seed", "share", "points", "of", "seconds", "hints")


class Scores:
    """The scores of one learner.

    Args:
        folder: the student's package, `rlhf_exercises`.
    """

    def __init__(self, folder: Path):
        self.path = folder.parent / "runs" / "cloze.json"

    def add(self, entry: dict) -> str:
        """Keep a round; a sentence where that is not possible, or where the file was damaged.

        A damaged file is moved aside, not overwritten.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_suffix(".lock"), timeout=20):
                entries, damaged = self._read()
                aside = set_aside(self.path) if damaged else None
                write_json(self.path, [*entries, entry])
        except (OSError, Timeout, LabError) as error:
            return f"(the score is not kept: {error})"
        return (
            f"({self.path.name} was damaged: it is kept as {aside.name}, and a new one begun)"
            if aside
            else ""
        )

    def rounds(self) -> list[dict]:
        """All rounds that are kept, the oldest first."""
        return [entry for entry in self._read()[0] if _is_round(entry)]

    def _read(self) -> tuple[list, bool]:
        """What the file holds, and whether it is damaged."""
        if not self.path.exists():
            return [], False
        try:
            content = read_json(self.path)
        except (LabError, OSError):
            return [], True
        return (content, False) if isinstance(content, list) else ([], True)


def _is_round(entry) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("time"), str)
        and isinstance(entry.get("snippet"), str)
        and all(type(entry.get(key)) in (int, float) for key in NUMBERS)
        and entry["of"] > 0
    )


def percent(entry: dict) -> float:
    """The points of a round, of a hundred."""
    return 100 * entry["points"] / entry["of"]


def to_table(rounds: list[dict]) -> str:
    """The last rounds and the trend, as text."""
    if not rounds:
        return "No round has been played yet."
    lines = [
        f"{'when (UTC)':17} {'snippet':20} {'seed':>5} {'share':>6} {'points':>9} {'hints':>6} {'time':>6}"
    ]
    for entry in rounds[-SHOWN:]:
        points = f"{entry['points']} / {entry['of']}"
        bar = "#" * round(percent(entry) / 10)
        lines.append(
            f"{entry['time'][:16].replace('T', ' '):17} {entry['snippet'][:20]:20} {entry['seed']:>5} {entry['share']:>6.0%} "
            f"{points:>9} {entry['hints']:>6} {entry['seconds']:>4} s  {bar:10} {percent(entry):.0f} %"
        )
    if len(rounds) > SHOWN:
        lines.insert(1, f"... {len(rounds) - SHOWN} earlier rounds")
    return "\n".join([*lines, trend(rounds)])


def trend(rounds: list[dict]) -> str:
    """The first rounds beside the last ones, in a sentence."""
    ends = min(ENDS, len(rounds) // 2)
    if not ends:
        return "One round: the trend begins with the second one."
    first, last = (statistics.fmean(map(percent, part)) for part in (rounds[:ends], rounds[-ends:]))
    which = "The first round" if ends == 1 else f"The first {ends} rounds"
    return f"{len(rounds)} rounds. {which}: {first:.0f} % of the points. The last {'one' if ends == 1 else ends}: {last:.0f} %."
