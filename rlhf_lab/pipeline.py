"""The pipeline: the three stages in order, each picked up where a run folder has it finished."""

import dataclasses
import hashlib
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from . import out_of_memory
from .lab import Lab, classifier_folder
from .machine import peak_memory_mib
from .memory import format_needs
from .profiles import describe_profile
from .runs import Run, check_idle, digest_of, read_json, set_aside, write_json
from .settings import STAGES, Settings
from .stages import ppo, reward_model, sft
from .thresholds import asked_of


@dataclass(frozen=True)
class Results:
    """What a finished run left behind: the figures of each stage and PPO's history, a dictionary a step.

    `reward_model` is None where PPO was trained on a stand-in.
    """

    lab: Lab
    sft: dict
    reward_model: dict | None
    ppo: dict
    history: list[dict]

    @property
    def judge_goal(self) -> float:
        """What the judge shall say after PPO."""
        return asked_of(self.lab.data.name).judge_goal(self.ppo["before"]["judge"])

    @property
    def stages(self) -> dict[str, dict]:
        """The figures of the stages that this run has, by name."""
        return {name: figures for name in STAGES if (figures := getattr(self, name)) is not None}


def run_pipeline(lab: Lab) -> Results:
    """Run or resume all stages of `lab`'s run folder."""
    print(f"backbone {lab.settings.backbone}, data {lab.data.name}, code {lab.code.package}, {lab.compute}")
    if (card := lab.compute.free_and_total()) is not None:
        title = f"computed memory, profile {describe_profile(lab.profile)}:"
        print(format_needs(title, lab.needs(lab.profile), card))
    run = Run(lab.folder, lab.settings.deciding)
    try:
        with lab.compute.autocast():
            given = {
                "backbone": digest_of(lab.base),
                "data": _data_digest(lab),
                "device or dtype": f"{lab.compute.device.type}, {lab.compute.dtype}",  # what `auto` came to
            }
            sft_figures = _stage(lab, run, "sft", sft.train, given)
            made = {"SFT model": digest_of(lab.sft_model)}
            rm_figures = None
            if lab.settings.reward == "rm":
                rm_figures = _stage(lab, run, "reward_model", reward_model.train, given)
                made["reward model"] = digest_of(lab.folder / "reward_model" / "model.safetensors")
            elif lab.settings.reward != "vader":
                made["classifier"] = digest_of(classifier_folder(lab.settings.reward))
            ppo_figures = _stage(lab, run, "ppo", ppo.train, {**given, **made})
    finally:
        run.close()
    return Results(lab, sft_figures, rm_figures, ppo_figures, read_json(lab.folder / "ppo" / "history.json"))


def start_over(folder: Path, stage: str | None, settings: Settings) -> None:
    """Move a run, or its stages from `stage` on, aside; nothing is deleted.

    Raises:
        LabError: when the folder is not a run folder, another process is working in it, or the stages that stay
            were made with other settings.
    """
    if not folder.exists():
        return
    check_idle(folder)
    if stage is not None:
        Run(folder, settings.deciding).close()
    moved = [folder] if stage is None else [folder / name for name in STAGES[STAGES.index(stage) :]]
    for path in moved:
        if path.exists():
            print(f"moved {path} to {set_aside(path)}")


def _stage(lab: Lab, run: Run, name: str, train, given: dict) -> dict:
    """Train a stage unless it is finished; return its figures.

    It is finished for the inputs that it was trained from: the taught modules up to its own, and what is `given`.
    """
    modules = STAGES[: STAGES.index(name) + 1]
    stage = run.stage(name, {**given, **{f"{module}.py": lab.code.fingerprint(module) for module in modules}})
    if stage.begin():
        start = time.perf_counter()
        torch.manual_seed(lab.settings.seed)
        random.seed(lab.settings.seed)
        with out_of_memory.told(lambda: out_of_memory.in_stage(lab, name)):
            figures = train(lab, stage.folder)
        # a stage that goes on from a checkpoint counts what it took before
        figures["seconds"] = round(time.perf_counter() - start + figures.pop("seconds_before", 0.0), 2)
        figures["peak_memory_mib"] = round(peak_memory_mib())
        figures["profile"] = "none" if lab.profile is None else lab.profile.name
        write_json(stage.folder / "figures.json", figures)
        stage.finish()
    else:
        print(f"{name}: finished before, taken from {stage.folder}")
    return read_json(stage.folder / "figures.json")


def _data_digest(lab: Lab) -> str:
    splits = [field.name for field in dataclasses.fields(lab.data) if field.name != "name"]
    rows = {split: getattr(lab.data, split).to_list() for split in splits}
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
