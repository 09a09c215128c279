"""Functions and classes as text: to show a solution beside a student's code, and to restore a stub."""

import ast
import io
import re
import tokenize
from pathlib import Path

from .course import find
from .errors import LabError
from .runs import write_bytes
from .settings import MODULES

PRISTINE = Path(__file__).parent / "course" / "stubs"
TRAILING_COMMENTS = re.compile(
    r"(?:(?:[ \t]*\r?\n)*[ \t]+#[^\n]*(?:\n|\Z))*"
)  # indented ones, which ast does not see
MARKERS = re.compile(r"^ *### (?:BEGIN|END) SOLUTION\n", re.MULTILINE)


def extent(text: str, name: str) -> tuple[int, int] | None:
    """Where the function or class `name` stands in a module's text, decorators included; None when it is not there.

    Of several of one name the last counts, as for Python. In a text that does not parse, indented lines are taken to
    belong to the function.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return _extent_by_indentation(text, name)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [node for node in tree.body if isinstance(node, kinds) and node.name == name]
    if not found:
        return None
    first = min([found[-1].lineno, *(decorator.lineno for decorator in found[-1].decorator_list)])
    # ast counts lines as the tokenizer does: not at form feeds and the other ends that splitlines knows
    starts = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text)), len(text)]
    end = starts[min(found[-1].end_lineno, len(starts) - 1)]
    return starts[first - 1], TRAILING_COMMENTS.match(text, end).end()


def _extent_by_indentation(text: str, name: str) -> tuple[int, int] | None:
    match = re.search(
        rf"^(?:def|class) {re.escape(name)}\b.*\n(?:(?:[ \t)\]}}].*)?(?:\n|\Z))*",
        text,
        re.MULTILINE,
    )
    if match is None:
        return None
    start = match.start()
    while start > 0 and text.startswith("@", line := text.rfind("\n", 0, start - 1) + 1):  # its decorators
        start = line
    return start, match.start() + len(match[0].rstrip()) + 1


def text_of(path: Path, name: str) -> str:
    """Text of the function or class `name` of a module.

    Raises:
        LabError: when the file or the function is missing.
    """
    text, _ = _read(path)
    if (found := extent(text, name)) is None:
        raise LabError(f"{path} has no {name}")
    return MARKERS.sub("", text[slice(*found)])


def reset(name: str, folder: Path) -> str:
    """Put the stub of an exercise, or a whole module of stubs, back into the package in `folder`.

    What stood there is kept beside the module. Returns a sentence that says where.

    Raises:
        LabError: when there is no such exercise or module, the function is missing from its file, or the file would
            not parse any more.
    """
    if name in MODULES:
        path = folder / f"{name}.py"
        old, new = path.read_bytes() if path.exists() else b"", (PRISTINE / f"{name}.txt").read_bytes()
    else:
        exercise = find(name)
        name, path = exercise.name, folder / exercise.file
        text, encoding = _read(path)
        if (found := extent(text, name)) is None:
            raise LabError(f"{path} has no {name}: reset {exercise.module} puts the whole file back")
        stub = text_of(PRISTINE / f"{exercise.module}.txt", name)
        if "\r\n" in text:
            stub = stub.replace("\n", "\r\n")
        whole = text[: found[0]] + stub + text[found[1] :]
        if _parses(text) and not _parses(whole):
            raise LabError(
                f"{name} cannot be cut out of {path}: reset {exercise.module} puts the whole file back"
            )
        old, new = text[slice(*found)].encode(encoding), whole.encode(encoding)
    kept = _free_name(folder / f"{name}.old-1.txt")
    write_bytes(kept, old)
    write_bytes(path.resolve(), new)
    return f"{name} is as it was in the beginning. What you had is in {folder.name}/{kept.name}."


def _read(path: Path) -> tuple[str, str]:
    """Text of a Python file, its line ends as they are, and its encoding.

    Raises:
        LabError: when it is missing or is no text.
    """
    if not path.is_file():
        raise LabError(f"{path} is missing")
    content = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding), encoding
    except (SyntaxError, UnicodeDecodeError):
        return content.decode(
            "latin-1"
        ), "latin-1"  # every byte is a character of it, and comes back as it was


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _free_name(path: Path) -> Path:
    """`NAME.old-1.txt`, or the first number after it that is free."""
    number = 1
    while path.exists():
        number += 1
        path = path.with_name(re.sub(r"old-\d+", f"old-{number}", path.name))
    return path
