"""A student's first half hour in a real JupyterLab, in a real browser."""

import importlib.util
import shutil

import pytest

from authoring.browser import chromium, jupyterlab
from authoring.paths import NOTEBOOKS, SOLUTIONS, STUBS
from rlhf_lab.cloze.blanks import draw
from rlhf_lab.cloze.snippets import load_snippet

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="needs playwright: pip install -e .[browser]"
    ),
    pytest.mark.skipif(chromium() is None, reason="needs Debian's package chromium, or CHROMIUM"),
]

LEAKS = """\
    valid = mask.bool()
    advantages = torch.zeros_like(rewards)
    next_value = next_advantage = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        td_error = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = (td_error + gamma * lam * next_advantage).where(valid[:, t], 0.0)
        next_value = values[:, t]  # also where there is only padding
        advantages[:, t] = next_advantage
    return advantages, (advantages + values).where(valid, 0.0)
"""
LEAK = "# also where there is only padding"
MENDED = "        next_value = values[:, t].where(valid[:, t], 0.0)\n"


@pytest.fixture
def course(tmp_path):
    """A course folder of its own, with blank stubs: the test types into them."""
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks")
    shutil.copytree(
        STUBS, tmp_path / "rlhf_exercises", ignore=shutil.ignore_patterns("__pycache__", "*.old-*")
    )
    return tmp_path


def test_a_student_writes_compute_gae(course):
    with jupyterlab(course) as lab:
        lab.open("notebooks/03_ppo.ipynb")
        lab.run("lab.begin(")
        assert "Not done yet" in lab.run('lab.check("compute_gae")')

        lab.follow("rlhf_exercises/ppo.py", near="compute_gae")
        lab.type_over("write compute_gae in", LEAKS, above=1, below=1)
        lab.save()
        lab.switch_to("03_ppo.ipynb")
        report = lab.run('lab.check("compute_gae")')
        assert "FAIL" in report
        assert "padded position" in report

        lab.switch_to("ppo.py")
        lab.type_over(LEAK, MENDED)
        lab.save()
        lab.switch_to("03_ppo.ipynb")
        report = lab.run('lab.check("compute_gae")')
        assert "FAIL" not in report
        assert "Done." in report

        # the kernel that ran all of this, and has imported the stub, calls the new code
        lab.run("example = lab.examples.")
        shown = lab.run("def gae_slowly")
        assert "fast, row 0: " in shown
        assert "not done yet" not in shown


def test_a_round_of_the_drill_with_the_keyboard_alone(course):
    shutil.copytree(SOLUTIONS, course / "solutions")
    path = course / "notebooks" / "09_cloze.ipynb"
    path.write_text(
        path.read_text(encoding="utf-8").replace("lab.cloze()", "lab.cloze('rm_loss', share=0.2, seed=6)"),
        encoding="utf-8",
    )
    first, second, third = (blank.text for blank in draw(load_snippet("rm_loss", SOLUTIONS), 0.2, 6).blanks)
    with jupyterlab(course) as lab:
        lab.open("notebooks/09_cloze.ipynb")
        lab.run("lab.begin(")
        lab.run("lab.cloze(")
        cell, keyboard = lab.cell("lab.cloze("), lab.page.keyboard
        cell.locator(".rlhf-cloze-field input").first.click()

        def type_and_wait(text: str, said: str) -> None:
            keyboard.type(text)
            keyboard.press("Enter")
            cell.get_by_text(said).first.wait_for()

        type_and_wait("nothing_of_this_name", "With it the code raises NameError")
        keyboard.press("Control+A")
        type_and_wait(first, "1 of 3 blanks, 2 of 9 points.")  # and the cursor goes to the next field
        type_and_wait("?", "It is ")
        type_and_wait(second, "2 of 3 blanks, 4 of 9 points.")
        type_and_wait(third, "3 of 3 blanks, 7 of 9 points.")
        keyboard.press("Enter")  # on "New draw"
        cell.get_by_text("0 of ").first.wait_for()
        assert "rm_loss" in lab.run("lab.cloze_scores(")
