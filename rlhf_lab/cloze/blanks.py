"""What may be hidden in a snippet, and a seeded draw of it.

The finest parts of a snippet are its *places*: variables, names of methods and attributes, numbers, operators. A blank
hides one place, or a piece of code that is made of a few. The share that a learner chooses is the share of places.

Not hidden is what cannot be known from memory or what the line gives away: names that the code assigns to, texts,
annotations, and a name that stands a second time in its own statement. Of the parts of one operation (a call, a sum, an
index) at most one is hidden, and at least a third of a statement stays, unless it has one blank only. So every blank has
surroundings, and two blanks cannot be answered by exchanging their answers.
"""

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from ..errors import LabError
from .snippets import MODULE_OF, Snippet

LEAST_SHARE, MOST_SHARE, USUAL_SHARE = 0.1, 0.6, 0.15
MOST_PLACES, MOST_CHARACTERS = 6, 48  # of one blank
LEAST_VISIBLE = 1 / 3  # of the places of a statement with several blanks
TRIES = 200  # to hit the share exactly
GIVEN = {"self", "super", "torch", "F", "nn", "__init__"}  # names that are not asked for

OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.MatMult: "@", ast.LShift: "<<", ast.RShift: ">>",
    ast.Gt: ">", ast.Lt: "<", ast.GtE: ">=", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.USub: "-", ast.UAdd: "+", ast.Invert: "~",
}  # fmt: skip
KINDS = {  # of pieces with several places, for the first hint
    ast.Call: "a call of a function or method",
    ast.Subscript: "something with an index",
    ast.Slice: "a slice: it has a colon",
    ast.BinOp: "a calculation with an operator",
    ast.Compare: "a comparison of two values",
    ast.UnaryOp: "a value with a sign in front",
    ast.keyword: "an argument with its name",
    ast.Tuple: "several values with commas between them",
}


@dataclass(frozen=True)
class Blank:
    """A piece of a snippet that may be hidden.

    Attributes:
        start, end: where it stands in the snippet's text.
        text: what stands there.
        form: what an answer has to be: "expression", "argument", "index", "name" or "operator".
        kind: the same in words, for the first hint.
        places: numbers of the places that it hides.
        operation: which operation it is a direct part of.
        statement: number of the statement that it stands in.
    """

    start: int
    end: int
    text: str
    form: str
    kind: str
    places: frozenset[int]
    operation: int
    statement: int


@dataclass(frozen=True)
class Draw:
    """A snippet with blanks, in the order in which they stand; `share` is what was asked for."""

    snippet: Snippet
    seed: int
    share: float
    blanks: tuple[Blank, ...]
    places: int = field(repr=False)

    @property
    def hidden(self) -> int:
        """How many places the blanks hide."""
        return sum(len(blank.places) for blank in self.blanks)

    def pieces(self) -> list[str]:
        """The text before the first blank, between each two, and after the last one."""
        ends = [0, *(blank.end for blank in self.blanks)]
        starts = [*(blank.start for blank in self.blanks), len(self.snippet.text)]
        return [self.snippet.text[end:start] for end, start in zip(ends, starts, strict=True)]

    def with_blanks(self, filled: dict[int, str] | None = None) -> str:
        """The code with its numbered blanks, all of one width; `filled` has texts for some of them."""
        shown, pieces = filled or {}, self.pieces()
        blanks = [shown.get(number, mark(number)) for number in range(1, len(self.blanks) + 1)]
        for number, after in enumerate(pieces[1:], 1):
            if number not in shown and re.match(r"\w", after):
                blanks[number - 1] += " "  # a sign stands right before its value
        return "".join(piece + blank for piece, blank in zip(pieces, [*blanks, ""], strict=True))


def mark(number: int) -> str:
    """How a blank is shown: its width says nothing."""
    return f"____{number}____"


def new_seed() -> int:
    """A seed that nobody has chosen, short enough to be typed."""
    return random.SystemRandom().randrange(10_000)


def any_snippet(seed: int) -> str:
    """The name of the snippet that a seed stands for."""
    return random.Random(f"snippet {seed}").choice(list(MODULE_OF))


def draw(snippet: Snippet, share: float, seed: int) -> Draw:
    """Blanks that hide `share` of a snippet's places; the same for the same arguments.

    Raises:
        LabError: when the share is out of its range.
    """
    if not LEAST_SHARE <= share <= MOST_SHARE:
        raise LabError(
            f"the share of hidden code is {share:g}: it must be between {LEAST_SHARE} and {MOST_SHARE}"
        )
    candidates = all_blanks(snippet)
    counts: dict[int, int] = {}
    for statement in {place: blank.statement for blank in candidates for place in blank.places}.values():
        counts[statement] = counts.get(statement, 0) + 1
    places = sum(counts.values())
    wanted = max(1, round(share * places))
    chance = random.Random(f"blanks {seed}")
    # small blanks where little is hidden, large ones rather than many where much is
    preference = 1 - 2.5 * share
    best: list[Blank] = []
    for _ in range(TRIES):
        order = sorted(candidates, key=lambda blank: chance.random() * len(blank.places) ** preference)
        chosen = _pick(order, counts, wanted)
        if _hidden(chosen) > _hidden(best):
            best = chosen
        if _hidden(best) == wanted:
            break
    return Draw(snippet, seed, share, tuple(sorted(best, key=lambda blank: blank.start)), places)


def _hidden(blanks: list[Blank]) -> int:
    return sum(len(blank.places) for blank in blanks)


def _pick(order: list[Blank], counts: dict[int, int], wanted: int) -> list[Blank]:
    """Blanks that go together, taken in this order, until `wanted` places are hidden."""
    chosen: list[Blank] = []
    for blank in order:
        if _hidden(chosen) + len(blank.places) <= wanted and _fits(blank, chosen, counts):
            chosen.append(blank)
    return chosen


def _fits(blank: Blank, chosen: list[Blank], counts: dict[int, int]) -> bool:
    if any(blank.operation == other.operation or blank.places & other.places for other in chosen):
        return False
    if any(blank.start < other.end and other.start < blank.end for other in chosen):
        return False
    beside = [other for other in chosen if other.statement == blank.statement]
    visible = counts[blank.statement] - _hidden([blank, *beside])
    return not beside or visible >= LEAST_VISIBLE * counts[blank.statement]


@cache
def all_blanks(snippet: Snippet) -> tuple[Blank, ...]:
    """Everything in a snippet that may be a blank."""
    return tuple(_Finder(snippet.text).find())


class _Finder:
    """Walks through the code once: places first, then the pieces that are made of them."""

    def __init__(self, text: str):
        self.text = text
        self.tree = ast.parse(text)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.line_starts = [0]
        for line in text.splitlines(keepends=True):
            self.line_starts.append(self.line_starts[-1] + len(line))
        self.numbers = {node: number for number, node in enumerate(ast.walk(self.tree))}

    def find(self) -> list[Blank]:
        nodes = [node for root in self._roots() for node in ast.walk(root)]
        places = {}  # (start, end) -> number
        found: list[tuple[int, int, str, str, ast.AST]] = []
        for node in nodes:
            for start, end, form, kind in self._places_at(node):
                places[start, end] = len(places)
                found.append((start, end, form, kind, node))
        for node in nodes:
            if (kind := self._kind_of_piece(node)) and self._span(node) not in places:
                start, end = self._span(node)
                found.append((start, end, self._form(node), kind, node))
        blanks = []
        for start, end, form, kind, node in found:
            inside = frozenset(
                number for (first, last), number in places.items() if start <= first and last <= end
            )
            text, statement = self.text[start:end], self._statement(node)
            if not 1 <= len(inside) <= MOST_PLACES or len(text) > MOST_CHARACTERS or "\n" in text:
                continue
            if self._given_away(start, end, statement):
                continue
            operation = self.numbers[self._operation(node, form)]
            blanks.append(Blank(start, end, text, form, kind, inside, operation, self.numbers[statement]))
        return blanks

    def _roots(self) -> list[ast.AST]:
        """What is walked: bodies and default values, no annotations, and not the call of the base class."""
        roots: list[ast.AST] = []
        for function in (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)):
            roots += [d for d in function.args.defaults if _is_number(d)]
            roots += [statement for statement in function.body if "super()" not in ast.unparse(statement)]
        return roots

    def _places_at(self, node: ast.AST) -> Iterator[tuple[int, int, str, str]]:
        """The places that begin at a node: start, end, form and kind of each."""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in GIVEN:
            kind = "a variable" if node.id.islower() else "the name of a class"
            if self._is_called(node):
                kind = "a function or class that is called"
            yield *self._span(node), self._form(node), kind
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr not in GIVEN:
            end = self._span(node)[1]
            kind = "the name of a function or method" if self._is_called(node) else "the name of an attribute"
            yield end - len(node.attr), end, "name", kind
        elif _is_number(node) and not _is_number(self.parents[node]):
            yield *self._span(node), self._form(node), "a number"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield *self._span(node), self._form(node), "True or False"
        elif isinstance(node, ast.BinOp):
            yield *self._between(node.left, node.op, node.right), "operator", "an operator between two values"
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield *self._between(node.left, node.ops[0], node.comparators[0]), "operator", "a comparison"
        elif isinstance(node, ast.UnaryOp) and not _is_number(node):
            start = self._span(node)[0]
            yield start, start + 1, "operator", "a sign in front of a value"

    def _kind_of_piece(self, node: ast.AST) -> str | None:
        """What a piece of several places is; None for what is not hidden as a whole."""
        if isinstance(getattr(node, "ctx", ast.Load()), ast.Store):
            return None
        if isinstance(node, ast.Attribute):
            given = isinstance(node.value, ast.Name) and node.value.id in GIVEN  # torch.float32: one place
            return None if given or self._is_called(node) else "an attribute of something"
        return KINDS.get(type(node))

    def _is_called(self, node: ast.AST) -> bool:
        return getattr(self.parents[node], "func", None) is node

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno, node.end_col_offset),
        )

    def _offset(self, line: int, column: int) -> int:
        """Where a position of the parser is in the text: it counts the bytes of a line."""
        start = self.line_starts[line - 1]
        whole = self.text[start : self.line_starts[line]] if line < len(self.line_starts) else ""
        return start + len(whole.encode()[:column].decode())

    def _between(self, left: ast.AST, operator: ast.AST, right: ast.AST) -> tuple[int, int]:
        symbol = OPERATORS[type(operator)]
        start = self.text.index(symbol, self._span(left)[1], self._span(right)[0])
        return start, start + len(symbol)

    def _form(self, node: ast.AST) -> str:
        """What may stand in a node's place."""
        parent = self.parents[node]
        if isinstance(parent, ast.Tuple) and isinstance(self.parents[parent], ast.Subscript):
            return "index"
        if isinstance(parent, ast.Subscript) and parent.slice is node:
            return "index"
        if isinstance(node, ast.keyword) or isinstance(parent, ast.Call) and node in parent.args:
            return "argument"
        return "expression"

    def _statement(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def _operation(self, node: ast.AST, form: str) -> ast.AST:
        """The call, calculation or index that a node is a direct part of; an operator is a part of its own."""
        if form == "operator":
            return node
        node = self.parents[node]
        while isinstance(node, (ast.Attribute, ast.keyword, ast.Slice)) or (
            isinstance(node, ast.Tuple) and isinstance(self.parents[node], ast.Subscript)
        ):
            node = self.parents[node]
        return node

    def _given_away(self, start: int, end: int, statement: ast.stmt) -> bool:
        """Whether the rest of the statement has the same name or piece once more."""
        first, last = self._span(statement)
        if body := getattr(statement, "body", None):
            last = self._span(body[0])[0]  # the head alone
        text = self.text[start:end]
        if not re.search(r"[A-Za-z_]{3}", text):
            return False
        rest = f"{self.text[first:start]} {self.text[end:last]}"
        if re.search(rf"(?<!\w){re.escape(text)}(?!\w)", rest):
            return True
        entry = re.search(r'"(\w+)": $', self.text[first:start])  # a dictionary's key
        return entry is not None and entry[1] in text


def _is_number(node: ast.AST) -> bool:
    """A number that is written out, with a minus sign or without."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
