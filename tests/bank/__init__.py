"""The bank: wrong and correct implementations of every exercise, each a small change of the solution.

Wrong ones are what a student who half understands the formula would write. Each has a sentence, which is what the check
tells the student who made that very mistake: it names the mistake and does not give the formula away. Correct ones look
different from the solution and do the same; a fair check accepts them.

The checks' files of known mistakes are made from the bank (`python -m authoring known`), and `python -m authoring kills`
prints which wrong implementation is caught where.
"""

import re
import textwrap
from dataclasses import dataclass

from authoring.paths import SOLUTIONS
from rlhf_lab.source_text import extent

SOLUTION = re.compile(r"### BEGIN SOLUTION\n(.*?) *### END SOLUTION", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """One implementation.

    Attributes:
        exercise: name of the function or class.
        says: the mistake in a sentence to the student; of a correct one, what is different, for us.
        changes: `(old, new)` texts, applied one after the other to the solution's text of that function or class.
        imports: lines to put at the top of the module.
        correct: whether it does what the exercise asks for.
        differs: whether a correct one shows something else than the solution, which is right as well.
    """

    exercise: str
    says: str
    changes: tuple[tuple[str, str], ...]
    imports: str
    correct: bool
    differs: bool = False

    def source(self, module: str) -> str:
        """The text of `module` with this implementation in it.

        Raises:
            ValueError: when an `old` text does not stand in the function exactly once.
        """
        text = (SOLUTIONS / f"{module}.py").read_text(encoding="utf-8")
        start, end = extent(text, self.exercise)
        body = text[start:end]
        for old, new in self.changes:
            if old == _WHOLE_BODY:
                old = SOLUTION.search(body)[1]
                new = textwrap.indent(textwrap.dedent(new).strip("\n"), "    ") + "\n"
            if body.count(old) != 1:
                raise ValueError(f"{self.exercise}: {self.says!r}: found {body.count(old)} times: {old!r}")
            body = body.replace(old, new)
        head = text[:start].replace("\nimport torch\n", f"\nimport torch\n{self.imports}\n", 1)
        return head + body + text[end:]


BANK: list[Entry] = []


def wrong(exercise: str, says: str, *changes: tuple[str, str], imports: str = "") -> None:
    """Add a wrong implementation to the bank."""
    BANK.append(Entry(exercise, says, changes, imports, correct=False))


def right(
    exercise: str, says: str, *changes: tuple[str, str], imports: str = "", differs: bool = False
) -> None:
    """Add a correct implementation to the bank; `differs` where the contract leaves room and it uses it."""
    BANK.append(Entry(exercise, says, changes, imports, correct=True, differs=differs))


def body(text: str) -> tuple[str, str]:
    """A change that replaces everything between the solution's markers (of a function with one pair of them)."""
    return _WHOLE_BODY, text


_WHOLE_BODY = "the whole body"


def entries(exercise: str | None = None) -> list[Entry]:
    """The bank, or its part about one exercise, in the order in which it is written."""
    # they fill the bank when they are imported
    from . import dpo, grpo, ppo, ppo_loop, reward_model, sft, toy, trainer  # noqa: F401

    return [entry for entry in BANK if exercise in (None, entry.exercise)]
