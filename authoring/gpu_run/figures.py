"""The figures of a run on a GPU: read from what the course's commands leave behind."""

import json
import platform
import shutil
import statistics
import subprocess
from pathlib import Path

import torch

from rlhf_lab.errors import LabError
from rlhf_lab.machine import describe_machine

EDGE = 5  # steps at the beginning and at the end that a reward is the mean of


def machine(rehearse: bool) -> dict[str, str]:
    """The card with its driver, and what the figures depend on besides.

    Raises:
        LabError: when there is no GPU and this is no rehearsal.
    """
    if rehearse:
        card = driver = "none: this is a rehearsal on the CPU"
    elif not torch.cuda.is_available():
        raise LabError("torch sees no GPU here: add --rehearse to run the same, cut down, on the CPU")
    else:
        properties = torch.cuda.get_device_properties(0)
        card = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        driver = _driver()
    return {
        "card": card,
        "driver": driver,
        "CUDA of torch": str(torch.version.cuda),
        "machine": describe_machine(),
        "system": platform.platform(),
    }


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "unknown (there is no nvidia-smi)"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    return said.split("\n")[0].strip() or "unknown (nvidia-smi does not say)"


def of_run(folder: Path) -> dict:
    """Of a run folder: its PPO steps as far as they went, and the judge where the stage was finished."""
    history = of_file(folder / "ppo" / "history.json")
    stage = of_file(folder / "ppo" / "figures.json")
    found = {"ppo": history or []}
    if history:
        rewards, seconds = ([entry[name] for entry in history] for name in ("mean_reward", "seconds"))
        found |= {
            "steps": len(history),
            "seconds": sum(seconds),
            "seconds_per_step": statistics.median(seconds),
            "reward_first": statistics.fmean(rewards[:EDGE]),
            "reward_last": statistics.fmean(rewards[-EDGE:]),
            "approx_kl": max(entry["approx_kl"] for entry in history),
            "kl_to_ref": max(entry["kl_to_ref"] for entry in history),
        }
    if stage:
        found |= {"judge_before": stage["before"]["judge"], "judge_after": stage["after"]["judge"]}
    return found


def of_file(path: Path) -> dict | list | None:
    """What stands in a JSON file; None where there is none, or half of one: a command may have been cut off."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
