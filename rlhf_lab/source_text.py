"""Functions and classes as text: to show a solution beside a student's code, and to restore a stub."""

import re
from pathlib import Path

from .course import find
from .errors import LabError
from .runs import write_bytes
from .settings import STAGES

PRISTINE = Path(__file__).parent / "course" / "stubs"
MARKERS = re.compile(r"^ *### (?:BEGIN|END) SOLUTION\n", re.MULTILINE)


def extent(text: str, name: str) -> tuple[int, int] | None:
    """Where the function or class `name` stands in a module's text, decorators included; None when it is not there.

    Goes by lines that are indented, so that it also works where the file does not parse.
    """
    match = re.search(
        rf"^(?:@.*\n)*(?:def|class) {re.escape(name)}\b.*\n(?:(?:[ \t)\]}}].*)?(?:\n|\Z))*",
        text,
        re.MULTILINE,
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


def reset(name: str, folder: Path) -> str:
    """Put the stub of an exercise, or a whole module of stubs, back into the package in `folder`.

    What stood there is kept beside the module. Returns a sentence that says where.

    Raises:
        LabError: when there is no such exercise or module, or the function is missing from its file.
    """
    if name in STAGES:
        path = folder / f"{name}.py"
        old, new = path.read_bytes() if path.exists() else b"", (PRISTINE / f"{name}.txt").read_bytes()
    else:
        exercise = find(name)
        path = folder / exercise.file
        stub = text_of(PRISTINE / f"{exercise.module}.txt", name)
        text_of(path, name)  # it has to be there
        text = path.read_text(encoding="utf-8")
        start, end = extent(text, name)
        old, new = text[start:end].encode(), (text[:start] + stub + text[end:]).encode()
    kept = _free_name(folder / f"{name}.old-1.txt")
    write_bytes(kept, old)
    write_bytes(path, new)
    return f"{name} is as it was in the beginning. What you had is in {folder.name}/{kept.name}."


def _free_name(path: Path) -> Path:
    """`NAME.old-1.txt`, or the first number after it that is free."""
    number = 1
    while path.exists():
        number += 1
        path = path.with_name(re.sub(r"old-\d+", f"old-{number}", path.name))
    return path
