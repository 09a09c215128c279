"""Where a student stands: the last check of each exercise, kept in `runs/progress-PACKAGE.json` beside their package."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from .checks import Report, check
from .checks.known import known_text
from .course import HINT_STEPS, Exercise, find
from .doctor.handin import asked_exercises
from .errors import LabError
from .runs import read_json, write_json
from .settings import MODULES

IN_WORDS = {
    "passed": "done",
    "failed": "not right yet",
    "waits": "waits for another exercise",
    "not written": "not done yet",
    "broken": "the file cannot be read",
}


@dataclass(frozen=True)
class Standing:
    """An exercise and the state that its check found it in."""

    exercise: Exercise
    state: str

    @property
    def points(self) -> int:
        return self.exercise.points if self.state == "passed" else 0


class Progress:
    """The states of one student's package.

    Args:
        folder: the package, `rlhf_exercises`.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = folder.parent / "runs" / f"progress-{folder.name}.json"

    def asked_for(self) -> tuple[list[Exercise], str]:
        """The exercises of the assignment that the package lies in, or of the course, and a sentence about the others
        (see `asked_exercises`)."""
        return asked_exercises(self.folder.parent)

    def record(self, report: Report) -> str:
        """Keep what a check found, for the files as they are now; a sentence where it cannot be kept."""
        entry = {"state": report.state, "files": self._fingerprint(report.exercise)}
        try:
            with self._open() as entries:
                entries[report.exercise.name] = entry
        except LabError as error:
            return f"(the result is not kept: {error})"
        return ""

    def standings(self) -> list[Standing]:
        """Every exercise that is asked for here; those whose files have changed since their last check are checked
        again.

        Raises:
            KeyboardInterrupt: when a check is stopped.
        """
        kept, standings = self._read(), []
        for exercise in self.asked_for()[0]:
            entry = kept.get(exercise.name, {})
            state = entry.get("state")
            if state not in IN_WORDS or entry.get("files") != self._fingerprint(exercise):
                report = check(exercise.name, self.folder)
                if report.state == "stopped":
                    raise KeyboardInterrupt
                self.record(report)
                state = report.state
            standings.append(Standing(exercise, state))
        return standings

    def asked(self, what: str) -> int:
        """How often `what` has been asked for, this time included.

        Raises:
            LabError: when it cannot be kept.
        """
        with self._open() as entries:
            count = entries.get(what, {}).get("asked")
            entries[what] = {"asked": count + 1 if isinstance(count, int) else 1}
            return entries[what]["asked"]

    @contextmanager
    def _open(self) -> Iterator[dict]:
        """All entries, to be changed; written at the end. One process at a time."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_suffix(".lock"), timeout=20):
                entries = self._read()
                yield entries
                write_json(self.path, entries)
        except (OSError, Timeout) as error:
            raise LabError(f"{self.path} could not be written: {error}") from None

    def _fingerprint(self, exercise: Exercise) -> str:
        """Hash of the modules up to the exercise's own, of the student's other files, and of the check itself."""
        later = {f"{module}.py" for module in MODULES[MODULES.index(exercise.module) + 1 :]}
        digest = hashlib.sha256(known_text(exercise.name).encode())
        for path in sorted(self.folder.rglob("*.py")):
            name = path.relative_to(self.folder).as_posix()
            if name not in later:
                digest.update(name.encode() + path.read_bytes())
        return digest.hexdigest()

    def _read(self) -> dict[str, dict]:
        """What is kept; what is missing or damaged is begun anew, since every check can be run again."""
        try:
            content = read_json(self.path)
        except (LabError, OSError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {name: entry for name, entry in content.items() if isinstance(entry, dict)}


def to_table(progress: Progress) -> str:
    """The standings as text, with the points at the end.

    Raises:
        KeyboardInterrupt: when a check is stopped.
    """
    rows = [
        (s.exercise.number, s.exercise.name, s.points, s.exercise.points, IN_WORDS[s.state])
        for s in progress.standings()
    ]
    total = ("", "", sum(row[2] for row in rows), sum(row[3] for row in rows), "by the visible checks")
    lines = [f"{'':4} {'exercise':<30} {'points':>7}   state"]
    lines += [
        f"{number:4} {name:<30} {got:>2} / {of:<2}   {state}"
        for number, name, got, of, state in [*rows, total]
    ]
    _, others = progress.asked_for()
    return "\n".join([*lines, others]).rstrip()


def next_hint(name: str, step: int | None, progress: Progress) -> tuple[str, str]:
    """Title and text (Markdown) of an exercise's next hint, or of hint `step`; after the last one that one again.

    Raises:
        LabError: when there is no such exercise or no such hint.
    """
    exercise = find(name)
    if step is not None and step not in range(1, len(HINT_STEPS) + 1):
        raise LabError(f"there are {len(HINT_STEPS)} hints, and no hint {step}")
    step = step or min(progress.asked(f"hint {exercise.name}"), len(HINT_STEPS))
    title = f"{exercise.number} {exercise.name}, hint {step} of {len(HINT_STEPS)}: {HINT_STEPS[step - 1]}"
    return title, exercise.hints[step - 1]
