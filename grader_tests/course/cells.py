"""Put a submitted notebook back together on the released one.

The released notebook is the skeleton: every cell that nbgrader knows comes from it, and of the student's notebook only
the text of the cells that were to be written is put in. So it does not matter to grading what became of the notebook on
its way: cells copied, split, deleted, retyped, moved, all marks lost. What else the student wrote stays visible, as
plain cells in its place.
"""

import copy
from collections import defaultdict
from difflib import SequenceMatcher

import nbformat
from nbformat import NotebookNode

from rlhf_lab.doctor.cells import MARKS, MISSING, TEXT, TWICE, TYPE, is_same_text, mark_of, oddities

SENTENCES = {
    MISSING: "The cell {name} was missing: the released one stands in its place.",
    TWICE: "The cell {name} was there {times} times: what was written was put together.",
    TYPE: "The cell {name} was of another type: its text was taken.",
    MARKS: "The marks of the cell {name} were changed: the released ones count.",
    TEXT: "The cell {name}, which is not to be edited, was changed: the released one counts.",
}


def restore(submitted: NotebookNode, released: NotebookNode) -> tuple[NotebookNode, list[str]]:
    """The submission as a notebook with the released one's marks, and a sentence for each thing that was odd.

    Of several cells that are copies or pieces of one, all different texts count, in their order.
    """
    places = _Places(submitted.cells, released.cells)
    restored = copy.deepcopy(released)
    restored.cells = list(places.extras(-1))
    for place, cell in enumerate(released.cells):
        restored.cells += [_put_together(cell, places.found[place]), *places.extras(place)]
    return restored, _remarks(submitted.cells, released.cells, places)


def is_written(cell: NotebookNode) -> bool:
    """Whether it is the student who writes a released cell."""
    return bool(mark_of(cell).get("solution"))


class _Places:
    """Where in the released notebook each submitted cell belongs.

    Attributes:
        found: the submitted cells for each released one, by its number; none for what was deleted.
        unmarked: numbers of released cells with a mark that were found although their own was lost.
    """

    def __init__(self, submitted: list[NotebookNode], released: list[NotebookNode]):
        self._submitted, self._released = submitted, released
        self._place: list[int | None] = [None] * len(submitted)
        self._by_grade_id()
        self.unmarked: set[int] = set()
        self._by_cell_id()
        self._by_neighbours()
        self.found: dict[int, list[NotebookNode]] = defaultdict(list)
        self._extras: dict[int, list[NotebookNode]] = defaultdict(list)
        last = -1
        for number, (cell, place) in enumerate(zip(submitted, self._place, strict=True)):
            if place is not None:
                self.found[place].append(cell)
                last = place
            else:
                self._extras[last].append(_plain(cell, f"own-{number}"))

    def extras(self, place: int) -> list[NotebookNode]:
        """The student's own cells behind a released one; -1 for those in front of all."""
        return self._extras[place]

    def _by_grade_id(self) -> None:
        places = {mark["grade_id"]: n for n, cell in enumerate(self._released) if (mark := mark_of(cell))}
        for number, cell in enumerate(self._submitted):
            self._place[number] = places.get(mark_of(cell).get("grade_id"))

    def _by_cell_id(self) -> None:
        taken = set(self._place)
        places = {cell.id: n for n, cell in enumerate(self._released) if n not in taken}
        for number, cell in enumerate(self._submitted):
            if self._place[number] is None and cell.get("id") in places:
                self._settle(number, places.pop(cell.id))

    def _by_neighbours(self) -> None:
        """Align what is left: equal texts belong together, and what was written stands between equal neighbours."""
        taken = {place for place in self._place if place is not None}
        ours = [n if n in taken else cell.source.strip() for n, cell in enumerate(self._released)]
        theirs = [
            cell.source.strip() if place is None else place
            for cell, place in zip(self._submitted, self._place, strict=True)
        ]
        for kind, a, a_end, b, b_end in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
            if kind == "equal":
                for place, number in zip(range(a, a_end), range(b, b_end), strict=True):
                    if self._place[number] is None:
                        self._settle(number, place)
            elif kind == "replace":
                for place in range(a, a_end):
                    if place not in taken and is_written(self._released[place]):
                        self._most_like(place, [n for n in range(b, b_end) if self._place[n] is None])

    def _most_like(self, place: int, candidates: list[int]) -> None:
        """Settle one of the candidates: of the right type if there is one, with most lines of the released cell."""
        cell = self._released[place]
        lines = set(cell.source.splitlines())

        def likeness(number: int) -> tuple[bool, int]:
            other = self._submitted[number]
            return other.cell_type == cell.cell_type, len(lines.intersection(other.source.splitlines()))

        if candidates:
            self._settle(max(candidates, key=likeness), place)

    def _settle(self, number: int, place: int) -> None:
        self._place[number] = place
        if mark_of(self._released[place]):
            self.unmarked.add(place)


def _put_together(released: NotebookNode, found: list[NotebookNode]) -> NotebookNode:
    cell = copy.deepcopy(released)
    if not found:
        return cell
    if is_written(released):
        cell.source = _written(released, found)
    elif not mark_of(released) and not is_same_text(found[-1].source, released.source):
        return _plain(found[-1], released.id)  # an experiment with the course's own cell
    if cell.cell_type == "code":
        cell.outputs = _outputs(found[-1])
    return cell


def _written(released: NotebookNode, found: list[NotebookNode]) -> str:
    texts = dict.fromkeys(cell.source for cell in found if not is_same_text(cell.source, released.source))
    # the pieces of a split cell are joined as they were; in Markdown a blank line keeps two texts apart
    return ("\n" if released.cell_type == "code" else "\n\n").join(texts) or released.source


def _plain(cell: NotebookNode, cell_id: str) -> NotebookNode:
    """The student's cell without anything but its text, its outputs and, of Markdown, the pictures pasted into it."""
    new = {
        "code": nbformat.v4.new_code_cell,
        "markdown": nbformat.v4.new_markdown_cell,
    }.get(cell.cell_type, nbformat.v4.new_raw_cell)
    plain = new(cell.source, id=cell_id)
    if plain.cell_type == "code":
        plain.outputs = _outputs(cell)
    elif "attachments" in cell:
        plain.attachments = copy.deepcopy(cell.attachments)
    return plain


def _outputs(cell: NotebookNode) -> list[NotebookNode]:
    return copy.deepcopy(cell.get("outputs") or [])


def _remarks(submitted: list[NotebookNode], released: list[NotebookNode], places: _Places) -> list[str]:
    remarks = []
    if places.unmarked:
        remarks.append(
            "Cells have lost nbgrader's marks, as some editors make it happen: they were found by their place."
        )
    for place, cell in enumerate(released):
        if not (mark := mark_of(cell)):
            continue
        found = places.found[place]
        as_released = {**mark, "cell_type": cell.cell_type, "source": cell.source}
        remarks += [
            SENTENCES[oddity].format(name=mark["grade_id"], times=len(found))
            for oddity in oddities(as_released, found)
        ]
    known = {mark["grade_id"] for cell in released if (mark := mark_of(cell))}
    unknown = {mark["grade_id"] for cell in submitted if (mark := mark_of(cell))} - known
    if unknown:
        names = ", ".join(ascii(name)[:40] for name in sorted(unknown)[:5])
        remarks.append(f"Cells with marks that the assignment does not have ({names}) are plain cells now.")
    return remarks
