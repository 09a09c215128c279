"""A student's function and the solution, side by side, for the self-learner who asks for it."""

import difflib
import html
from pathlib import Path

from .course import Exercise
from .errors import LabError
from .progress import Progress
from .source_text import text_of

STYLE = """
.rlhf-side { display: grid; grid-template-columns: 1fr 1fr; gap: 1em; color: inherit; font-size: 12px; }
.rlhf-side > div { overflow-x: auto; min-width: 0; }
.rlhf-side pre { margin: 0; font-size: 12px; line-height: 1.4; background: none; color: inherit; }
.rlhf-side .head { font-weight: 600; margin-bottom: .4em; }
.rlhf-side .other { background: rgba(230,159,0,.25); display: block; }
"""


def solutions_folder(folder: Path) -> Path:
    """Where the solutions are for the student's package in `folder`.

    Raises:
        LabError: when they are not there: a class does not hand them out.
    """
    solutions = folder.parent / "solutions"
    if not solutions.is_dir():
        raise LabError("the solutions are not in this course folder: only a self-learner has them")
    return solutions


def ask_twice(exercise: Exercise, progress: Progress) -> str:
    """What to say to who asks for a solution for the first time; nothing at the second time.

    Raises:
        LabError: when there are no solutions.
    """
    solutions_folder(progress.folder)
    if progress.asked(f"solution {exercise.name}") > 1:
        return ""
    return f"This shows all of {exercise.name}; a hint shows less. Ask once more to see it."


def side_by_side(exercise: Exercise, folder: Path) -> tuple[str, str]:
    """Both texts, as a page and as plain text.

    Raises:
        LabError: when there are no solutions, or the student's file has no such function.
    """
    theirs = text_of(folder / exercise.file, exercise.name)
    ours = text_of(solutions_folder(folder) / exercise.file, exercise.name)
    titles = (f"{folder.name}/{exercise.file}", f"solutions/{exercise.file}")
    plain = f"--- {titles[0]}\n{theirs}\n--- {titles[1]}\n{ours}"
    columns = "".join(
        f'<div><div class="head">{html.escape(title)}</div><pre>{text}</pre></div>'
        for title, text in zip(titles, _marked(theirs, ours), strict=True)
    )
    return f'<div class="rlhf-side"><style>{STYLE}</style>{columns}</div>', plain


def _marked(left: str, right: str) -> tuple[str, str]:
    """Both texts as HTML, the lines that the other one lacks marked."""
    a, b = left.splitlines(), right.splitlines()
    marked_a, marked_b = [], []
    for kind, a0, a1, b0, b1 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for lines, marked in ((a[a0:a1], marked_a), (b[b0:b1], marked_b)):
            for line in lines:
                text = html.escape(line)
                marked.append(text + "\n" if kind == "equal" else f'<span class="other">{text or " "}</span>')
    return "".join(marked_a), "".join(marked_b)
