"""The clinic: broken runs to diagnose, recorded from real defects in real code.

`python -m authoring clinic` recorded them; a case file holds what the run showed, and a salted hash of its diagnosis.
"""

import difflib
import hashlib
import string
from collections.abc import Mapping
from pathlib import Path

from ..runs import read_json
from .diagnoses import DIAGNOSES

NAME = "clinic"  # as an exercise, and of the cell that has its points
NUMBER = "4"  # where exercises have theirs
ANSWERS = "diagnoses"  # the cell that the answers are written in, and the dictionary in it
FOLDER = Path(__file__).parent
HEALTHY = "healthy"
CASES = tuple(letter for letter in string.ascii_uppercase if (FOLDER / f"{letter}.json").exists())


def healthy() -> None:
    """Show curves, first step, samples and token tables of a run in which nothing is wrong."""
    from .views import show_run

    show_run("The healthy run", read_case(HEALTHY))


def show(letter: str) -> None:
    """Show the same views of a broken run, with the healthy curves in grey behind."""
    from .views import show_run

    if _letter(letter) not in CASES:
        print(_no_such_case(letter))
        return
    show_run(f"Case {_letter(letter)}", read_case(_letter(letter)), read_case(HEALTHY))


def diagnoses() -> None:
    """Show every possible diagnosis; some belong to no case."""
    from .views import show_diagnoses

    show_diagnoses()


def check(answers: Mapping[str, str]) -> None:
    """Print for each case whether the answer is right; where it is, what one sees, why, and what to do."""
    if not isinstance(answers, Mapping):
        print(f'check takes a dictionary such as {{"A": "dropout on"}}, not a {type(answers).__name__}')
        return
    for letter in answers:
        if _letter(letter) not in CASES:
            print(_no_such_case(letter))
    given = _by_letter(answers)
    for letter in CASES:
        print(f"{letter}  {_verdict(letter, given.get(letter))}")
    print(f"{sum(_is_right(letter, given.get(letter)) for letter in CASES)} of {len(CASES)} right.")


def grade_fraction(answers: Mapping[str, str]) -> float:
    """Share of the cases that are right, 0 to 1."""
    given = _by_letter(answers) if isinstance(answers, Mapping) else {}
    return sum(_is_right(letter, given.get(letter)) for letter in CASES) / len(CASES)


def read_case(name: str) -> dict:
    """What a run left behind: `history`, `first_step`, `samples`, `rows`; of a case also `salt` and `key`."""
    return read_json(FOLDER / f"{name}.json")


def digest(salt: str, letter: str, diagnosis: str) -> str:
    """The key of a case: it can be checked, and not be read."""
    return hashlib.sha256(f"{salt} {letter} {diagnosis}".encode()).hexdigest()


def _letter(letter) -> str:
    return letter.strip().upper() if isinstance(letter, str) else ""


def _by_letter(answers: Mapping) -> dict:
    return {_letter(letter): answer for letter, answer in answers.items()}


def _no_such_case(letter) -> str:
    return f"there is no case {letter!r}: the letters are {', '.join(CASES)}"


def _plain(name: str) -> str:
    return " ".join(name.lower().split())


def _name(answer) -> str | None:
    """The diagnosis that is meant, whichever its spaces and capitals; None when there is none."""
    return BY_PLAIN_NAME.get(_plain(answer)) if isinstance(answer, str) else None


def _is_right(letter: str, answer) -> bool:
    name = _name(answer)
    if name is None:
        return False
    case = read_case(letter)
    return digest(case["salt"], letter, name) == case["key"]


def _verdict(letter: str, answer) -> str:
    if answer is None or answer == "":
        return "not answered"
    if not isinstance(answer, str):
        return f"not answered: give the name of a diagnosis, not a {type(answer).__name__}"
    name = _name(answer)
    if name is None:
        return f"no diagnosis is called {answer!r}: {_nearest(answer)}"
    if not _is_right(letter, name):
        return f"not yet: it is not {name!r}"
    explanation = DIAGNOSES[name].explanation.replace("\n", "\n   ")
    return f"right: {name}\n   {explanation}"


def _nearest(answer: str) -> str:
    near = difflib.get_close_matches(_plain(answer), BY_PLAIN_NAME)
    if not near:
        return "lab.clinic.diagnoses() lists the names"
    return f"the nearest names are {', '.join(BY_PLAIN_NAME[name] for name in near)}"


BY_PLAIN_NAME = {_plain(name): name for name in DIAGNOSES}
