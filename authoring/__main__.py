"""The authors' command line: `python -m authoring COMMAND`."""

import argparse
import os
import sys
from pathlib import Path

from rlhf_lab.errors import LabError

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in rlhf_lab.cli: before torch is imported


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m authoring", description="What the authors of the course run."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    known = commands.add_parser("known", help="write what the checks know of each case and mistake")
    known.add_argument("exercises", nargs="*", help="names; all where none is given")
    known.set_defaults(command=_known)

    kills = commands.add_parser("kills", help="which wrong implementations the visible checks catch")
    kills.add_argument("exercises", nargs="*", help="names; all where none is given")
    kills.add_argument("--each", action="store_true", help="one line for each implementation too")
    kills.set_defaults(command=_kills)

    grader = commands.add_parser("grader-kills", help="which wrong implementations the hidden tests catch")
    grader.add_argument("exercises", nargs="*", help="names; all where none is given")
    grader.set_defaults(command=_grader_kills)

    demo = commands.add_parser("grade-demo", help="a class of twelve from release to report")
    demo.add_argument("--out", type=Path, default=Path("runs/grade-demo"), help="folder of the course")
    demo.add_argument("--no-training", action="store_true", help="leave out the tests that train a model")
    demo.add_argument("--no-browser", action="store_true", help="do not open the report")
    demo.set_defaults(command=_grade_demo)

    bench = commands.add_parser("grader-bench", help="a large class, beside nbgrader as it comes")
    bench.add_argument("--assignment", default="03_ppo", help="which one")
    bench.add_argument("--students", type=int, default=200, help="in the class")
    bench.add_argument("--stock", type=int, default=10, help="of them also graded by stock nbgrader")
    bench.add_argument("-j", "--jobs", type=int, default=2, help="processes that work at the same time")
    bench.set_defaults(command=_grader_bench)

    methods = commands.add_parser(
        "methods", help="PPO, DPO and GRPO on three seeds, for README and notebooks"
    )
    methods.set_defaults(command=_methods)

    record = commands.add_parser(
        "record-run", help="a finished run on human feedback, with DPO and GRPO, for notebook and docs"
    )
    record.add_argument("folder", type=Path, help="the run folder")
    record.set_defaults(command=_record_run)

    peers = commands.add_parser("peers", help="our DPO and GRPO beside TRL's: values, and what a step costs")
    peers.add_argument("--values", action="store_true", help="only the values")
    peers.set_defaults(command=_peers)

    gpu = commands.add_parser("gpu", help="everything that is to be measured on a GPU, in 10 minutes")
    gpu.add_argument("--out", type=Path, default=Path("runs/gpu-run"), help="new folder for page and figures")
    gpu.add_argument("--rehearse", action="store_true", help="the same on the CPU, cut down to a minute")
    gpu.set_defaults(command=_gpu)

    grading = commands.add_parser("gpu-grading", help="its part that grades right and wrong training loops")
    grading.add_argument("path", type=Path, help="JSON file to write")
    grading.add_argument("--rehearse", action="store_true", help="fewer of them, and no training")
    grading.set_defaults(command=_gpu_grading)

    generate = commands.add_parser("generate", help="write rlhf_exercises/ and notebooks/ from solutions/")
    generate.add_argument(
        "--discard-edits", action="store_true", help="also over files that a person has edited"
    )
    generate.set_defaults(command=_generate)

    check = commands.add_parser("check-generated", help="fail when they are not what generate would write")
    check.set_defaults(command=_check_generated)

    run = commands.add_parser("execute", help="run notebooks and keep them in build/notebooks/")
    run.add_argument("notebooks", nargs="*", help="names; all where none is given")
    run.add_argument(
        "--blank", action="store_true", help="the student's notebooks instead of the solved ones"
    )
    run.set_defaults(command=_execute)

    pictures = commands.add_parser("pictures", help="executed notebooks as JupyterLab shows them, in PNGs")
    pictures.add_argument("out", type=Path, help="folder to write")
    pictures.add_argument("notebooks", nargs="*", help="names; all where none is given")
    pictures.add_argument("--dark", action="store_true", help="in the dark theme")
    pictures.set_defaults(command=_pictures)

    checkpoints = commands.add_parser(
        "checkpoints", help="train the checkpoints that the notebooks start from"
    )
    checkpoints.set_defaults(command=_checkpoints)

    clinic = commands.add_parser("clinic", help="record the runs of the clinic, one for each defect")
    clinic.add_argument("cases", nargs="*", help="letters, or healthy; all where none is given")
    clinic.set_defaults(command=_clinic)

    arguments = parser.parse_args()
    try:
        return arguments.command(arguments) or 0
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _generate(arguments: argparse.Namespace) -> None:
    from .generate import generate, shown

    changed = generate(arguments.discard_edits)
    for path in changed:
        print(f"{'wrote' if path.exists() else 'removed'} {shown(path)}")
    print(f"{len(changed)} files changed" if changed else "everything is in step")


def _check_generated(arguments: argparse.Namespace) -> int:
    from .generate import out_of_step, shown

    differing = out_of_step()
    for path in differing:
        print(f"out of step: {shown(path)}")
    print("run `make generate` and commit what it writes" if differing else "everything is in step")
    return 1 if differing else 0


def _pictures(arguments: argparse.Namespace) -> None:
    from .browser import picture_notebooks
    from .notebooks import notebook_names
    from .paths import EXECUTED

    names = arguments.notebooks or notebook_names()
    picture_notebooks(
        [EXECUTED / "solution" / f"{name}.ipynb" for name in names], arguments.out, arguments.dark
    )


def _checkpoints(arguments: argparse.Namespace) -> None:
    from .checkpoints import build_checkpoints

    build_checkpoints()


def _clinic(arguments: argparse.Namespace) -> None:
    from .clinic import record_clinic

    record_clinic(arguments.cases)


def _execute(arguments: argparse.Namespace) -> None:
    from .execute import SECONDS, execute
    from .notebooks import notebook_names

    for name in arguments.notebooks or notebook_names():
        done = execute(name, "student" if arguments.blank else "solution")
        print(
            f"{name}: {done.seconds:.0f} s of {SECONDS[name]}, {done.path.with_suffix('.html')}", flush=True
        )


def _known(arguments: argparse.Namespace) -> None:
    from rlhf_lab.course import find

    from .known import write_known

    write_known([find(name).name for name in arguments.exercises])


def _kills(arguments: argparse.Namespace) -> None:
    from rlhf_lab.course import exercises, find

    from .kills import kill_table
    from .known import show_bank
    from .paths import ROOT
    from .tables import write_table

    table, kills = kill_table(show_bank([find(name).name for name in arguments.exercises] or exercises()))
    if arguments.each:
        for kill in kills:
            kind = "right" if kill.entry.correct else "wrong"
            print(f"{kind}  {kill.entry.exercise}: {kill.entry.says}")
            print(f"       {kill.state}; named: {kill.named}\n       unseen: {kill.named_unseen}")
    print(table)
    if not arguments.exercises:
        write_table(ROOT / "docs" / "checks.md", "kills", table)


def _grader_kills(arguments: argparse.Namespace) -> int:
    from rlhf_lab.course import find

    from .grader_kills import main

    return main([find(name).name for name in arguments.exercises])


def _grade_demo(arguments: argparse.Namespace) -> int:
    from .grade_demo import grade_demo

    return grade_demo(arguments.out, not arguments.no_training, not arguments.no_browser)


def _methods(arguments: argparse.Namespace) -> int:
    from rlhf_lab.methods import METHODS, RECORDED, compare_methods, to_json, to_rows
    from rlhf_lab.runs import write_json

    from .paths import README
    from .tables import table_of_rows, write_table

    outcomes = compare_methods("solutions", METHODS, seeds=[0, 1, 2])
    write_json(RECORDED, to_json(outcomes))
    table = table_of_rows(to_rows(outcomes))
    write_table(README, "methods", table)
    print(table)
    return 2 if any(outcome.missed for outcome in outcomes) else 0


def _record_run(arguments: argparse.Namespace) -> None:
    from .record_run import record_run

    record_run(arguments.folder)


def _peers(arguments: argparse.Namespace) -> int:
    from .paths import ROOT
    from .peers import compare_values, costs_table, step_costs, values_table
    from .tables import write_table

    comparisons = compare_values()
    print(values_table(comparisons))
    if not arguments.values:
        costs = costs_table(step_costs())
        print(costs)
        page = ROOT / "docs" / "peers.md"
        write_table(page, "values", values_table(comparisons))
        write_table(page, "costs", costs)
    return 0 if all(comparison.as_expected for comparison in comparisons) else 2


def _gpu(arguments: argparse.Namespace) -> int:
    from .gpu_run import gpu_run

    return gpu_run(arguments.out.resolve(), arguments.rehearse)


def _gpu_grading(arguments: argparse.Namespace) -> int:
    from .gpu_run.grading import grade_loops

    return grade_loops(arguments.path, arguments.rehearse)


def _grader_bench(arguments: argparse.Namespace) -> int:
    from .grader_bench import grader_bench

    return grader_bench(arguments.assignment, arguments.students, arguments.stock, arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
