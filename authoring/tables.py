"""Tables that a command writes into a page that is otherwise written by hand: each stands between two marks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def markdown_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; a line break in a cell becomes a space."""
    head = list(columns)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)])


def table_of_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """A Markdown table whose columns are the names that every row has."""
    return markdown_table(rows[0], (row.values() for row in rows))


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").split())


def with_table(text: str, name: str, table: str) -> str:
    """The page with `table` in the place of the one called `name`: `<!-- NAME: written by ... -->`, `<!-- end of NAME -->`.

    Raises:
        ValueError: when the page has no such marks.
    """
    marks = re.compile(
        rf"(<!-- {re.escape(name)}: [^\n]*-->\n).*?(<!-- end of {re.escape(name)} -->)", re.DOTALL
    )
    written, times = marks.subn(lambda match: f"{match[1]}{table.strip()}\n{match[2]}", text)
    if times != 1:
        raise ValueError(f"the page has {times} places for the table {name!r}, not one")
    return written


def write_table(path: Path, name: str, table: str) -> None:
    path.write_text(with_table(path.read_text(encoding="utf-8"), name, table), encoding="utf-8")
