"""Stubs out of solutions: the same text, with `raise NotImplementedError` where the solution stands."""

import ast
import re
from functools import cache

from rlhf_lab.course import exercises
from rlhf_lab.settings import MODULES
from rlhf_lab.student_code import stub_text

from .paths import SOLUTIONS

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


def stub_files(blank: frozenset[str] | None = None) -> dict[str, str]:
    """Name and text of every file of `rlhf_exercises/`; exercises that are not in `blank` come solved."""
    files = {"__init__.py": (SOLUTIONS / "__init__.py").read_text(encoding="utf-8")}
    for module in MODULES:
        files[f"{module}.py"] = stub_module((SOLUTIONS / f"{module}.py").read_text(encoding="utf-8"), blank)
    return files


@cache
def stub_module(solution: str, blank: frozenset[str] | None = None) -> str:
    """The text of a module with the solutions of the exercises in `blank` taken out; of all, where it is None.

    Those that stay lose their markers.

    Raises:
        ValueError: when a marker has no partner, or stands outside an exercise.
    """
    kept, inside, shown, tree = [], False, True, ast.parse(solution)
    for number, line in enumerate(solution.splitlines(), 1):
        if line.strip() == BEGIN:
            if inside:
                raise ValueError(f"line {number}: the solution before has no end")
            name = _qualified_name(tree, number)
            inside, shown = True, blank is not None and name.split(".")[0] not in blank
            if not shown:
                kept += _stub(name, indent=line[: len(line) - len(line.lstrip())])
        elif line.strip() == END:
            if not inside:
                raise ValueError(f"line {number}: a solution ends that did not begin")
            inside, shown = False, True
        elif shown:
            kept.append(line)
    if inside:
        raise ValueError("the last solution has no end")
    return "\n".join(kept) + "\n"


def first_stub_line(text: str, name: str) -> int | None:
    """Where `name`, or the first of its methods that is a stub, is to be written; lines are counted from 0."""
    to_write = re.compile(rf"write {name}(\.\w+)? in ")
    return next((number for number, line in enumerate(text.splitlines()) if to_write.search(line)), None)


def _stub(name: str, indent: str) -> list[str]:
    exercise = exercises()[name.split(".")[0]]
    return [
        f"{indent}raise NotImplementedError(",
        f'{indent}    "{stub_text(exercise, name)}"',
        f"{indent})",
    ]


def _qualified_name(tree: ast.Module, line: int) -> str:
    """`function` or `Class.method` around a line; for `Class.__init__` the class alone says enough."""
    names = []
    scope = tree.body
    while node := next(
        (
            n
            for n in scope
            if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.lineno <= line <= n.end_lineno
        ),
        None,
    ):
        names.append(node.name)
        scope = node.body
    if not names:
        raise ValueError(f"line {line}: a solution outside a function")
    return re.sub(r"\.__init__$", "", ".".join(names))
