"""The map to the field's frameworks covers the course, and what it says of TRL is found in TRL."""

import ast
import functools
import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest

from rlhf_lab.course import exercises

PAGE = Path(__file__).parent.parent / "docs" / "frameworks.md"
GIVEN = {
    "masked_mean",
    "position_ids_from_mask",
    "PreferenceDataset",
    "train_grpo",
}  # that matter, and are no exercise
PLACE = re.compile(r"`([\w/]+\.py): ([\w.]+)`")
COLUMNS = 5


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each of the course's functions, by its name."""
    table = {}
    for line in text.splitlines():
        if own := re.match(r"\| `(\w+)` \|", line):
            table[own[1]] = [cell.strip() for cell in line.strip("|").split("|")]
    return table


def missing(package: Path, cell: str) -> list[str]:
    """The places in a cell that are not found in the package."""
    return [f"{file}: {name}" for file, name in PLACE.findall(cell) if not is_defined(package / file, name)]


def is_defined(file: Path, dotted: str) -> bool:
    """Whether the file defines the function or class, at its top or inside the class that is named before it."""
    if not file.is_file():
        return False
    scope = parsed(file).body
    for name in dotted.split("."):
        found = [node for node in scope if getattr(node, "name", None) == name]
        if not found:
            return False
        scope = getattr(found[0], "body", [])
    return True


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page() -> dict[str, list[str]]:
    return rows(PAGE.read_text(encoding="utf-8"))


def test_every_exercise_and_what_is_given_with_it_has_a_row(page):
    assert set(page) == set(exercises()) | GIVEN


def test_every_cell_holds_places_or_says_that_there_is_none(page):
    for name, cells in page.items():
        assert len(cells) == COLUMNS, name
        for cell in cells[1:4]:
            assert cell == "none" or PLACE.sub("", cell).strip(", ") == "", (name, cell)
        assert cells[4].endswith("."), name


def test_what_is_said_of_trl_is_found_in_trl(page):
    spec = importlib.util.find_spec("trl")
    if spec is None:
        pytest.skip("TRL is not installed: pip install -c constraints.txt -e '.[peers]'")
    package = Path(spec.origin).parent
    assert [place for cells in page.values() for place in missing(package, cells[1])] == []


def test_the_release_of_trl_is_the_one_that_the_page_names():
    if importlib.util.find_spec("trl") is None:
        pytest.skip("TRL is not installed: pip install -c constraints.txt -e '.[peers]'")
    version = importlib.metadata.version("trl")
    assert f"release {version} " in PAGE.read_text(encoding="utf-8")


def test_a_place_that_is_not_there_is_noticed(tmp_path):
    (tmp_path / "loss.py").write_text("class Loss:\n    def forward(self):\n        pass\n", encoding="utf-8")
    right = "`loss.py: Loss.forward`, `loss.py: Loss`"
    wrong = "`loss.py: forward`, `loss.py: Loss.backward`, `other.py: Loss`"
    assert missing(tmp_path, right) == []
    assert missing(tmp_path, wrong) == ["loss.py: forward", "loss.py: Loss.backward", "other.py: Loss"]
