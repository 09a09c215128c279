"""What is known of each case: what correct code shows, and what each known mistake shows.

`known/EXERCISE.json` is written by `python -m authoring known`, which runs the solution, other correct code and the
bank of wrong implementations through the cases. So a check can say "expected 0.90" and name a mistake without holding
a formula.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .case import Case, Observation
from .differences import first_difference

FOLDER = Path(__file__).parent / "known"


@dataclass(frozen=True)
class KnownMistake:
    """A wrong implementation of the bank.

    Attributes:
        name: the sentence that a student reads.
        observed: by case title, what it shows there; what it shows correctly is left out.
    """

    name: str
    observed: dict[str, Observation]


@dataclass(frozen=True)
class Known:
    """All that is known of an exercise.

    Attributes:
        accepted: by case title, what correct code shows: the solution first, then what other correct code shows
            where it differs.
        mistakes: in the order of the bank.
    """

    accepted: dict[str, list[Observation]]
    mistakes: list[KnownMistake]

    def matches(self, mistake: KnownMistake, case: Case, observed: Observation) -> bool:
        """Whether `observed` is what this mistake shows in this case."""
        shown = mistake.observed.get(case.title)
        if shown is None:
            return any(
                first_difference(observed, accepted, case.tolerance) is None
                for accepted in self.accepted[case.title]
            )
        return shown.keys() == observed.keys() and first_difference(observed, shown, case.tolerance) is None


def known_text(exercise: str) -> str:
    return (FOLDER / f"{exercise}.json").read_text(encoding="utf-8")


@cache
def load_known(exercise: str) -> Known:
    content = json.loads(known_text(exercise))
    return Known(content["accepted"], [KnownMistake(**mistake) for mistake in content["mistakes"]])
