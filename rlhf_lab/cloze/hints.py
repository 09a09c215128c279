"""Three hints for each blank: what kind of thing it is, what it is made of, and the answer."""

import ast
import io
import tokenize

from .blanks import OPERATORS, Blank

STEPS = 3


def hint(blank: Blank, step: int) -> str:
    """Hint 1, 2 or 3 of a blank, in one sentence."""
    if step == 1:
        return f"It is {blank.kind}."
    return f"It is {blank.text}." if step >= STEPS else _made_of(blank)


def _made_of(blank: Blank) -> str:
    text = blank.text
    if blank.form == "operator":
        return f"It is one of {' and '.join(sorted({text, _beside(text)}))}."
    if text in ("True", "False"):
        return "It is one of False and True."
    if _is_word(text):
        shown = text[: 2 if len(text) > 4 else 1]
        return (
            f"It begins with {shown} and has {len(text)} letters." if len(text) > 1 else "It has one letter."
        )
    if _is_number(text):
        return f"It is one of {' and '.join(sorted({text, _other_number(text)}))}."
    return f"In it, in the order of the alphabet: {', '.join(_parts(text))}."


def _is_word(text: str) -> bool:
    return text.isidentifier()


def _is_number(text: str) -> bool:
    try:
        return isinstance(ast.literal_eval(text), (int, float))
    except (ValueError, SyntaxError):
        return False


def _beside(operator: str) -> str:
    """An operator that could stand there too."""
    return {"-": "+", "+": "-", "*": "/", "**": "*", ">": ">=", "==": "!=", "&": "|", "is": "is not"}.get(
        operator, next(other for other in OPERATORS.values() if other != operator)
    )


def _other_number(text: str) -> str:
    value = ast.literal_eval(text)
    if isinstance(value, int):
        return "0" if value else "1"
    return f"{value + 0.5:g}" if value < 0.1 else f"{value / 2:g}"


def _parts(text: str) -> list[str]:
    """Names, numbers and operators of a piece of code, each once."""
    kinds = (tokenize.NAME, tokenize.NUMBER, tokenize.OP)
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except tokenize.TokenError:
        return [text]
    parts = {token.string for token in tokens if token.type in kinds and token.string not in "().,[]"}
    return sorted(parts, key=lambda part: (not part[0].isalpha(), part.lower()))
