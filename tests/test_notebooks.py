"""Every notebook runs from top to bottom: solved by the solutions, and blank as a student first opens it.

`python -m authoring execute` prints how long each takes.
"""

import pytest

from authoring.execute import execute
from authoring.notebooks import notebook_names


def outputs(execution):
    return [output for cell in execution.notebook.cells for output in cell.get("outputs", [])]


def texts(execution):
    """Everything that the cells have said, as plain text."""
    shown = []
    for output in outputs(execution):
        shown.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "\n".join(shown)


@pytest.mark.parametrize("name", notebook_names())
def test_the_solved_notebook_runs_and_all_its_checks_pass(name):
    executed = execute(name)
    # nbgrader gives no point to a cell that says anything on stderr
    assert [output.text for output in outputs(executed) if output.get("name") == "stderr"] == []
    said = texts(executed)
    assert "not done yet" not in said.lower()
    assert said.count("  FAIL  ") == (1 if name == "00_welcome" else 0)  # there, the practice has a mistake
    for cell in executed.notebook.cells:
        if (
            cell.metadata.get("nbgrader", {}).get("grade")
            and cell.cell_type == "code"
            and "lab.check(" in cell.source
        ):
            assert "Done." in "".join(o.get("data", {}).get("text/plain", "") for o in cell.outputs)


@pytest.mark.parametrize("name", notebook_names())
def test_the_blank_notebook_runs_to_its_end(name):
    executed = execute(name, "student")
    assert [output.text for output in outputs(executed) if output.get("name") == "stderr"] == []
    if name not in ("00_welcome", "09_cloze"):  # which ask for nothing
        assert "not done yet" in texts(executed).lower()
