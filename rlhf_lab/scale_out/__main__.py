"""The command: `accelerate launch --multi_gpu --num_processes N -m rlhf_lab.scale_out`, or python for one process."""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from ..errors import LabError
from ..settings import Settings, add_option, checked_settings, defaults_for

OPTIONS = (
    "backbone", "data", "reward", "code", "seed", "device", "dtype", "steps", "batch", "new_tokens", "ppo_lr",
    "ppo_epochs", "kl_coef",
)  # fmt: skip
HELP = {"device": "auto (a GPU for each process where there are GPUs) or cpu"}  # other than a run's
SHOWN = ("mean_reward", "kl_to_ref", "approx_kl", "clipfrac", "seconds")


def main(argv: list[str] | None = None) -> int:
    """Train on this rank; rank 0 speaks for all of them, because they fail together."""
    arguments = _parser().parse_args(argv)
    speaks = os.environ.get("RANK", "0") == "0"
    try:
        _run(arguments)
        return 0
    except LabError as error:
        if speaks:
            print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        if speaks:
            print("\nstopped.", file=sys.stderr, flush=True)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlhf_lab.scale_out",
        description="PPO or GRPO over the processes of `accelerate launch`; docs/scale-out.md shows the commands.",
    )
    parser.add_argument("--method", choices=["ppo", "grpo"], default="ppo")
    parser.add_argument("--group", type=int, default=4, help="responses to a prompt in GRPO (default 4)")
    parser.add_argument(
        "--start",
        type=Path,
        help="run folder whose SFT model, reward and settings are taken, these as defaults (default: the shipped tiny)",
    )
    parser.add_argument("--run", type=Path, help="folder to write (default runs/scale-out-METHOD-N-seedS)")
    for name in OPTIONS:
        add_option(parser, name, HELP.get(name))
    return parser


def _run(arguments: argparse.Namespace) -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported: see rlhf_lab/cli.py
    from ..runs import Run, write_json, write_tensors
    from . import ranks, training

    accelerator = ranks.start_accelerator(arguments.device or Settings.device)
    group_size = arguments.group if arguments.method == "grpo" else None

    def door():
        from ..lab import open_lab

        settings = _settings(arguments, accelerator.device)
        training.check_batch(settings.batch, group_size, accelerator.num_processes)
        lab = open_lab(settings, arguments.start or Path())
        return lab, training.load_start(lab, arguments.start is not None)

    lab, start = ranks.on_all_ranks(accelerator, door)
    folder = arguments.run or training.default_folder(
        arguments.method, accelerator.num_processes, lab.settings.seed
    )
    speaks = accelerator.is_main_process

    def begin():
        if not speaks:
            return None
        if folder.exists():
            raise LabError(f"{folder} is there already: give --run the name of a new folder")
        about = {"method": arguments.method, "processes": accelerator.num_processes, "group": group_size}
        return Run(folder, {**dataclasses.asdict(lab.settings), **about})

    run = ranks.on_all_ranks(accelerator, begin)
    history, launcher = [], os.getppid()

    def on_step(figures: dict[str, float]) -> None:
        if os.getppid() != launcher:  # it was killed, and nobody would end us
            os._exit(1)
        if speaks:
            history.append(figures)
            write_json(folder / "history.json", history)
            shown = "  ".join(f"{name} {figures[name]:.3f}" for name in SHOWN)
            print(f"step {len(history):>3}/{lab.settings.steps}  {shown}", flush=True)

    if speaks:
        n_ranks = accelerator.num_processes
        print(
            f"{arguments.method} on {n_ranks} process{'es' if n_ranks > 1 else ''}, {lab.settings.batch} responses a step "
            f"over all of them, {lab.settings.backbone}, {lab.compute}",
            flush=True,
        )
    try:
        with lab.compute.autocast():
            learner = training.train(lab, accelerator, start, group_size, on_step)
        if speaks:
            write_tensors(folder / "policy.safetensors", learner.state_dict())
            print(f"written: {folder}", flush=True)
        accelerator.wait_for_everyone()
    finally:
        if run is not None:
            run.close()
        accelerator.end_training()


def _settings(arguments: argparse.Namespace, device) -> Settings:
    """The settings of the start's run, or the backbone's defaults, and over them what the command line gives."""
    from ..runs import read_settings

    given = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name) is not None}
    if arguments.start is not None:
        base = dataclasses.asdict(read_settings(arguments.start))
        for name in ("backbone", "reward"):
            if given.get(name, base[name]) != base[name]:
                raise LabError(
                    f"the run {arguments.start} has --{name} {base[name]}, not {given[name]}: leave the option out"
                )
    else:
        backbone = given.get("backbone", Settings.backbone)
        if backbone != "tiny":
            raise LabError(
                f"--backbone {backbone} needs --start RUN, the folder of `python -m rlhf_lab run --backbone {backbone}`"
            )
        base = defaults_for(backbone, given.get("data", Settings.data))
    settings = checked_settings({**base, **given})
    if arguments.group < 2:
        raise LabError(f"--group is {arguments.group}: a group needs at least 2 responses")
    # each rank its own GPU; `cpu:0`, Accelerate's name for the CPU, is no other device than `cpu`
    return dataclasses.replace(settings, device="cpu" if device.type == "cpu" else str(device))


if __name__ == "__main__":
    sys.exit(main())
