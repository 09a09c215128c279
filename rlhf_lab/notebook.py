"""What a notebook imports: `import rlhf_lab.notebook as lab`.

Checks and hints, the frame around a TODO cell, and the parts of the workbench that the notebooks use.
"""

import sys
import time
import traceback as python_traceback
from collections.abc import Callable
from pathlib import Path

import torch
from IPython.display import HTML, DisplayHandle, Markdown, display

from . import checks, source_text
from .backbones import TINY, load_causal_lm, load_tokenizer, quiet_transformers
from .checkpoints import SFT, ShippedReward
from .course import HINT_STEPS, find, select
from .data import load_data
from .data.judge import ToyJudge
from .errors import LabError
from .pictures import ppo_figure, reward_model_figure, sft_figure
from .progress import Progress, to_table
from .rewards import TextReward
from .sampling import distinct_2, sample
from .side_by_side import side_by_side
from .student_code import BrokenFile, Blame, describe, find_blame, package_folder, stub_of
from .token_table import index_picture, rollout_table, token_table, token_texts
from .watch import shuffled

__all__ = [
    "SFT", "TINY", "ShippedReward", "TextReward", "ToyJudge", "begin", "check", "compare", "distinct_2", "hint",
    "index_picture", "live", "load_causal_lm", "load_data", "load_tokenizer", "ppo_figure", "reset",
    "reward_model_figure", "rollout_table", "sample", "sft_figure", "show", "shuffled", "solution", "status", "table",
    "todo", "token_table", "token_texts", "traceback",
]  # fmt: skip


class _Session:
    """The package whose code this notebook runs, and the notebook's name."""

    notebook = ""
    folder = Path()
    progress: Progress


def begin(notebook: str, package: str) -> None:
    """Set a notebook up: whose code it runs, the seed, and one line about the machine.

    Args:
        notebook: its name, such as "03_ppo".
        package: the package with the code, `rlhf_exercises`.
    """
    quiet_transformers()
    torch.manual_seed(0)
    try:
        _Session.folder = package_folder(package)
    except BrokenFile as broken:
        print(f"{broken}. Open the notebook from the course's own folder (make lab).")
        return
    _Session.notebook, _Session.progress = notebook, Progress(_Session.folder)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    python = ".".join(map(str, sys.version_info[:2]))
    print(f"{notebook}: your code is {package}/ · Python {python}, torch {torch.__version__}, {device}")


# --- checks and help ------------------------------------------------------------------------------


def check(*names: str) -> None:
    """Check exercises, by name or number; all of this notebook where none is given."""
    for exercise in [e for name in names or (_Session.notebook,) for e in _selected(name)]:
        report = checks.check(exercise.name, _Session.folder)
        _Session.progress.record(report)
        _display(checks.to_html(report), checks.to_text(report))


def hint(name: str, step: int | None = None) -> None:
    """Show the next hint of an exercise: a nudge, a plan, almost code. `step` shows one of them again."""
    for exercise in _selected(name)[:1]:
        step = step or min(_Session.progress.asked(f"hint {exercise.name}"), len(HINT_STEPS))
        title = f"**{exercise.number} {exercise.name}, hint {step} of {len(HINT_STEPS)}: {HINT_STEPS[step - 1]}**"
        display(Markdown(f"{title}\n\n{exercise.hints[step - 1]}"))


def status() -> None:
    """Show all exercises with points and state."""
    print(to_table(_Session.progress.standings()))


def solution(name: str) -> None:
    """Show the solution beside your code; only where `solutions/` is present, and when asked twice."""
    for exercise in _selected(name)[:1]:
        if _Session.progress.asked(f"solution {exercise.name}") < 2:
            print(f'This will show all of {exercise.name}. hint("{exercise.name}") shows less. Call again to see it.')
            return
        page, text = side_by_side(exercise, _Session.folder)
        _display(page, text)


def compare(name: str) -> None:
    """Run your function and the solution on the same random inputs; only where `solutions/` is present."""
    from .compare import compare as compare_code

    for exercise in _selected(name)[:1]:
        print(compare_code(exercise, _Session.folder))


def reset(name: str) -> None:
    """Put one stub back; your text is kept beside the file."""
    for exercise in _selected(name)[:1]:
        kept = source_text.reset(exercise, _Session.folder)
        print(f"{exercise.name} is a stub again. What you had is in {kept.parent.name}/{kept.name}.")


def _selected(name: str) -> list:
    try:
        return select(name)
    except LabError as error:
        print(error)
        return []


# --- TODO cells -----------------------------------------------------------------------------------


class todo:
    """The frame of a TODO cell: `with lab.todo("compute_gae"): ...`

    A stub that is not written yet is one line, and so is an exception in the student's code: with the line of their
    file instead of a library's traceback (`lab.traceback()` shows that). The notebook goes on.
    """

    last: BaseException | None = None

    def __init__(self, *names: str):
        self.names = [find(name).name for name in names]

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
    if isinstance(error, NotImplementedError):
        stub = stub_of(error)
        return f"not done yet: {error}" if stub else "not done yet: this cell is for you to write"
    blame = find_blame(error, _Session.folder) or _blame_in_cell(error)
    place = f"\n  {blame}" if blame else ""
    return f"{describe(error)}{place}\n  lab.traceback() shows all of it."


def _blame_in_cell(error: Exception) -> Blame | None:
    """The line of the notebook's cell that an exception came through."""
    for frame in python_traceback.extract_tb(error.__traceback__):
        if "ipykernel" in frame.filename or frame.filename.startswith("<ipython"):
            return Blame("this/cell", frame.lineno, frame.name, frame.line or "")
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
    handle: DisplayHandle = display(Markdown("..."), display_id=True)
    drawn = 0.0

    def update(*arguments, last: bool = False) -> None:
        nonlocal drawn
        if last or time.monotonic() - drawn >= every:
            handle.update(draw(*arguments))
            drawn = time.monotonic()

    return update


def _display(page: str, text: str) -> None:
    """Show a page in a notebook; a reader without HTML gets the text."""
    display({"text/html": page, "text/plain": text}, raw=True)
