"""Notebooks out of their sources, `solutions/notebooks/*.py` (jupytext py:percent).

A source is a notebook with its solutions. Five kinds of cell are marked, and the generator writes what belongs to them:

    # %% [markdown] exercise="compute_gae"      heading, box and link in front of the text
    # %% check="compute_gae"                    (empty) the check, nbgrader's grade cell, and the folded hints after it
    # %% todo="one_step_by_hand"                code with a solution between its markers, for the student to write
    # %% [markdown] answer="why_eos" points=2   a model answer; the student gets an empty cell, graded by hand
    # %% grade="clinic" points=5                given code that is locked and graded by running it

The line {navigation} in a text becomes the links to all notebooks, the line {frameworks} the
tables of docs/frameworks.md, as lists.

Three notebooks come out of one source: `student` (no solution, no hidden test, no output), `solution` (it runs, with
`solutions` for `rlhf_exercises`) and `instructor` (everything, as nbgrader's source folder wants it).
"""

import copy

import jupytext
import nbformat
from nbformat import NotebookNode
from nbgrader.preprocessors import ClearHiddenTests, ClearSolutions

from rlhf_lab.course import HINT_STEPS, Exercise, exercises
from rlhf_lab.errors import LabError
from rlhf_lab.settings import STUB_PACKAGE

from .paths import NOTEBOOK_SOURCES, ROOT
from .stubs import BEGIN, END, first_stub_line, stub_files

SOLUTION_PACKAGE = "solutions"
NAVIGATION, FRAMEWORKS = "{navigation}", "{frameworks}"  # lines of a Markdown cell
TITLES = {  # in the line that leads from one notebook to the others
    "00_welcome": "Welcome",
    "01_sft": "SFT",
    "02_reward_model": "Reward model",
    "03_ppo": "PPO",
    "04_end_to_end": "End to end",
    "05_dpo": "DPO",
    "06_grpo": "GRPO",
    "07_toy_rlhf": "Toy RLHF",
    "08_trainer": "Trainer",
    "09_cloze": "Drill",
    "10_real_models": "Real models",
}
KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebook_names() -> list[str]:
    return sorted(path.stem for path in NOTEBOOK_SOURCES.glob("*.py"))


def instructor_notebook(name: str) -> NotebookNode:
    """The notebook with solutions and hidden tests.

    Raises:
        LabError: when a cell of the source names an exercise that does not exist, or two cells have one name.
    """
    source = jupytext.read(NOTEBOOK_SOURCES / f"{name}.py", fmt="py:percent")
    notebook = nbformat.v4.new_notebook(metadata=copy.deepcopy(KERNEL))
    for cell in source.cells:
        cell.source = cell.source.replace(NAVIGATION, _navigation(name)).replace(FRAMEWORKS, _frameworks())
        notebook.cells += _written_out(cell)
    seen = set()
    for number, cell in enumerate(notebook.cells):
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        if grade_id in seen:
            raise LabError(f"{name}: two cells are called {grade_id}")
        seen |= {grade_id} - {None}
        cell.id = f"{name}-{grade_id or number}"[:64]
    return notebook


def student_notebook(name: str) -> NotebookNode:
    """The notebook as a student gets it."""
    notebook, resources = instructor_notebook(name), {}
    for preprocessor in (ClearSolutions(), ClearHiddenTests()):
        notebook, resources = preprocessor.preprocess(notebook, resources)
    for cell in notebook.cells:
        cell.source = cell.source.rstrip("\n")
    return notebook


def marked_cells(notebook: NotebookNode) -> list[dict]:
    """Kind, text and nbgrader's marks of the cells that it knows, as they are released."""
    return [
        {"cell_type": cell.cell_type, "source": cell.source, **cell.metadata["nbgrader"]}
        for cell in notebook.cells
        if "nbgrader" in cell.metadata
    ]


def solution_notebook(name: str) -> NotebookNode:
    """The notebook that runs: the solutions stand in for the student's package, without markers and hidden tests."""
    notebook, _ = ClearHiddenTests().preprocess(instructor_notebook(name), {})
    for cell in notebook.cells:
        lines = [line for line in cell.source.split("\n") if line.strip() not in (BEGIN, END)]
        cell.source = "\n".join(lines).rstrip("\n")
        if cell.cell_type == "code":
            cell.source = cell.source.replace(STUB_PACKAGE, SOLUTION_PACKAGE)
    return notebook


def to_text(notebook: NotebookNode) -> str:
    """The file's content; the same notebook gives the same text."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4) + "\n"


def _written_out(cell: NotebookNode) -> list[NotebookNode]:
    """The cells that a cell of the source stands for."""
    mark = cell.metadata
    if "exercise" in mark:
        exercise = exercises()[mark["exercise"]]
        return [_markdown(f"{_box(exercise)}\n\n{cell.source}")]
    if "check" in mark:
        exercise = exercises()[mark["check"]]
        return [_check(exercise), _markdown(_hints(exercise))]
    if "todo" in mark:
        return [_code(cell.source, _nbgrader(mark["todo"], solution=True))]
    if "answer" in mark:
        return [
            _markdown(
                cell.source, _nbgrader(mark["answer"], solution=True, grade=True, points=mark["points"])
            )
        ]
    if "grade" in mark:
        return [_code(cell.source, _nbgrader(mark["grade"], grade=True, locked=True, points=mark["points"]))]
    return [(_code if cell.cell_type == "code" else _markdown)(cell.source)]


def _frameworks() -> str:
    """The tables of docs/frameworks.md as lists, one heading deeper: a notebook is too narrow for five columns."""
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    lines = []
    for section in page.split("\n## ")[1:]:
        rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
        if not rows or rows[0][0] != "ours":
            continue
        lines += [f"### {section.splitlines()[0]}", ""]
        names = rows[0][1:-1]
        for ours, *places, differs in rows[1:]:
            found = " · ".join(f"{name} {place}" for name, place in zip(names, places, strict=True))
            lines += [f"- **{ours}** {differs}<br>{found}"]
        lines.append("")
    return "\n".join(lines).strip()


def _navigation(current: str) -> str:
    """Links to the other notebooks."""
    links = []
    for name in notebook_names():
        title = f"{name.partition('_')[0]} {TITLES[name]}"
        links.append(f"**{title}**" if name == current else f"[{title}]({name}.ipynb)")
    return " · ".join(links)


def _box(exercise: Exercise) -> str:
    def dots(n: int) -> str:
        return "●" * n + "○" * (5 - n)

    link = f"../{STUB_PACKAGE}/{exercise.file}#line={_stub_line(exercise)}"
    return (
        f"### {exercise.number} `{exercise.name}`\n\n"
        f"| difficulty | importance | time | points | write it in |\n|:-:|:-:|:-:|:-:|:--|\n"
        f"| {dots(exercise.difficulty)} | {dots(exercise.importance)} | {exercise.minutes} min | {exercise.points} "
        f"| [{STUB_PACKAGE}/{exercise.file}]({link}), `{exercise.name}` |"
    )


def _stub_line(exercise: Exercise) -> int:
    """Where JupyterLab is to put the cursor: at the first line to write, which leaves the docstring on the screen.

    It counts lines from 0.
    """
    return first_stub_line(stub_files()[exercise.file], exercise.name) - 1


def _check(exercise: Exercise) -> NotebookNode:
    source = (
        f'lab.check("{exercise.name}")\n### BEGIN HIDDEN TESTS\nimport grader_tests\n'
        f'grader_tests.grade("{exercise.name}")\n### END HIDDEN TESTS'
    )
    return _code(source, _nbgrader(exercise.name, grade=True, locked=True, points=exercise.points))


def _hints(exercise: Exercise) -> str:
    folded = [
        f"<details><summary>Hint {number}: {step}</summary>\n\n{hint}\n\n</details>"
        for number, (step, hint) in enumerate(zip(HINT_STEPS, exercise.hints, strict=True), 1)
    ]
    return "\n\n".join(folded)


def _nbgrader(grade_id: str, *, solution=False, grade=False, locked=False, points: int | None = None) -> dict:
    entry = {"grade": grade, "grade_id": grade_id, "locked": locked, "schema_version": 3}
    entry |= {"solution": solution, "task": False} | ({"points": points} if points is not None else {})
    return {"nbgrader": entry}


def _code(source: str, metadata: dict | None = None) -> NotebookNode:
    return nbformat.v4.new_code_cell(source, metadata=metadata or {})


def _markdown(source: str, metadata: dict | None = None) -> NotebookNode:
    return nbformat.v4.new_markdown_cell(source, metadata=metadata or {})
