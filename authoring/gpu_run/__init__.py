"""What the course does on a GPU, in one go: `python -m authoring gpu`.

Everything is measured by the course's own commands, one process each, so that a command that fails or takes too long
costs its own figures only. What is there is written after each command: `gpu-run.md`, `results.json`, the pictures, and
what the commands print. `--rehearse` runs the same on a CPU with everything cut down.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_lab import backbones
from rlhf_lab.errors import LabError
from rlhf_lab.runs import write_json

from ..paths import ROOT
from . import figures
from .page import write_page

OUT = "OUT"  # stands for the folder in what is written
SEEDS = (0, 1, 2)
CURVES = ["--reward", "vader", "--batch", "64", "--steps", "50"]
# On a CPU, in a minute: without SFT and reward model, whose epochs are longer than that.
SHORT = [
    *["--device", "cpu", "--sft-epochs", "0", "--reward", "vader"],
    *["--steps", "2", "--batch", "8", "--new-tokens", "8"],
]


@dataclass(frozen=True)
class Command:
    """One process.

    Attributes:
        name: of what it prints, `NAME.txt` and `NAME.err`, and of its figures in `results.json`.
        arguments: behind `python -m`.
        read: its figures, from the folder of the whole run; after a command that was cut off too.
    """

    name: str
    arguments: tuple[str, ...]
    read: Callable[[Path], dict]


@dataclass(frozen=True)
class Part:
    """Commands that belong together, and the seconds that they may take."""

    name: str
    seconds: float
    commands: tuple[Command, ...]


def gpu_run(out: Path, rehearse: bool = False) -> int:
    """Run all parts; 1 when a command failed or was cut off.

    Raises:
        LabError: when there is no GPU and this is no rehearsal, or `out` is not empty.
    """
    machine = figures.machine(rehearse)
    if out.exists() and any(out.iterdir()):
        raise LabError(
            f"{out} is not empty, and an old run would be taken for a new one: choose another --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine, "commands": {}}
    parts = plan(out, larger_backbone(), rehearse)
    for part in parts:
        end = time.monotonic() + part.seconds
        for command in part.commands:
            print(f"{part.name}: python -m {' '.join(command.arguments)}", flush=True)
            entry = _execute(command, out, end - time.monotonic())
            print(f"    {entry['state']}, {entry['seconds']:.0f} s", flush=True)
            results["commands"][command.name] = entry
            write_json(out / "results.json", results)
            write_page(out, results)
    print(f"wrote {out / 'gpu-run.md'}")
    return 0 if all(entry["finished"] for entry in results["commands"].values()) else 1


def larger_backbone() -> str:
    """The pretrained backbone where it is installed, converted before any clock runs; else tiny."""
    if "smollm2" not in backbones.backbones_here():
        return "tiny"
    backbones.resolve("smollm2")
    return "smollm2"


def plan(out: Path, larger: str, rehearse: bool) -> list[Part]:
    """The parts in their order: 10 minutes together at most."""
    if rehearse:
        larger = "tiny"
    seeds = SEEDS[:1] if rehearse else SEEDS
    of_curves = CURVES
    of_bench = ["--batch", "64", "--repeats", "2"]
    if rehearse:
        of_curves = SHORT
        of_bench = ["--device", "cpu", "--batch", "2", "--new-tokens", "4", "--repeats", "1"]

    demo = _run("demo", ["demo"], out, SHORT if rehearse else [])
    curves = [
        _run(
            f"curves-{seed}",
            ["run", "--backbone", larger, "--data", "toy-en", "--seed", str(seed)],
            out,
            of_curves,
        )
        for seed in seeds
    ]
    grading = Command(
        "grading",
        ("authoring", "gpu-grading", str(out / "grading.json"), *(["--rehearse"] if rehearse else [])),
        lambda out: figures.of_file(out / "grading.json"),
    )
    benches = [
        Command(
            f"bench-{backbone}",
            ("rlhf_lab", "bench", "--json", "--backbone", backbone, *of_bench),
            lambda out, name=f"bench-{backbone}": figures.of_file(out / f"{name}.txt"),
        )
        for backbone in dict.fromkeys(["tiny", larger])
    ]
    parts = [
        Part("demo", 80, (demo,)),
        Part("curves", 280, tuple(curves)),
        Part("grading", 120, (grading,)),
        Part("bench", 120, tuple(benches)),
    ]
    # a rehearsal is short where it has a core to itself, and is not cut off where it has none
    return [replace(part, seconds=600) for part in parts] if rehearse else parts


def _run(name: str, command: list[str], out: Path, options: list[str]) -> Command:
    arguments = ("rlhf_lab", *command, "--run", str(out / name), *options)
    return Command(name, arguments, lambda out: figures.of_run(out / name))


def _execute(command: Command, out: Path, seconds: float) -> dict:
    """Run a command for so many seconds at most; what became of it, with its figures."""
    printed, said = out / f"{command.name}.txt", out / f"{command.name}.err"
    started = time.monotonic()
    with open(printed, "wb") as stdout, open(said, "wb") as stderr:
        try:
            process = [sys.executable, "-m", *command.arguments]
            status = subprocess.run(
                process, stdout=stdout, stderr=stderr, cwd=ROOT, timeout=max(seconds, 0)
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    return {
        "command": f"python -m {' '.join(command.arguments)}".replace(str(out), OUT),
        "seconds": round(time.monotonic() - started, 1),
        "state": _state(status, seconds, said),
        "finished": status in (0, 2),
        "figures": command.read(out),
    }


def _state(status: int | None, seconds: float, said: Path) -> str:
    if status is None:
        return f"cut off, for its time was over ({max(seconds, 0):.0f} s)"
    if status == 0:
        return "finished"
    if status == 2:
        return "finished, and missed a threshold"
    lines = said.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"failed with status {status}: {last[:300]}"
