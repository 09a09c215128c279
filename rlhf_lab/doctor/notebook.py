"""A notebook before it is handed in: its marked cells are what grading finds answers by."""

import stat
import warnings
from collections.abc import Iterator
from pathlib import Path

from .. import clinic
from ..clinic.answers import read_answers
from ..settings import NOTEBOOK_BYTES
from .cells import MARKS, MISSING, TEXT, TWICE, TYPE, is_same_text, mark_of, oddities
from .finding import Finding
from .handin import released_cells

SENTENCES = {
    MISSING: "it is missing: grading puts it back",
    TWICE: "it is there more than once: put what you wrote into one, and delete the others",
    TYPE: "it was a {cell_type} cell: change it back",
    MARKS: "its nbgrader marks were changed: grading puts them back",
    TEXT: "its text was changed: grading puts the released text back",
}
ANSWER_MISSING = "it is missing, and with it your answer: take it from a fresh copy of the notebook"


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
        mark, by_id = mark_of(cell).get("grade_id"), str(cell.get("id", "")).removeprefix(f"{name}-")
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
        if cell["grade_id"] == clinic.NAME:
            yield from _clinic(path, cell["points"], cells)


def _read(path: Path) -> list | str:
    """The cells of a notebook, or a sentence that says why it cannot be read."""
    import nbformat  # it takes long, and what asks only for a folder's exercises does without it

    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return "is a link, which is not handed in: put the file itself here"
        if not stat.S_ISREG(status.st_mode):
            return "is no ordinary file"
        if status.st_size > NOTEBOOK_BYTES:
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


def _differences(released: dict, mine: list) -> Iterator[tuple[str, str]]:
    """Status and sentence for whatever differs from the cell that was released."""
    is_answer = released["solution"] and (released["grade"] or released["grade_id"] == clinic.ANSWERS)
    for oddity in oddities(released, mine):
        if oddity == MISSING and is_answer:
            yield "problem", ANSWER_MISSING
        else:
            yield "warning", SENTENCES[oddity].format(cell_type=released["cell_type"])


def _untouched(released: dict, cell) -> bool:
    return not cell.source.strip() or is_same_text(cell.source, released["source"])


def _clinic(path: Path, points: float, cells: list) -> Iterator[Finding]:
    """The answers of the clinic, in whichever cells they are: what cannot be read, and how many are right."""
    answers: dict[str, str] = {}
    for cell in cells:
        holds_points = mark_of(cell).get("grade_id") == clinic.NAME
        if cell.cell_type == "code" and not holds_points and clinic.ANSWERS in cell.source:
            some, problems = read_answers(cell.source)
            answers |= some
            for sentence in problems:
                yield Finding("problem", path.name, f"{sentence}: it does not count")
    share, cases = clinic.grade_fraction(answers), len(clinic.CASES)
    sentence = (
        "no case has a diagnosis yet" if not answers else f"{share * cases:.0f} of {cases} cases are right"
    )
    yield Finding(
        "ok" if share == 1 else "warning", f"{clinic.NUMBER} {clinic.NAME}", sentence, points * share, points
    )


def _cells(number: int) -> str:
    return f"{number} cell{'s' if number != 1 else ''}"
