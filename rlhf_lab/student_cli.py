"""The student's commands: check, hint, status, solution, compare, reset, cloze, and doctor.

The notebooks have the same as functions, but for doctor. Where there are no solutions, the help does not speak of the
commands that show them; who knows them gets a sentence.
"""

import argparse
from pathlib import Path

from .settings import MODULES

WHICH = 'a name ("compute_gae"), a number ("3.3") or a notebook ("03_ppo")'


def add_commands(commands, course: Path) -> None:
    """Add them to the command line's subparsers.

    Args:
        course: the folder of the course or of an assignment.
    """
    solutions = (course / "solutions").is_dir()
    check = _add(commands, "check", _check, "run the checks of exercises, or of all that are asked for here")
    check.add_argument("exercises", nargs="*", metavar="EXERCISE", help=WHICH)
    hint = _add(commands, "hint", _hint, "the next hint of an exercise: a nudge, a plan, almost code")
    hint.add_argument("exercise", metavar="EXERCISE")
    hint.add_argument("step", nargs="?", type=int, help="show this one")
    _add(commands, "status", _status, "all exercises that are asked for here, with points and state")
    for name, command, there, help_text in [
        ("solution", _solution, solutions, "the solution beside your code, when asked twice (self-learners)"),
        (
            "compare",
            _compare,
            solutions,
            "your code and the solution on the same random inputs (self-learners)",
        ),
        (
            "reset",
            _reset,
            True,
            f"put one stub back, or a module ({', '.join(MODULES)}); your text is kept beside it",
        ),
    ]:
        _add(commands, name, command, help_text, there).add_argument("exercise", metavar="EXERCISE")
    drill = _add(
        commands, "cloze", _cloze, "fill in blanks in the six functions of the source, from memory", solutions
    )
    drill.add_argument("--snippet", default="any", help="name of a function or class; any: the seed chooses")
    drill.add_argument(
        "--seed", type=int, help="draw these blanks again: one round (default: always new ones)"
    )
    drill.add_argument(
        "--share", type=float, help="share of the code that is hidden, 0.1 to 0.6 (default 0.15)"
    )
    drill.add_argument("--scores", action="store_true", help="show the rounds so far, and play none")
    doctor = commands.add_parser("doctor", help="look a folder over before it is handed in")
    doctor.add_argument(
        "folder", nargs="?", type=Path, default=Path("."), help="of an assignment or the course"
    )
    doctor.set_defaults(command=look_over)


def _add(commands, name: str, command, help_text: str, there: bool = True) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, **listed(help_text, there))
    parser.add_argument("--code", default="rlhf_exercises", help="the package (default rlhf_exercises)")
    parser.set_defaults(command=command)
    return parser


def listed(help_text: str, there: bool) -> dict[str, str]:
    """For `add_parser`: the help lists a command where what it needs is there; the parser knows it in any case."""
    return {"help": help_text} if there else {}


def _folder(arguments: argparse.Namespace) -> Path:
    from .student_code import package_folder

    return package_folder(arguments.code)


def _check(arguments: argparse.Namespace) -> int:
    from .checks import check, to_text
    from .course import select
    from .progress import Progress

    folder = _folder(arguments)
    progress = Progress(folder)
    chosen, others = [e for name in arguments.exercises for e in select(name)], ""
    if not chosen:
        chosen, others = progress.asked_for()
    reports = []
    for exercise in chosen:
        report = check(exercise.name, folder)
        print(to_text(report), end="\n\n", flush=True)
        if report.state == "stopped":
            raise KeyboardInterrupt
        if problem := progress.record(report):
            print(problem)
        reports.append(report)
    print(f"{sum(report.passed for report in reports)} of {len(reports)} exercises pass")
    if others:
        print(others)
    return 0 if all(report.passed for report in reports) else 2


def _hint(arguments: argparse.Namespace) -> None:
    from .progress import Progress, next_hint

    title, hint = next_hint(arguments.exercise, arguments.step, Progress(_folder(arguments)))
    print(f"{title}\n\n{hint}")


def _status(arguments: argparse.Namespace) -> None:
    from .progress import Progress, to_table

    print(to_table(Progress(_folder(arguments))))


def _solution(arguments: argparse.Namespace) -> None:
    from .course import find
    from .progress import Progress
    from .side_by_side import ask_twice, side_by_side

    exercise, folder = find(arguments.exercise), _folder(arguments)
    print(ask_twice(exercise, Progress(folder)) or side_by_side(exercise, folder)[1])


def _compare(arguments: argparse.Namespace) -> None:
    from .compare import compare
    from .course import find

    print(compare(find(arguments.exercise), _folder(arguments)))


def _reset(arguments: argparse.Namespace) -> None:
    from .source_text import reset

    print(reset(arguments.exercise, _folder(arguments)))


def _cloze(arguments: argparse.Namespace) -> None:
    from .cloze.blanks import USUAL_SHARE
    from .cloze.scores import Scores, to_table
    from .cloze.terminal import play
    from .side_by_side import solutions_folder

    folder = _folder(arguments)
    scores = Scores(folder)
    if arguments.scores:
        print(to_table(scores.rounds()))
        return
    share = USUAL_SHARE if arguments.share is None else arguments.share
    play(solutions_folder(folder), scores, arguments.snippet, share, arguments.seed)


def look_over(arguments: argparse.Namespace) -> int:
    """Print what the doctor finds in `arguments.folder`; the instructor's command line has this too."""
    from .doctor import closing, examine, to_text

    findings = []
    for finding in examine(arguments.folder):
        print(to_text(finding), flush=True)
        findings.append(finding)
    print(f"\n{closing(findings)}")
    return 1 if any(finding.status == "problem" for finding in findings) else 0
