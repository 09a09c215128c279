"""A run on a real model and human feedback, recorded: what takes a laptop an hour can be looked at in a second.

`python -m authoring record-run FOLDER` writes `recorded.json` from a finished run folder.
"""

from pathlib import Path

from ..runs import read_json

RECORDED = Path(__file__).parent / "recorded.json"


def recorded_run() -> dict:
    """The recorded run.

    Returns:
        `command`, `machine`, `card` (lines of the score card), `history`
        (PPO, an entry a step), `goal` (what the judge shall say), `samples`, `memory` (what it would need on a GPU, computed)
        and `methods` (a row for PPO, DPO and GRPO).
    """
    return read_json(RECORDED)
