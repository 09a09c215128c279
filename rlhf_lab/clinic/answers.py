"""The diagnoses that a notebook's cell holds, read without running it."""

import ast


def read_answers(source: str) -> tuple[dict[str, str], list[str]]:
    """The answers in the text of the cell `diagnoses`, and a sentence for each line that could not be read.

    Read are `diagnoses["A"] = "name"`, `diagnoses = {"A": "name"}` and `diagnoses.update({"A": "name"})`, wherever
    they stand in the cell; the last answer to a case counts, as it does for Python.
    """
    try:
        tree = ast.parse(_without_magics(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if getattr(error, "lineno", None) else ""
        return {}, [f"the cell of the diagnoses does not parse as Python{line}"]
    reader = _Reader()
    try:
        reader.visit(tree)
    except RecursionError:
        return {}, ["the cell of the diagnoses is nested too deeply to be read"]
    return reader.answers, reader.problems


class _Reader(ast.NodeVisitor):
    """Goes through a cell in its order and collects what is written into `diagnoses`."""

    def __init__(self):
        self.answers: dict[str, str] = {}
        self.problems: list[str] = []

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_diagnoses(target.value):
                self._take(ast.Dict(keys=[target.slice], values=[node.value]), node.lineno)
            elif _is_diagnoses(target):
                self.answers.clear()
                if isinstance(node.value, ast.Dict):  # else the released line, which makes an empty one
                    self._take(node.value, node.lineno)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if _is_diagnoses(node.target):
            self._take(node.value, node.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        method = node.func
        if isinstance(method, ast.Attribute) and method.attr == "update" and _is_diagnoses(method.value):
            for argument in node.args:
                self._take(argument, node.lineno)

    def _take(self, node: ast.expr, line: int) -> None:
        try:
            entries = ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError, MemoryError):
            entries = None
        if not isinstance(entries, dict):
            self.problems.append(f'line {line} of the diagnoses is not of the form diagnoses["A"] = "name"')
            return
        for letter, name in entries.items():
            if isinstance(letter, str) and isinstance(name, str):
                self.answers[letter] = name
            elif name is not None:
                self.problems.append(f"line {line} of the diagnoses: letter and name have to be in quotes")


def _is_diagnoses(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "diagnoses"


def _without_magics(source: str) -> str:
    """Lines for IPython (%time, !ls) are blank for Python."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n"))
