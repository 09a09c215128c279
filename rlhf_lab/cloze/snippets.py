"""The texts of the drill, as `solutions/` holds them: without comments, docstrings and markers."""

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

from ..errors import LabError
from ..source_text import text_of

ANY = "any"


@dataclass(frozen=True)
class Snippet:
    """A function or class to be drilled.

    Attributes:
        name: of the function or class.
        module: the taught module that it stands in.
        text: its code.
    """

    name: str
    module: str
    text: str


MODULE_OF = {  # in the order of the course
    "RewardModel": "reward_model",
    "rm_loss": "reward_model",
    "PolicyWithValueHead": "ppo",
    "gather_logprobs": "ppo",
    "shape_token_rewards": "ppo",
    "ppo_losses": "ppo",
}


def load_snippet(name: str, solutions: Path) -> Snippet:
    """One snippet, as it is on disk now.

    Args:
        solutions: the folder of the solutions.

    Raises:
        LabError: when there is no snippet of this name, or its text is not there.
    """
    if name not in MODULE_OF:
        raise LabError(f"there is no snippet {name!r}: the names are {', '.join(MODULE_OF)}, or {ANY}")
    module = MODULE_OF[name]
    path = solutions / f"{module}.py"
    text = text_of(path, name)
    try:
        return Snippet(name, module, bare(text))
    except (SyntaxError, tokenize.TokenError):
        raise LabError(f"{path} does not parse: the drill takes its text from there") from None


def bare(text: str) -> str:
    """The code without comments and docstrings, and without blank lines where these were.

    Raises:
        SyntaxError, tokenize.TokenError: when the text is no Python.
    """
    lines: list[str | None] = list(text.splitlines())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line = lines[token.start[0] - 1][: token.start[1]].rstrip()
            lines[token.start[0] - 1] = line or None
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines[docstring.lineno - 1 : docstring.end_lineno] = [None] * (
                docstring.end_lineno - docstring.lineno + 1
            )
    code = "\n".join(line for line in lines if line is not None).rstrip() + "\n"
    code = re.sub(r"\n\n\n+", "\n\n", code)
    return re.sub(r":\n\n", ":\n", code)  # a body begins right below its head
