"""The instructor's command line: `python -m grader_tests COMMAND`."""

import argparse
import json
import os
import sys
from pathlib import Path

from rlhf_lab.errors import LabError

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in rlhf_lab.cli: before torch is imported


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grader_tests", description="Release, grade and return the course's assignments."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    examine = commands.add_parser("examine", help="grade one folder, without nbgrader")
    examine.add_argument("folder", type=Path, help="that holds a package rlhf_exercises/")
    examine.add_argument(
        "--exercise", nargs="+", metavar="NAME", help="names or numbers; all where none is given"
    )
    examine.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts there")
    examine.add_argument("--seed", type=int, default=0, help="of the numbers that the tests draw")
    _training(examine)
    examine.set_defaults(command=_examine)

    release = commands.add_parser(
        "release", help="make the assignments that students get, in a course folder"
    )
    _course(release)
    release.add_argument(
        "--stage", nargs="+", metavar="NAME", help="01_sft, sft, 1 and so on; all where none is given"
    )
    release.add_argument("--whole", action="store_true", help="the whole course as one assignment instead")
    release.set_defaults(command=_release)

    grade = commands.add_parser("grade", help="grade what was handed in and is not graded yet")
    _course(grade)
    _run(grade)
    grade.add_argument(
        "--only-new", action="store_true", help="keep a verdict although the hidden tests have changed since"
    )
    grade.set_defaults(command=_grade)

    regrade = commands.add_parser(
        "regrade", help="grade again after a test was mended, and show whose marks change"
    )
    _course(regrade)
    _run(regrade)
    regrade.set_defaults(command=_regrade)

    feedback = commands.add_parser("feedback", help="write the pages that students get back")
    _course(feedback)
    feedback.add_argument("--assignment", metavar="NAME", help="only this one")
    feedback.add_argument("--student", nargs="+", metavar="NAME", help="only these")
    feedback.set_defaults(command=_feedback)

    export = commands.add_parser("export", help="write all marks as CSV, one column for each exercise")
    _course(export)
    export.add_argument(
        "--to", type=Path, metavar="FILE", help="marks.csv in the course unless told otherwise"
    )
    export.set_defaults(command=_export)

    report = commands.add_parser("report", help="write the page to read before the next lecture")
    _course(report)
    report.add_argument("--assignment", metavar="NAME", help="only this one")
    report.set_defaults(command=_report)

    doctor = commands.add_parser("doctor", help="what a student can see before handing in: no hidden test")
    doctor.add_argument("folder", type=Path, help="an assignment as it is going to be handed in")
    doctor.set_defaults(command=_doctor)

    arguments = parser.parse_args()
    try:
        return arguments.command(arguments) or 0
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _course(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("course", type=Path, metavar="COURSE_DIR", help="folder of the course")


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-j", "--jobs", type=int, default=2, metavar="N", help="processes that work at the same time"
    )
    parser.add_argument("--student", nargs="+", metavar="NAME", help="only these; all where none is given")
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="of a Dask scheduler whose workers are to examine"
    )
    _training(parser)


def _training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-training",
        action="store_true",
        help="leave out the tests that train a model (a minute a submission)",
    )
    parser.add_argument(
        "--device",
        choices=["auto", "cpu"],
        default="auto",
        help="where train_ppo trains in its test: on a GPU where the room can use one, or never (default auto)",
    )


def _examine(arguments: argparse.Namespace) -> None:
    from rlhf_lab.course import exercises, find
    from rlhf_lab.settings import STUB_PACKAGE

    from .examiner import Examiner
    from .package import read_package

    names = [find(name).name for name in arguments.exercise or exercises()]
    folder = arguments.folder / STUB_PACKAGE
    if not folder.is_dir():
        raise LabError(f"there is no {STUB_PACKAGE}/ in {arguments.folder}")
    package = read_package(folder)
    for remark in package.remarks:
        print(remark)
    training, seed, device = not arguments.no_training, arguments.seed, arguments.device
    with Examiner(training, seed, device=device) as examiner:
        verdicts = examiner.examine(package.files, names)
        print(f"student code was kept apart by: {examiner.confinement}")
    for name, verdict in verdicts.items():
        print(f"{verdict.score:6g} of {verdict.max:<3g} {name}")
        for message in verdict.messages:
            print(f"              {message}")
    total, most = sum(v.score for v in verdicts.values()), sum(v.max for v in verdicts.values())
    print(f"{total:6g} of {most:<3g} points")
    if arguments.json:
        content = {
            name: {"score": verdict.score, "max": verdict.max, "messages": list(verdict.messages)}
            for name, verdict in verdicts.items()
        }
        arguments.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _release(arguments: argparse.Namespace) -> None:
    from .course.paths import Course
    from .course.release import release
    from .examiner import Examiner

    course = Course(arguments.course)
    print(
        "checking that the solution gets full marks and the blank assignment none: a minute or two",
        flush=True,
    )
    with Examiner(seed=course.seed) as examiner:
        released = release(course, examiner, arguments.stage, arguments.whole)
    for assignment in released:
        print(
            f"{assignment.name}: {assignment.max:g} points, bundles/{assignment.name}.zip is what students get"
        )


def _grade(arguments: argparse.Namespace) -> int:
    from .course.grade import grade

    return grade(
        arguments.course,
        arguments.jobs,
        arguments.student,
        arguments.only_new,
        not arguments.no_training,
        arguments.scheduler,
        device=arguments.device,
    ).status


def _regrade(arguments: argparse.Namespace) -> int:
    from .course.regrade import regrade

    _, run = regrade(
        arguments.course,
        arguments.jobs,
        arguments.student,
        not arguments.no_training,
        arguments.scheduler,
        device=arguments.device,
    )
    return run.status


def _feedback(arguments: argparse.Namespace) -> int:
    from .course.feedback import feedback

    return feedback(arguments.course, arguments.assignment, arguments.student).status


def _export(arguments: argparse.Namespace) -> None:
    from .course.export import export

    print(f"wrote {export(arguments.course, arguments.to)}")


def _report(arguments: argparse.Namespace) -> None:
    from .course.paths import Course
    from .course.report import report

    course = Course(arguments.course)
    for name in [arguments.assignment] if arguments.assignment else _with_verdicts(course):
        print(f"wrote {report(arguments.course, name)}")


def _with_verdicts(course) -> list[str]:
    names = [name for name in course.assignments if course.verdict(name, "").parent.is_dir()]
    if not names:
        raise LabError("nothing has been graded yet")
    return names


def _doctor(arguments: argparse.Namespace) -> int:
    from rlhf_lab.student_cli import look_over

    return look_over(arguments)


if __name__ == "__main__":
    sys.exit(main())
