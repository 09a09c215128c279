"""Functions and classes as text: to show a solution beside a student's code, and to restore a stub."""

import re
from pathlib import Path

from .course import Exercise
from .errors import LabError
from .runs import write_bytes

PRISTINE = Path(__file__).parent / "course" / "stubs"
MARKERS = re.compile(r"^ *### (?:BEGIN|END) SOLUTION\n", re.MULTILINE)


def extent(text: str, name: str) -> tuple[int, int] | None:
    """Where the function or class `name` stands in a module's text, decorators included; None when it is not there.

    Goes by lines that are indented, so that it also works where the file does not parse.
    """
    match = re.search(
        rf"^(?:@.*\n)*(?:def|class) {re.escape(name)}\b.*\n(?:(?:[ \t)\]}}].*)?(?:\n|\Z))*", text, re.MULTILINE
    )
    if match is None:
        return None
    return match.start(), match.start() + len(match[0].rstrip()) + 1


def text_of(path: Path, name: str) -> str:
    """Text of the function or class `name` of a module.

    Raises:
        LabError: when the file or the function is missing.
    """
    if not path.is_file():
        raise LabError(f"{path} is missing")
    text = path.read_text(encoding="utf-8")
    if (found := extent(text, name)) is None:
        raise LabError(f"{path} has no {name}")
    return MARKERS.sub("", text[slice(*found)])


def reset(exercise: Exercise, folder: Path) -> Path:
    """Put the stub of `exercise` back into the package in `folder`; return where the old text is kept.

    Raises:
        LabError: when the file or the function is missing from it.
    """
    path = folder / exercise.file
    text_of(path, exercise.name)  # it has to be there
    text = path.read_text(encoding="utf-8")
    start, end = extent(text, exercise.name)
    stub = text_of(PRISTINE / f"{exercise.module}.txt", exercise.name)
    kept = _free_name(folder / f"{exercise.name}.old-1.txt")
    write_bytes(kept, text[start:end].encode())
    write_bytes(path, (text[:start] + stub + text[end:]).encode())
    return kept


def reset_module(module: str, folder: Path) -> Path | None:
    """Put a whole module of stubs back; return where the old file is kept, or None when there was none."""
    path, kept = folder / f"{module}.py", None
    if path.exists():
        kept = _free_name(folder / f"{module}.old-1.txt")
        path.replace(kept)
    write_bytes(path, (PRISTINE / f"{module}.txt").read_bytes())
    return kept


def _free_name(path: Path) -> Path:
    """`NAME.old-1.txt`, or the first number after it that is free."""
    number = 1
    while path.exists():
        number += 1
        path = path.with_name(re.sub(r"old-\d+", f"old-{number}", path.name))
    return path
