"""Stubs and notebooks: one source, in step with it, and nothing in them that a student must not see."""

import ast
import json
import re
import shutil

import nbformat
import pytest
from nbgrader.nbgraderformat import MetadataValidator

from authoring import generate, notebooks, stubs
from authoring.paths import CELLS, NOTEBOOKS, PRISTINE, README, SOLUTIONS, STUBS
from rlhf_lab.course import HINT_STEPS, exercises
from rlhf_lab.errors import LabError
from rlhf_lab.settings import MODULES
from rlhf_lab.source_text import extent
from rlhf_lab.student_code import fresh_code, stub_of

ALL_NOTEBOOKS = tuple(notebooks.TITLES)


def test_everything_generated_is_in_step():
    assert [generate.shown(path) for path in generate.out_of_step()] == []


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder to generate into."""
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    for name in ("STUBS", "PRISTINE", "NOTEBOOKS", "CELLS", "MANIFEST", "README"):
        monkeypatch.setattr(generate, name, tmp_path / name)
    shutil.copy(README, tmp_path / "README")
    generate.generate()
    return tmp_path


def test_generate_mends_what_is_missing_and_removes_what_is_no_more(elsewhere):
    assert generate.out_of_step() == []
    (elsewhere / "STUBS" / "ppo.py").unlink()
    (elsewhere / "STUBS" / "compute_gae.old-1.txt").write_text("a student's")
    assert [path.name for path in generate.generate()] == ["ppo.py"]
    assert (elsewhere / "STUBS" / "compute_gae.old-1.txt").exists()

    # a notebook that was generated once and has no source any more
    old = elsewhere / "NOTEBOOKS" / "old.ipynb"
    old.write_text("{}")
    manifest = json.loads((elsewhere / "MANIFEST").read_text())
    (elsewhere / "MANIFEST").write_text(json.dumps(manifest | {"NOTEBOOKS/old.ipynb": generate._hash(b"{}")}))
    generate.generate()
    assert not old.exists()
    assert generate.out_of_step() == []


@pytest.mark.parametrize("file", ["STUBS/ppo.py", "NOTEBOOKS/03_ppo.ipynb", "NOTEBOOKS/mine.ipynb"])
def test_generate_never_overwrites_edits_unasked(elsewhere, file):
    path = elsewhere / file
    path.write_text("# a student's work\n")
    with pytest.raises(LabError, match=f"edited by hand.*{file}"):
        generate.generate()
    assert path.read_text() == "# a student's work\n"
    generate.generate(discard_edits=True)
    assert generate.out_of_step() == []


def test_a_change_of_the_solutions_is_no_edit(elsewhere, monkeypatch):
    files = stubs.stub_files()
    monkeypatch.setattr(generate, "stub_files", lambda: files | {"sft.py": files["sft.py"] + "# new\n"})
    assert {path.name for path in generate.generate()} == {"sft.py", "sft.txt", "MANIFEST"}


def test_the_table_in_the_readme_is_generated(elsewhere):
    text = (elsewhere / "README").read_text(encoding="utf-8")
    (elsewhere / "README").write_text(
        text.replace("| 3.3 | `compute_gae` ", "| 3.4 | `compute_gae` "), encoding="utf-8"
    )
    assert [path.name for path in generate.generate()] == ["README"]
    assert (elsewhere / "README").read_text(encoding="utf-8") == text


# --- stubs ----------------------------------------------------------------------------------------


def without_solutions(text: str) -> list[str]:
    return re.sub(
        r"^ *### BEGIN SOLUTION\n.*?^ *### END SOLUTION\n", "", text, flags=re.M | re.S
    ).splitlines()


def without_raises(text: str) -> list[str]:
    return re.sub(r"^ *raise NotImplementedError\(\n.*\n *\)\n", "", text, flags=re.M).splitlines()


@pytest.mark.parametrize("module", ["__init__", *MODULES])
def test_stub_and_solution_differ_in_function_bodies_only(module):
    solution = (SOLUTIONS / f"{module}.py").read_text(encoding="utf-8")
    stub = (STUBS / f"{module}.py").read_text(encoding="utf-8")
    assert without_raises(stub) == without_solutions(solution)
    assert "SOLUTION" not in stub


def test_nothing_but_stubs_lies_in_the_students_package():
    assert {path.name for path in STUBS.glob("*.py")} == {path.name for path in SOLUTIONS.glob("*.py")}


def test_each_stub_says_exercise_file_and_section():
    text = (STUBS / "ppo.py").read_text(encoding="utf-8")
    assert (
        '"exercise 3.3: write compute_gae in rlhf_exercises/ppo.py (notebooks/03_ppo.ipynb, section 3.3)"'
        in text
    )
    assert (
        '"exercise 4: write train_ppo in rlhf_exercises/ppo.py (notebooks/04_end_to_end.ipynb, section 4)"'
        in text
    )
    assert '"exercise 3.1: write PolicyWithValueHead.forward in ' in text


def test_every_exercise_has_a_stub_and_every_stub_an_exercise():
    found = set()
    for module in MODULES:
        text = (STUBS / f"{module}.py").read_text(encoding="utf-8")
        for name in re.findall(r"exercise \S+: write (\S+) in", text):
            exercise = exercises()[name.split(".")[0]]
            assert exercise.module == module
            found.add(exercise.name)
    assert found == set(exercises())


def test_numbers_are_the_same_in_the_docstrings():
    for module in MODULES:
        for node in ast.parse((SOLUTIONS / f"{module}.py").read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in exercises():
                assert f"(exercise {exercises()[node.name].number})" in ast.get_docstring(node), node.name


def test_a_stub_called_is_recognised():
    with fresh_code(STUBS) as code, pytest.raises(NotImplementedError) as raised:
        code.ppo.compute_gae(None, None, None)
    assert stub_of(raised.value) == "compute_gae"


def test_markers_without_a_partner_are_refused():
    function = "def train_sft():\n    pass\n"
    with pytest.raises(ValueError, match="line 4: the solution before has no end"):
        stubs.stub_module(f"{function}    ### BEGIN SOLUTION\n    ### BEGIN SOLUTION\n    pass\n")
    with pytest.raises(ValueError, match="line 3: a solution ends"):
        stubs.stub_module(f"{function}    ### END SOLUTION\n    pass\n")
    with pytest.raises(ValueError, match="the last solution has no end"):
        stubs.stub_module(f"{function}    ### BEGIN SOLUTION\n    pass\n")
    with pytest.raises(ValueError, match="line 1: a solution outside"):
        stubs.stub_module("### BEGIN SOLUTION\n### END SOLUTION\n")


def test_the_pristine_stubs_are_the_stubs():
    for module in MODULES:
        assert (PRISTINE / f"{module}.txt").read_bytes() == (STUBS / f"{module}.py").read_bytes()


# --- notebooks ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=ALL_NOTEBOOKS)
def student(request):
    return nbformat.read(NOTEBOOKS / f"{request.param}.ipynb", as_version=4)


def test_the_notebooks_are_those_of_the_course():
    assert tuple(notebooks.notebook_names()) == ALL_NOTEBOOKS


def test_notebooks_are_clean(student):
    for cell in student.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
    assert "jupytext" not in student.metadata


def test_a_student_sees_no_solution_and_no_hidden_test(student):
    text = json.dumps(student, ensure_ascii=False)
    for word in ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "grader_tests", "from solutions"):
        assert word not in text
    for cell in student.cells:
        mark = cell.metadata.get("nbgrader", {})
        if mark.get("solution") and cell.cell_type == "code":
            assert "raise NotImplementedError()" in cell.source
        if mark.get("solution") and cell.cell_type == "markdown":
            assert cell.source == "YOUR ANSWER HERE"


def test_nbgrader_accepts_the_metadata(student):
    marked = [cell for cell in student.cells if "nbgrader" in cell.metadata]
    MetadataValidator().validate_nb(student)  # raises where it does not
    ids = [cell.metadata.nbgrader.grade_id for cell in marked]
    assert len(ids) == len(set(ids))


def test_every_exercise_is_taught_and_checked_in_its_notebook_once():
    graded = {}
    for name in ALL_NOTEBOOKS:
        for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells:
            mark = cell.metadata.get("nbgrader", {})
            if mark.get("grade") and cell.cell_type == "code":
                graded[mark["grade_id"]] = (name, mark["points"])
            for exercise in exercises().values():
                if cell.source.startswith(f"### {exercise.number} `{exercise.name}`"):
                    assert exercise.notebook == name
    clinic = graded.pop("clinic")
    assert graded == {e.name: (e.notebook, e.points) for e in exercises().values()}
    assert clinic == ("04_end_to_end", 5)
    later = [points for notebook, points in graded.values() if notebook >= "05"]
    assert sum(points for _, points in graded.values()) - sum(later) + clinic[1] == 100
    assert sum(later) == 75


def test_the_instructors_notebook_holds_hidden_tests_and_solutions():
    cells = {
        cell.metadata.get("nbgrader", {}).get("grade_id"): cell
        for cell in notebooks.instructor_notebook("03_ppo").cells
    }
    assert 'grader_tests.grade("compute_gae")' in cells["compute_gae"].source
    assert any("### BEGIN SOLUTION" in cell.source for cell in cells.values())


def test_the_same_source_gives_the_same_file():
    first, second = (notebooks.to_text(notebooks.student_notebook("01_sft")) for _ in range(2))
    assert first == second


def test_two_cells_of_one_name_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "NOTEBOOK_SOURCES", tmp_path)
    (tmp_path / "03_ppo.py").write_text('# %% todo="a"\n1\n\n# %% todo="a"\n2\n')
    with pytest.raises(LabError, match="two cells are called a"):
        notebooks.instructor_notebook("03_ppo")


def test_no_two_cells_of_the_course_have_one_name():
    """In the assignment that is the whole course they stand side by side."""
    cells = json.loads(CELLS.read_text(encoding="utf-8"))
    names = [cell["grade_id"] for cells_of_one in cells.values() for cell in cells_of_one if cell["grade"]]
    assert [name for name in set(names) if names.count(name) > 1] == []


def test_every_exercise_has_three_hints_that_do_not_hold_the_solution():
    for exercise in exercises().values():
        assert len(exercise.hints) == len(HINT_STEPS)
        assert all(len(hint) > 20 for hint in exercise.hints), exercise.name
        assert "..." in exercise.hints[-1], f"{exercise.name}: almost code leaves the decisive piece out"
        text = (SOLUTIONS / exercise.file).read_text(encoding="utf-8")
        start, end = extent(text, exercise.name)
        bodies = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", text[start:end], re.DOTALL)
        solution = {line.strip() for body in bodies for line in body.splitlines() if len(line.strip()) > 25}
        hinted = {line.strip() for line in exercise.hints[-1].splitlines()}
        assert len(solution & hinted) <= len(solution) * 0.6, exercise.name


def test_links_lead_to_files(student):
    for cell in student.cells:
        for target in re.findall(
            r"\]\((?!http)([^)#]+)", cell.source if cell.cell_type == "markdown" else ""
        ):
            if not target.startswith("../runs/"):  # what a cell before the link writes
                assert (NOTEBOOKS / target).exists(), target
