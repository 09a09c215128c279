"""What a notebook imports: `import rlhf_lab.notebook as lab`.

Checks and hints, the frame around a TODO cell, and the parts of the workbench that the notebooks use.
"""

import sys
import time
import traceback as python_traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from IPython.display import HTML, DisplayHandle, Markdown, display

from . import checks, clinic, examples, practice, source_text, thresholds, toy
from .backbones import TINY, load_causal_lm, load_tokenizer, quiet_transformers
from .bag_of_words import BagOfWords, word_tokenizer
from .checkpoints import SFT, ShippedReward
from .cloze.blanks import USUAL_SHARE
from .cloze.scores import Scores
from .cloze.scores import to_table as to_score_table
from .compare import compare as compare_code
from .course import find, select
from .data import length_only_accuracy, load_data
from .data.judge import ToyJudge
from .errors import LabError
from .invariants import watch_invariants
from .machine import machine_rows
from .methods import measure, recorded_methods
from .overview import overview
from .pictures import Panel, cloze_figure, curves, ppo_figure, reward_model_figure, sft_figure
from .progress import Progress, next_hint, to_table
from .real_run import recorded_run
from .rewards import ModelReward, TextReward
from .sampling import distinct_2, look_at, sample
from .side_by_side import ask_twice, side_by_side, solutions_folder
from .student_code import Blame, describe, find_blame, package_folder, prefer_course_folder, stub_of
from .token_table import index_picture, rollout_table, token_table, token_texts
from .watch import shuffled

prefer_course_folder()  # before the notebook imports its package

__all__ = [
    "SFT", "TINY", "BagOfWords", "LabError", "ModelReward", "Panel", "ShippedReward", "TextReward", "ToyJudge", "begin",
    "check", "clinic", "cloze", "cloze_scores", "compare", "curves", "distinct_2", "examples", "hint", "index_picture",
    "length_only_accuracy", "live", "load_causal_lm", "load_data", "load_tokenizer", "look_at",
    "machine_rows", "measure", "overview", "ppo_figure", "practice", "recorded_methods", "recorded_run", "reset", "reward_model_figure", "rollout_table",
    "sample", "sft_figure", "show", "shuffled", "solution", "status", "table", "thresholds", "todo",
    "token_table", "token_texts", "toy", "traceback", "watch_invariants", "word_tokenizer",
]  # fmt: skip


@dataclass(frozen=True)
class _Session:
    """The notebook that runs, and the package whose code it runs."""

    notebook: str
    folder: Path
    progress: Progress


_session: _Session | None = None


def begin(notebook: str, package: str) -> None:
    """Set a notebook up: whose code it runs, the seed, and one line about the machine.

    Args:
        notebook: its name, such as "03_ppo".
        package: the package with the code, `rlhf_exercises`.
    """
    global _session
    quiet_transformers()
    torch.manual_seed(0)
    folder = package_folder(package)
    _session = _Session(notebook, folder, Progress(folder))
    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} threads"
    )
    python = ".".join(map(str, sys.version_info[:2]))
    print(f"{notebook}: your code is {package}/ · Python {python}, torch {torch.__version__}, {device}")


def _here() -> _Session:
    if _session is None:
        raise LabError("run the first code cell of this notebook: it says whose code is checked")
    return _session


# --- checks and help ------------------------------------------------------------------------------


def check(*names: str) -> None:
    """Check exercises, by name or number; all of this notebook where none is given."""
    with _in_a_sentence():
        chosen = [exercise for name in names or (_here().notebook,) for exercise in select(str(name))]
        for exercise in chosen:
            report = checks.check(exercise.name, _here().folder)
            checks.display_report(report)
            if report.state == "stopped":
                return
            if problem := _here().progress.record(report):
                print(problem)


def hint(name: str, step: int | None = None) -> None:
    """Show the next hint of an exercise: a nudge, a plan, almost code. `step` shows one of them again."""
    with _in_a_sentence():
        title, text = next_hint(name, step, _here().progress)
        display(Markdown(f"**{title}**\n\n{text}"))


def status() -> None:
    """Show all exercises that are asked for here with points and state."""
    with _in_a_sentence():
        print(to_table(_here().progress))


def solution(name: str) -> None:
    """Show the solution beside your code; only where `solutions/` is present, and when asked twice."""
    with _in_a_sentence():
        if first_answer := ask_twice(find(name), _here().progress):
            print(first_answer)
        else:
            page, text = side_by_side(find(name), _here().folder)
            display({"text/html": page, "text/plain": text}, raw=True)


def compare(name: str) -> None:
    """Run your function and the solution on the same random inputs; only where `solutions/` is present."""
    with _in_a_sentence():
        print(compare_code(find(name), _here().folder))


def reset(name: str) -> None:
    """Put one stub back, or a whole module ("ppo"); your text is kept beside the file."""
    with _in_a_sentence():
        print(source_text.reset(name, _here().folder))


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    """Print a `LabError` instead of raising it: a cell that asks for help goes on."""
    try:
        yield
    except LabError as error:
        print(error)


# --- the drill ------------------------------------------------------------------------------------


def cloze(snippet: str = "any", share: float = USUAL_SHARE, seed: int | None = None) -> None:
    """Show the drill: blanks in the six functions of the source, to be filled in from memory.

    Args:
        snippet: name of a function or class; "any": the seed chooses.
        share: of the code that is hidden, 0.1 to 0.6.
        seed: draws these blanks again; a new one where none is given.
    """
    from .cloze.widget import Drill  # ipywidgets: only this notebook needs it

    with _in_a_sentence():
        folder = _here().folder
        display(Drill(solutions_folder(folder), Scores(folder), snippet, share, seed))


def cloze_scores() -> None:
    """Show the drill's rounds so far: a table, and a picture from the second round on."""
    with _in_a_sentence():
        rounds = Scores(_here().folder).rounds()
        print(to_score_table(rounds))
        if len(rounds) > 1:
            display(cloze_figure(rounds))


# --- TODO cells -----------------------------------------------------------------------------------


class todo:
    """The frame of a TODO cell: `with lab.todo("compute_gae"): ...`

    A stub that is not written yet is one line, and so is an exception in the student's code: with the line of their
    file instead of a library's traceback (`lab.traceback()` shows that). The notebook goes on.
    """

    last: BaseException | None = None

    def __init__(self, *names: str):
        for name in names:  # they say to a reader what the cell calls; a misspelt one would say nothing
            find(name)

    def __enter__(self) -> "todo":
        return self

    def __exit__(self, kind, error, trace) -> bool:
        if error is None or not isinstance(error, Exception):
            return False  # an interrupt ends the cell
        todo.last = error
        print(_in_one_line(error))
        return True


def _in_one_line(error: Exception) -> str:
    if isinstance(error, LabError):
        return str(error)
    if stub_of(error):
        return f"not done yet: {error}"
    if (
        isinstance(error, NotImplementedError) and error.__traceback__.tb_next is None
    ):  # raised in the cell itself
        return "not done yet: this cell is for you to write"
    blame = (find_blame(error, _session.folder) if _session else None) or _blame_in_cell(error)
    place = f"\n  {blame}" if blame else ""
    return f"{describe(error)}{place}\n  lab.traceback() shows all of it."


def _blame_in_cell(error: Exception) -> Blame | None:
    """The line of the notebook's cell that an exception came through."""
    for frame in python_traceback.extract_tb(error.__traceback__):
        if "ipykernel" in frame.filename or frame.filename.startswith("<ipython"):
            return Blame("this cell", frame.lineno, frame.name, frame.line or "")
    return None


def traceback() -> None:
    """Show the whole traceback of the last exception that a TODO cell caught."""
    if todo.last is None:
        print("no TODO cell has caught an exception")
    else:
        print("".join(python_traceback.format_exception(todo.last)))


# --- showing --------------------------------------------------------------------------------------


def show(*things) -> None:
    """Display tables, pictures and texts one below the other, from anywhere in a cell."""
    for thing in things:
        print(thing) if isinstance(thing, str) else display(thing)


def table(rows: list[dict], caption: str = "") -> None:
    """Show rows of texts and numbers as a table."""
    from .token_table import plain_table_html

    display(HTML(plain_table_html(rows, caption)))


def live(draw: Callable, every: float = 2.0) -> Callable:
    """A picture that is drawn again while a cell runs.

    Args:
        draw: makes the picture, for instance `lab.ppo_figure`.
        every: seconds between two drawings.

    Returns:
        A function that takes what `draw` takes; with `last=True` it draws in any case.
    """
    handle = display(Markdown("..."), display_id=True) or DisplayHandle()  # None where there is no notebook
    drawn = 0.0

    def update(*arguments, last: bool = False) -> None:
        nonlocal drawn
        if last or time.monotonic() - drawn >= every:
            handle.update(draw(*arguments))
            drawn = time.monotonic()

    return update
