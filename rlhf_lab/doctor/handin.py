"""What in a folder is handed in: the notebooks and the package, and what stands in their way."""

import importlib.metadata
import json
import sys
from collections.abc import Container
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..course import Exercise, exercises
from ..runs import read_json
from ..settings import STUB_PACKAGE
from .finding import Finding

CELLS = Path(__file__).parent.parent / "course" / "cells.json"
DISTRIBUTION = "rlhf-from-scratch"  # this course's own packages shadow nothing
LOADED_BY_NAME = {"conftest", "grader_tests", "sitecustomize", "usercustomize"}


@dataclass(frozen=True)
class HandIn:
    """What counts in a folder.

    Attributes:
        notebooks: by the name that they were released under; the file need not exist.
        package: the folder of rlhf_exercises.
        exercises: names of those that the notebooks ask for.
    """

    notebooks: dict[str, Path]
    package: Path
    exercises: tuple[str, ...]


@cache
def released_cells() -> dict[str, list[dict]]:
    """Of each notebook that is graded its marked cells: `cell_type`, `source` and nbgrader's marks."""
    return read_json(CELLS)


def find_hand_in(folder: Path) -> tuple[HandIn, list[Finding]]:
    """What a folder hands in, and what is odd about its files."""
    place = _place_of_notebooks(folder)
    notebooks, findings = _find_notebooks(place)
    for path in {folder, place}:
        findings += _shadows(path)
    asked = tuple(exercise.name for exercise in _asked_by(notebooks))
    return HandIn(notebooks, folder / STUB_PACKAGE, asked), findings


def asked_exercises(folder: Path) -> tuple[list[Exercise], str]:
    """The exercises that the notebooks in a folder ask for, and a sentence about the others.

    In an assignment these are its own. In the course folder, and where no notebook is, they are all, and the sentence
    is empty.
    """
    notebooks, _ = _find_notebooks(_place_of_notebooks(folder))
    asked = _asked_by(notebooks) or list(exercises().values())
    if not (others := len(exercises()) - len(asked)):
        return asked, ""
    name = ", ".join(notebooks)
    return asked, f"The {others} other exercises of the course are not part of this assignment, {name}."


def _place_of_notebooks(folder: Path) -> Path:
    return folder / "notebooks" if (folder / "notebooks").is_dir() else folder


def _asked_by(notebooks: Container[str]) -> list[Exercise]:
    return [exercise for exercise in exercises().values() if exercise.notebook in notebooks]


def _find_notebooks(folder: Path) -> tuple[dict[str, Path], list[Finding]]:
    paths = [path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".ipynb"]
    found = {path.stem: path for path in paths if path.name.removesuffix(".ipynb") in released_cells()}
    findings = []
    for path in paths:
        if path in found.values() or (name := _recognise(path)) is None:
            continue
        if name in found:
            sentence = f"a second copy of {found[name].name}: it is not graded, so take it away"
        else:
            found[name] = path
            sentence = f"has to be called {name}.ipynb: rename it"
        findings.append(Finding("warning", path.name, sentence))
    expected = set(found)
    if folder.name == "notebooks" or len(found) > 1:
        expected = set(released_cells())
    elif not found and folder.resolve().name in released_cells():
        expected = {folder.resolve().name}
    if not expected:
        beside = ", ".join(sorted(path.name for path in folder.iterdir())[:6]) or "nothing"
        sentence = f"no notebook of the course is here, only {beside}"
        findings.append(Finding("problem", folder.name or str(folder), sentence))
    return {
        name: found.get(name, folder / f"{name}.ipynb") for name in released_cells() if name in expected
    }, findings


def _recognise(path: Path) -> str | None:
    """The released notebook that a file with another name is, by the marks of its cells."""
    try:
        cells = json.loads(path.read_bytes())["cells"] if path.is_file() else []
        marks = {cell["metadata"]["nbgrader"]["grade_id"] for cell in cells if "nbgrader" in cell["metadata"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    shared = {
        name: len(marks & {cell["grade_id"] for cell in cells}) for name, cells in released_cells().items()
    }
    best = max(shared, key=shared.get)
    return best if shared[best] else None


def _shadows(folder: Path) -> list[Finding]:
    """Files that Python takes for another package when a notebook in this folder imports it."""
    findings = []
    for path in sorted(folder.iterdir()):
        module = path.suffix == ".py" or (path / "__init__.py").exists()
        if module and path.stem in _importable():
            sentence = f"Python takes it for the package {path.stem}: rename it. It is not handed in"
            findings.append(Finding("warning", path.name, sentence))
    return findings


@cache
def _importable() -> frozenset[str]:
    """Names that mean something else than a student's file."""
    installed = {
        name
        for name, owners in importlib.metadata.packages_distributions().items()
        if DISTRIBUTION not in owners
    }
    return frozenset(installed | sys.stdlib_module_names | LOADED_BY_NAME)
