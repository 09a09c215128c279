"""The exercises of the course: numbers, points and hints, from the `.toml` file of each stage.

Notebook boxes, checks, the table of `status` and the names in the stubs all come from here.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import LabError
from ..settings import MODULES

NOTEBOOKS = {
    "sft": "01_sft",
    "reward_model": "02_reward_model",
    "ppo": "03_ppo",
    "dpo": "05_dpo",
    "grpo": "06_grpo",
    "toy": "07_toy_rlhf",
    "trainer": "08_trainer",
}
HINT_STEPS = ("nudge", "plan", "almost code")


@dataclass(frozen=True)
class Exercise:
    """One function or class that a student writes.

    Attributes:
        number: the same in notebook, stub, check and README; functions that belong together share one.
        name: of the function or class.
        module: the taught module that it stands in.
        notebook: the notebook that teaches it, without suffix.
        difficulty, importance: 1 to 5.
        minutes: that a student should expect to need.
        points: in grading.
        needs: other exercises that its code calls, and that therefore have to be right first.
        hints: one for each of `HINT_STEPS`; the practice of notebook 00 has none.
    """

    number: str
    name: str
    module: str
    notebook: str
    difficulty: int
    importance: int
    minutes: int
    points: int
    needs: tuple[str, ...]
    hints: tuple[str, ...]

    @property
    def file(self) -> str:
        return f"{self.module}.py"


@cache
def exercises() -> dict[str, Exercise]:
    """All exercises by name, in the order of the course."""
    table = {}
    for module in MODULES:
        text = (Path(__file__).parent / f"{module}.toml").read_text(encoding="utf-8")
        for row in tomllib.loads(text)["exercise"]:
            row = {"notebook": NOTEBOOKS[module], "needs": (), **row}
            row["needs"], row["hints"] = tuple(row["needs"]), tuple(hint.strip() for hint in row["hints"])
            table[row["name"]] = Exercise(module=module, **row)
    return table


def find(name: str) -> Exercise:
    """The exercise called `name`, or the only one of this number.

    Raises:
        LabError: when there is none, or there are several; the sentence lists the names.
    """
    found = [e for e in exercises().values() if str(name) in (e.name, e.number)]
    if not found:
        raise LabError(f"there is no exercise {name!r}: the names are {', '.join(exercises())}")
    if len(found) > 1:
        raise LabError(f"{name} stands for {', '.join(e.name for e in found)}: say which")
    return found[0]


def select(name: str) -> list[Exercise]:
    """The exercises that a name, a number ("3.3") or a notebook ("03_ppo") stands for, in the course's order.

    Raises:
        LabError: when it stands for none.
    """
    found = [e for e in exercises().values() if name in (e.name, e.number, e.notebook)]
    return found or [find(name)]
