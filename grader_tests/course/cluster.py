"""Grading with a Dask cluster: submissions are taken in and recorded here, and examined by its workers."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rlhf_lab.errors import LabError

from .exam import Exam, ask_examiner, assemble, with_code
from .intake import Submission, take_in
from .paths import Course
from .record import Graded, current_verdict, record
from .workers import Fault, Workers

SCHEDULER_ANSWERS = 30.0  # seconds


def grade_on_cluster(
    course: Course,
    workers: Workers,
    tasks: Iterable[tuple[str, str]],
    exam: Exam,
    only_new: bool,
    scheduler: str,
) -> Iterator[tuple[tuple[str, str], Graded | Fault]]:
    """What became of each task, as it is done. Dask gives the work of a worker that dies to another one.

    Args:
        workers: of this machine.
        tasks: assignment and student of each submission.
        scheduler: address of the Dask scheduler.

    Raises:
        LabError: when Dask is not installed, or no scheduler answers.
    """
    try:
        from distributed import Client, as_completed
    except ModuleNotFoundError:
        raise LabError("--scheduler needs Dask: pip install distributed") from None
    fingerprint = exam.fingerprint()
    try:
        client = Client(scheduler, timeout=SCHEDULER_ANSWERS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise LabError(f"no Dask scheduler answers at {scheduler}: {error}") from None
    with client:
        waiting, futures = {}, {}
        prepared = workers.run(_prepare, [(course.root, *task, exam, only_new) for task in tasks])
        for (_, *key, _, _), result in prepared:
            key = tuple(key)
            if isinstance(result, Submission):
                names = with_code(course.assignment(result.assignment), result)
                waiting[key] = result
                future = client.submit(ask_examiner, exam, result.files, names, pure=False, retries=1)
                futures[future] = key
            else:
                yield key, result
        # with results: each is fetched when it is there, and not lost with the worker that holds it
        finished = as_completed(list(futures), loop=client.loop, with_results=True, raise_errors=False)
        for future, answer in finished:
            key = futures.pop(future)
            submission = waiting.pop(key)
            if not isinstance(answer, dict):
                yield key, Fault(f"no worker of the cluster could examine it: {_cause(answer)!r}")
                continue
            task = course.root, submission, fingerprint, answer
            ((_, result),) = workers.run(_assemble_and_record, [task])
            yield key, result


def _cause(answer: object) -> object:
    """The exception in what Dask gives for a task without a result: that itself, or with its type and traceback."""
    return answer[1] if isinstance(answer, tuple) else answer


def _prepare(root: Path, assignment: str, student: str, exam: Exam, only_new: bool) -> Graded | Submission:
    """What is to be examined elsewhere; where a verdict is there already, that is recorded."""
    course = Course(root)
    submission = take_in(course, assignment, student)
    verdict = current_verdict(course, submission, exam, only_new)
    return submission if verdict is None else record(course, submission, verdict)


def _assemble_and_record(root: Path, submission: Submission, fingerprint: str, answer: dict) -> Graded:
    course = Course(root)
    return record(course, submission, assemble(course, submission, fingerprint, answer))
