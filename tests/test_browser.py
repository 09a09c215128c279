"""A student's first half hour in a real JupyterLab, in a real browser."""

import importlib.util
import shutil

import pytest

from authoring.browser import chromium, jupyterlab
from authoring.paths import NOTEBOOKS, STUBS

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
