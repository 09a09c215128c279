"""What an assignment consists of before it is released: notebooks and packages, out of the authors' sources."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from nbformat import NotebookNode

from authoring.notebooks import instructor_notebook, student_notebook, to_text
from authoring.stubs import BEGIN, END, first_stub_line, stub_files
from rlhf_lab.course import exercises, select
from rlhf_lab.errors import LabError
from rlhf_lab.settings import STUB_PACKAGE

from .leaks import LONG
from .paths import WELCOME, Assignment

WHOLE = "rlhf"  # the assignment that is the whole course

BOX = re.compile(rf"\.\./{STUB_PACKAGE}/(\w+\.py)#line=\d+\), `(\w+)`")  # the link in the box of an exercise
LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./)?([^)]+)\)")


@dataclass(frozen=True)
class Draft:
    """One assignment.

    Attributes:
        name: of the assignment.
        notebooks: without suffix, in the course's order.
        own: exercises that it asks for.
        later: exercises of later stages, which are stubs too; the others come solved.
    """

    name: str
    notebooks: tuple[str, ...]
    own: frozenset[str]
    later: frozenset[str]

    @cached_property
    def package(self) -> dict[str, bytes]:
        """Files of rlhf_exercises/ as students get them."""
        return self._package(self.own | self.later)

    @cached_property
    def solved_package(self) -> dict[str, bytes]:
        """The same with the exercises of this assignment solved."""
        return self._package(self.later)

    def _package(self, blank: frozenset[str]) -> dict[str, bytes]:
        # a notebook of an assignment lies beside the package, not in notebooks/
        texts = stub_files(blank).items()
        return {name: text.replace("(notebooks/", "(").encode() for name, text in texts}

    @cached_property
    def source_notebooks(self) -> dict[str, str]:
        """Text of each notebook for nbgrader's source folder: with solutions and hidden cells."""
        return {name: to_text(self._placed(instructor_notebook(name))) for name in self.notebooks}

    @cached_property
    def welcome(self) -> str:
        """The introduction, which asks for nothing, with the links that hold here."""
        return to_text(self._placed(student_notebook(WELCOME)))

    @cached_property
    def assignment(self) -> Assignment:
        """What of it course.json keeps."""
        asked, questions, cells = {}, {}, {}
        for name in self.notebooks:
            cells[name] = ()
            for cell in instructor_notebook(name).cells:
                if (mark := cell.metadata.get("nbgrader")) is None:
                    continue
                cells[name] += (mark["grade_id"],)
                if mark["grade"]:
                    (questions if mark["solution"] else asked)[mark["grade_id"]] = mark["points"]
        modules = tuple(dict.fromkeys(e.module for e in exercises().values() if e.name in self.own))
        return Assignment(self.name, self.notebooks, modules, asked, questions, cells)

    @cached_property
    def secret_lines(self) -> frozenset[str]:
        """Lines of the solutions that students must not find in what they get: code, model answers, diagnoses.

        Short lines are no secret, nor is what a docstring, a hint, an earlier solution or a given cell says as well.
        """
        solved = [text.decode() for text in self.solved_package.values()]
        shown = [text.decode() for text in self.package.values()]
        for name in self.notebooks:
            marked = (cell for cell in instructor_notebook(name).cells if "nbgrader" in cell.metadata)
            solved += [cell.source for cell in marked]
            shown += [cell.source for cell in student_notebook(name).cells]
        shown += [hint for exercise in exercises().values() for hint in exercise.hints]
        everything = "\n".join(shown)
        lines = {line.strip() for text in solved for line in text.splitlines()} - {BEGIN, END}
        return frozenset(line for line in lines if len(line) >= LONG and line not in everything)

    def _placed(self, notebook: NotebookNode) -> NotebookNode:
        """The notebook with links to where things lie in an assignment: all in one folder."""
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = LINK.sub(self._link, BOX.sub(self._box_link, cell.source))
        return notebook

    def _box_link(self, box: re.Match) -> str:
        file, name = box.groups()
        # the line above the stub's text, where it can be written; JupyterLab counts from 0
        line = first_stub_line(self.package[file].decode(), name) or 1  # an earlier exercise comes solved
        return f"../{STUB_PACKAGE}/{file}#line={line - 1}), `{name}`"

    def _link(self, link: re.Match) -> str:
        text, target = link.groups()
        if target.endswith(".ipynb") and target.removesuffix(".ipynb") not in {WELCOME, *self.notebooks}:
            return text
        return f"[{text}]({target})"


def stage_names() -> list[str]:
    """Names of the assignments with one stage each: those of the notebooks that have exercises."""
    return list(dict.fromkeys(exercise.notebook for exercise in exercises().values()))


def choose(stages: Sequence[str] | None, whole: bool) -> list[Draft]:
    """The assignments to release: the whole course as one, or those of `stages`, which are all where it is None.

    A stage is called "02_reward_model", "reward_model", "02" or "2".

    Raises:
        LabError: when there is no such stage.
    """
    if whole:
        return [Draft(WHOLE, (WELCOME, *stage_names()), frozenset(exercises()), frozenset())]
    names = stage_names()
    called = {other: name for name in names for other in _other_names(name)}
    wanted = names if stages is None else stages
    if unknown := set(wanted) - called.keys():
        raise LabError(f"there is no stage {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    return [_stage(name, names) for name in dict.fromkeys(called[stage] for stage in wanted)]


def _other_names(name: str) -> tuple[str, ...]:
    number, _, title = name.partition("_")
    return name, title, number, number.lstrip("0")


def _stage(name: str, names: list[str]) -> Draft:
    later = names[names.index(name) + 1 :]
    return Draft(
        name,
        (name,),
        frozenset(exercise.name for exercise in select(name)),
        frozenset(exercise.name for each in later for exercise in select(each)),
    )
