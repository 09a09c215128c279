"""What students must not get, looked for in what they would get."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

HIDDEN = Path(__file__).resolve().parent.parent  # the hidden tests
# nbgrader's markers, and the name of that package
FORBIDDEN = ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", HIDDEN.name)
LONG = 24  # characters from which on a line says something


def leaks(files: Mapping[str, bytes], secret_lines: Collection[str]) -> list[str]:
    """A sentence for each file that holds something hidden; none when all is well.

    Args:
        files: path and content.
        secret_lines: looked for as whole lines of Python files and notebook cells.
    """
    found = []
    for name, content in files.items():
        hits = [word for word in FORBIDDEN if word.encode() in content]
        hits += sorted(_lines(name, content).intersection(secret_lines))
        if hits:
            found.append(f"{name} holds {hits[0]!r}" + (f" and {len(hits) - 1} more" if hits[1:] else ""))
    return found


def copies_of_hidden_tests(files: Mapping[str, bytes]) -> list[str]:
    """A sentence for each file that is, or holds, one of the hidden tests' modules.

    The workbench may speak of the hidden tests, as the doctor does, but not hold them: their first lines tell.
    """
    first_lines = {path.name: path.read_bytes().splitlines()[0] for path in sorted(HIDDEN.glob("*.py"))}
    return [
        f"{name} holds {HIDDEN.name}/{module}"
        for name, content in files.items()
        for module, line in first_lines.items()
        if line in content
    ]


def _lines(name: str, content: bytes) -> set[str]:
    """The stripped lines of a Python file or of a notebook's cells; none of any other file."""
    if name.endswith(".ipynb"):
        text = "\n".join("".join(cell["source"]) for cell in json.loads(content)["cells"])
    elif name.endswith(".py"):
        text = content.decode()
    else:
        return set()
    return {line.strip() for line in text.splitlines()}
