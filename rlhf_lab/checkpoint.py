"""A checkpoint in the middle of PPO: everything that the next step depends on, and no pickle."""

import shutil
from pathlib import Path

import torch
from torch import Tensor

from .errors import LabError
from .runs import (
    CHECKPOINTS,
    digest_of,
    read_json,
    read_tensors,
    replace_folder,
    write_json,
    write_tensors,
)


def save_checkpoint(
    stage_folder: Path, history: list[dict], policy: torch.nn.Module, optim: torch.optim.Optimizer
) -> Path:
    """Keep weights, optimiser moments, random generators and the history of the steps so far.

    The checkpoint before is deleted once the new one is whole.
    """
    previous = latest_checkpoint(stage_folder)
    path = stage_folder / f"step-{len(history):05d}"
    random_state = {"cpu": torch.get_rng_state()}
    device = _device(policy)
    if device.type == "cuda":
        random_state["cuda"] = torch.cuda.get_rng_state(device)
    with replace_folder(path) as folder:
        write_tensors(folder / "policy.safetensors", policy.state_dict())
        write_tensors(folder / "optimizer.safetensors", _flatten(optim.state_dict()["state"]))
        write_tensors(folder / "random.safetensors", random_state)
        write_json(folder / "history.json", history)
        write_json(folder / "files.json", {file.name: digest_of(file) for file in sorted(folder.iterdir())})
    if previous is not None and previous != path:
        shutil.rmtree(previous)
    return path


def latest_checkpoint(stage_folder: Path) -> Path | None:
    return max(stage_folder.glob(CHECKPOINTS), default=None)


def load_checkpoint(path: Path, policy: torch.nn.Module, optim: torch.optim.Optimizer) -> list[dict]:
    """Put policy, optimiser and random generators back; returns the history of the steps done.

    Raises:
        LabError: when a file is missing, damaged or was changed.
    """
    files = read_json(path / "files.json")
    for name, digest in files.items():
        if digest_of(path / name) != digest:
            raise LabError(
                f"{path / name} is damaged: add --fresh ppo to move it aside and train the stage again"
            )
    policy.load_state_dict(read_tensors(path / "policy.safetensors"))
    state = optim.state_dict()
    optim.load_state_dict({**state, "state": _unflatten(read_tensors(path / "optimizer.safetensors"))})
    random_state = read_tensors(path / "random.safetensors")
    torch.set_rng_state(random_state["cpu"])
    device = _device(policy)
    if "cuda" in random_state and device.type == "cuda":
        torch.cuda.set_rng_state(random_state["cuda"], device)
    return read_json(path / "history.json")


def _device(policy: torch.nn.Module) -> torch.device:
    return next(policy.parameters()).device


def _flatten(state: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}


def _unflatten(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".")
        # a copy: the loaded tensor is a window on the file, and the file is deleted with the next checkpoint
        state.setdefault(int(index), {})[name] = tensor.clone()
    return state
