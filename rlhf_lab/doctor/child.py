"""The process in which the doctor runs a student's code: it does step after step and writes a line for each."""

import ast
import builtins
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from ..checks import check
from ..checks.run import cases_of
from ..course import Exercise, exercises, find
from ..errors import LabError
from ..source_text import PRISTINE, text_of
from ..student_code import STUB, BrokenFile, fresh_code
from ..taught_code import TaughtCode
from .trial import IMPORT

VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def main(package: str, answers: str, *steps: str) -> None:
    """Do the steps. The first line of `answers` says that this process is ready, each further one is of a step."""
    builtins.input = _nobody_answers
    folder = Path(package)
    with open(answers, "a", encoding="utf-8") as file:

        def say(answer: dict) -> None:
            file.write(json.dumps(answer) + "\n")
            file.flush()

        cases_of(
            find(next(iter(exercises())))
        )  # loads what the checks need, before the clock of a check runs
        say({})
        for step in steps:
            say(_import(folder, steps[1:]) if step == IMPORT else _check(step, folder))


def _nobody_answers(prompt="") -> str:
    raise RuntimeError("input() waits for a person, and while it is graded there is none: take it out")


def _import(folder: Path, names: tuple[str, ...]) -> dict:
    try:
        with fresh_code(folder) as code:
            complaints = {name: _complaint(code, name) for name in names}
    except BrokenFile as broken:
        return {"place": broken.place, "problem": broken.problem}
    return {"complaints": {name: complaint for name, complaint in complaints.items() if complaint}}


def _check(name: str, folder: Path) -> dict:
    report = check(name, folder)
    if report.state == "not written" or report.state == "waits" and _is_stub(report.exercise, folder):
        return {"state": "not written", "sentence": "not written yet"}
    sentence = report.closing
    if report.state == "waits":
        sentence = f"{sentence} Grading puts right code in that one's place."
    if report.state == "failed":
        failed = next(line for line in report.lines if line.status == "FAIL")
        sentence = f"its check fails after {sentence} {report.mistake or f'{failed.title}: {failed.detail}'}"
    return {"state": report.state, "sentence": sentence}


def _is_stub(exercise: Exercise, folder: Path) -> bool:
    """Whether a stub is left in an exercise. Its check may have met another one's first."""
    try:
        tree = ast.parse(text_of(folder / exercise.file, exercise.name))
    except LabError:  # it is made in another way than by `def`
        return False
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return any(isinstance(text, str) and STUB.match(text) for text in texts)


def _complaint(code: TaughtCode, name: str) -> str | None:
    """Why an exercise cannot be called as its stub can, or None."""
    exercise = find(name)
    mine = getattr(getattr(code, exercise.module), name, None)
    if not callable(mine):
        return f"is not in {exercise.file} any more: python -m rlhf_lab reset {name}"
    for qualified_name, stub in _stubs(exercise.module, name):
        _, _, method = qualified_name.partition(".")
        function = getattr(mine, method, None) if method else mine
        if function is None:
            return f"{qualified_name} is missing"
        if (difference := _difference(stub, function)) is not None:
            return f"the parameters of {qualified_name} were changed: {difference}"
    return None


def _stubs(module: str, name: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The function, or the methods of the class, as they were released."""
    tree = ast.parse((PRISTINE / f"{module}.txt").read_text(encoding="utf-8"))
    node = next(node for node in tree.body if getattr(node, "name", None) == name)
    if isinstance(node, ast.FunctionDef):
        yield name, node
        return
    for method in node.body:
        if isinstance(method, ast.FunctionDef):
            yield f"{name}.{method.name}", method


def _difference(stub: ast.FunctionDef, mine: Callable) -> str | None:
    """How the parameters of a student's function differ from the stub's; further ones with defaults are no difference."""
    try:
        parameters = list(inspect.signature(mine).parameters.values())
    except (TypeError, ValueError):  # something callable that does not tell
        return None
    if any(parameter.kind in VARIABLE for parameter in parameters):
        return None  # it may take whatever comes: its check says whether it does
    wanted = stub.args.args
    defaults = [None] * (len(wanted) - len(stub.args.defaults)) + stub.args.defaults
    names = [argument.arg for argument in wanted]
    if [parameter.name for parameter in parameters[: len(names)]] != names:
        shown = ", ".join(parameter.name for parameter in parameters)
        return f"they are ({shown}), and the stub has ({', '.join(names)})"
    for parameter, default in zip(parameters, defaults, strict=False):
        if default is not None and repr(parameter.default) != repr(ast.literal_eval(default)):
            return f"the default of {parameter.name} is not {ast.unparse(default)} any more"
    for parameter in parameters[len(names) :]:
        if parameter.default is parameter.empty:
            return f"{parameter.name} is new and has no default"
    return None
