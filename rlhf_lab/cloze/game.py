"""One round of the drill: answers, hints and points. Terminal and widget both play it."""

import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import LabError
from .blanks import Draw, any_snippet, draw, new_seed
from .hints import STEPS, hint
from .judge import Judge, Verdict
from .snippets import ANY, load_snippet

POINTS = STEPS  # of a blank; each hint takes one of them, and so does each wrong answer
LEAST = 1  # what a right answer brings in any case, if it was not shown

RULES = (
    f"A blank brings {POINTS} points. Each hint and each wrong answer takes one away; what you find yourself in the end still "
    f"brings {LEAST}. The third hint is the answer, and leaves nothing. What is no Python costs nothing."
)


@dataclass
class _State:
    """Where the player stands with one blank."""

    hints: int = 0
    wrong: int = 0
    accepted: str = ""  # the right answer, as the player wrote it
    closed: bool = False  # shown or given up

    @property
    def points(self) -> int:
        return max(LEAST, POINTS - self.hints - self.wrong) if self.accepted else 0


class Round:
    """A draw that is played. Blanks are numbered from 1.

    Args:
        draw: the blanks.
        solutions: folder of the solutions, for the judge.
    """

    def __init__(self, draw: Draw, solutions: Path):
        self.draw = draw
        self._judge = Judge(draw.snippet, solutions)
        self._states = [_State() for _ in draw.blanks]
        self._begun = time.time()

    @property
    def numbers(self) -> range:
        return range(1, len(self.draw.blanks) + 1)

    @property
    def open(self) -> list[int]:
        """Numbers of the blanks that wait for an answer."""
        return [
            number for number in self.numbers if not self.is_right(number) and not self._state(number).closed
        ]

    @property
    def begun(self) -> bool:
        """Whether anything has been tried or asked for."""
        return any(state != _State() for state in self._states)

    @property
    def points(self) -> int:
        return sum(state.points for state in self._states)

    @property
    def of(self) -> int:
        return POINTS * len(self._states)

    @property
    def title(self) -> str:
        """What it takes to draw the same blanks again."""
        return f"{self.draw.snippet.name} · seed {self.draw.seed} · share {self.draw.share:.0%}"

    @property
    def score_line(self) -> str:
        right = sum(map(self.is_right, self.numbers))
        return f"{right} of {len(self._states)} blanks, {self.points} of {self.of} points"

    def is_right(self, number: int) -> bool:
        return bool(self._state(number).accepted)

    def answer(self, number: int, text: str) -> Verdict:
        """Judge an answer to an open blank."""
        verdict = self._judge.judge(self._blank(number), text)
        state = self._state(number)
        if verdict.right:
            state.accepted = text.strip()
        elif verdict.read:
            state.wrong += 1
        return verdict

    def hint(self, number: int) -> str:
        """The next hint of a blank. The last one is the answer, and closes it."""
        state = self._state(number)
        state.hints = min(state.hints + 1, STEPS)
        state.closed = state.hints == STEPS
        return hint(self._blank(number), state.hints)

    def give_up(self, number: int) -> str:
        """Close a blank; the text that stands there in the solution."""
        self._state(number).closed = True
        return self._blank(number).text

    def code(self) -> str:
        """The snippet as it stands: answers that are right, answers that were shown, and open blanks."""
        return self.draw.with_blanks(self.filled())

    def filled(self) -> dict[int, str]:
        """The text of each blank that is not open any more."""
        return {
            number: self._state(number).accepted or self._blank(number).text
            for number in self.numbers
            if number not in self.open
        }

    def to_score(self) -> dict:
        """The round as an entry for the scores."""
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "snippet": self.draw.snippet.name,
            "seed": self.draw.seed,
            "share": self.draw.share,
            "points": self.points,
            "of": self.of,
            "seconds": round(time.time() - self._begun),
            "hints": sum(state.hints for state in self._states),
        }

    def _blank(self, number: int):
        return self.draw.blanks[number - 1]

    def _state(self, number: int) -> _State:
        return self._states[number - 1]


def new_round(solutions: Path, snippet: str, share: float, seed: int | None) -> Round:
    """Draw blanks and begin.

    Args:
        snippet: a name, or "any": then the seed chooses.
        seed: a new one where none is given.

    Raises:
        LabError: when there is no such snippet, share or seed.
    """
    seed = new_seed() if seed is None else seed
    if seed < 0:
        raise LabError(f"the seed is {seed}: it must not be negative")
    name = any_snippet(seed) if snippet == ANY else snippet
    return Round(draw(load_snippet(name, solutions), share, seed), solutions)
