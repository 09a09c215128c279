"""A notebook before it is handed in: its marked cells are what grading finds answers by."""

import stat
import warnings
from collections.abc import Iterator
from pathlib import Path

import nbformat

from .. import clinic
from ..clinic.answers import read_answers
from .finding import Finding
from .handin import released_cells

MOST_BYTES = 2**26  # of a notebook with its outputs: what grading takes
DIAGNOSES, CLINIC = (
    "diagnoses",
    "clinic",
)  # the cell with the clinic's answers, and the one that has their points


def examine_notebook(name: str, path: Path) -> Iterator[Finding]:
    """Say what is so with the notebook that was released as `name`."""
    cells = _read(path)
    if isinstance(cells, str):
        yield Finding("problem", path.name, cells)
        return
    released = released_cells()[name]
    by_mark: dict[str, list] = {cell["grade_id"]: [] for cell in released}
    unmarked = 0
    for cell in cells:
        mark, by_id = _mark(cell), str(cell.get("id", "")).removeprefix(f"{name}-")
        if mark is None and by_id in by_mark:
            unmarked += 1
            by_mark[by_id].append(cell)
        elif mark in by_mark:
            by_mark[mark].append(cell)
        elif mark is not None:
            yield Finding(
                "warning", path.name, f"a cell is marked {mark[:60]!r}, which was not released: ignored"
            )
    if not any(by_mark.values()):
        sentence = (
            "no cell has the mark that grading finds it by: take a fresh copy, and copy your answers into it"
        )
        yield Finding("problem", path.name, sentence)
        return
    if unmarked:
        sentence = f"{_cells(unmarked)} lost the nbgrader marks in another editor: grading puts them back"
        yield Finding("warning", path.name, sentence)
    whole = True
    for cell in released:
        for status, sentence in _differences(cell, by_mark[cell["grade_id"]]):
            whole = False
            yield Finding(status, path.name, f"cell {cell['grade_id']}: {sentence}")
    if whole and not unmarked:
        yield Finding("ok", path.name, f"all {len(released)} marked cells are there, as they were released")
    for cell in released:
        mine = by_mark[cell["grade_id"]]
        if cell["grade"] and cell["solution"] and mine and _untouched(cell, mine[0]):
            sentence = f"{cell['grade_id']} is not answered yet ({cell['points']:g} points)"
            yield Finding("warning", path.name, sentence)
        if cell["grade_id"] == CLINIC:
            yield from _clinic(path, cell["points"], cells)


def _read(path: Path) -> list | str:
    """The cells of a notebook, or a sentence that says why it cannot be read."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return "is a link, which is not handed in: put the file itself here"
        if not stat.S_ISREG(status.st_mode):
            return "is no ordinary file"
        if status.st_size > MOST_BYTES:
            return f"has {status.st_size / 1e6:.0f} MB: clear its outputs (Edit, Clear Outputs of All Cells) and save"
        content = path.read_bytes()
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # two cells of one id get another one: their marks are what counts
            notebook = nbformat.reads(content.decode("utf-8-sig"), as_version=4)
            nbformat.validate(notebook)
        return notebook.cells
    except Exception:  # nbformat raises whatever a malformed file leads it to
        return _what_it_is(content)


def _what_it_is(content: bytes) -> str:
    if b"<<<<<<<" in content and b">>>>>>>" in content:
        return (
            "has unresolved merge conflicts (lines with <<<<<<<): take them out, or begin with a fresh copy"
        )
    kinds = {
        b"PK": "a zip archive: unpack it",
        b"<": "a web page: download the notebook itself",
        b"": "an empty file",
    }
    start = content.lstrip()[:2]
    kind = next(
        (kind for head, kind in kinds.items() if start == head or head and start.startswith(head)), None
    )
    return (
        f"is no notebook but {kind}"
        if kind
        else "is no valid notebook: open it in JupyterLab, and save it again"
    )


def _mark(cell) -> str | None:
    entry = cell.metadata.get("nbgrader")
    mark = entry.get("grade_id") if isinstance(entry, dict) else None
    return mark if isinstance(mark, str) else None


def _differences(released: dict, mine: list) -> Iterator[tuple[str, str]]:
    """Status and sentence for whatever differs from the cell that was released."""
    written = released["solution"] and (released["grade"] or released["grade_id"] == DIAGNOSES)
    if not mine:
        if written:
            yield (
                "problem",
                "it is missing, and with it your answer: take it from a fresh copy of the notebook",
            )
        else:
            yield "warning", "it is missing: grading puts it back"
        return
    if len(mine) > 1:
        yield "warning", "it is there more than once: put what you wrote into one, and delete the others"
    cell = mine[0]
    if cell.cell_type != released["cell_type"]:
        yield (
            "warning",
            f"it is a {cell.cell_type} cell and was a {released['cell_type']} cell: change it back",
        )
    if released["locked"] and cell.source.strip() != released["source"].strip():
        yield "warning", "its text was changed: grading puts the released text back"
    marks = {key for key in released if key not in ("cell_type", "source")}
    entry = cell.metadata.get("nbgrader")
    if isinstance(entry, dict) and any(entry.get(key) != released[key] for key in marks):
        yield "warning", "its nbgrader marks were changed: grading puts them back"


def _untouched(released: dict, cell) -> bool:
    return cell.source.strip() in ("", released["source"].strip())


def _clinic(path: Path, points: float, cells: list) -> Iterator[Finding]:
    """The answers of the clinic, in whichever cells they are: what cannot be read, and how many are right."""
    answers: dict[str, str] = {}
    for cell in cells:
        if cell.cell_type == "code" and _mark(cell) != CLINIC and "diagnoses" in cell.source:
            some, problems = read_answers(cell.source)
            answers |= some
            for sentence in problems:
                yield Finding("problem", path.name, f"{sentence}: it does not count")
    share, cases = clinic.grade_fraction(answers), len(clinic.CASES)
    sentence = (
        "no case has a diagnosis yet" if not answers else f"{share * cases:.0f} of {cases} cases are right"
    )
    yield Finding("ok" if share == 1 else "warning", "4 clinic", sentence, points * share, points)


def _cells(number: int) -> str:
    return f"{number} cell{'s' if number != 1 else ''}"
