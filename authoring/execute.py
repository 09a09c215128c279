"""Run notebooks from top to bottom, as a reader would, and keep them with their outputs."""

import copy
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

from rlhf_lab.errors import LabError

from .notebooks import solution_notebook, student_notebook
from .paths import EXECUTED, NOTEBOOKS

SECONDS = {  # that a solution notebook may take on two cores
    "00_welcome": 30,
    "01_sft": 90,
    "02_reward_model": 90,
    "03_ppo": 60,
    "04_end_to_end": 180,
    "05_dpo": 120,
    "06_grpo": 120,
    "07_toy_rlhf": 120,
    "08_trainer": 120,
    "09_cloze": 30,
    "10_real_models": 90,
}


@dataclass(frozen=True)
class Execution:
    """An executed notebook, the seconds that it took and where it was written to."""

    notebook: nbformat.NotebookNode
    seconds: float
    path: Path


def execute(name: str, kind: str = "solution") -> Execution:
    """Run the `solution` or the blank `student` notebook; leave it as .ipynb and as a page in `build/notebooks`.

    Raises:
        LabError: with the cell and its error, when a cell fails.
    """
    notebook = {"solution": solution_notebook, "student": student_notebook}[kind](name)
    # a relative path in a notebook is relative to the folder that students open it in
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(NOTEBOOKS)}})
    start = time.perf_counter()
    try:
        client.execute()
    except CellExecutionError as error:
        raise LabError(f"{name} ({kind}): a cell failed.\n{error}") from None
    seconds = time.perf_counter() - start
    path = EXECUTED / kind / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    page, _ = HTMLExporter().from_notebook_node(without_widgets(notebook))
    path.with_suffix(".html").write_text(page, encoding="utf-8")
    return Execution(notebook, seconds, path)


def without_widgets(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy that shows the texts of widgets instead: on a page without a kernel nobody can press them."""
    page = copy.deepcopy(notebook)
    page.metadata.pop("widgets", None)
    for output in (output for cell in page.cells for output in cell.get("outputs", [])):
        output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    return page
