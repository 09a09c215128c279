"""Examine a student's package: run the hidden tests of each exercise on it and say what it is worth."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import solutions
from rlhf_lab.checks.differences import plain
from rlhf_lab.checks.known import load_known
from rlhf_lab.checks.run import Outcome, cases_of, recognise
from rlhf_lab.course import Exercise, exercises
from rlhf_lab.settings import MODULES
from rlhf_lab.source_text import extent

from . import (  # noqa: F401  each declares its tests when it is imported
    dpo,
    end_to_end,
    grpo,
    ppo,
    ppo_loop,
    reward_model,
    sft,
    toy,
    trainer,
)
from .candidate import Candidate, Raised
from .fingerprint import digest_of
from .gpu import GpuRoom
from .hidden import TESTS, Draw, HiddenTest, Wrong
from .room import Child, Gone, Room, RoomLost
from .verdict import ExerciseVerdict

SURVEY = 20.0  # seconds for parsing a package
ENTER = 10.0  # seconds for importing it
CHECK = 15.0  # seconds for the visible check, which names the mistake
LIVES = 2  # children that one exercise may use up
# what is raised where a student's exercise leans on a change that they have made in another one
ELSEWHERE = (
    "TypeError",
    "AttributeError",
    "NameError",
    "UnboundLocalError",
    "KeyError",
    "ImportError",
    "ModuleNotFoundError",
)
LOST = "-{points:g}: {title}"  # one line for each test that failed


@cache
def reference_modules() -> dict[str, str]:
    """Text of each taught module, solved."""
    folder = Path(solutions.__file__).parent
    return {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in MODULES}


def reference_without(exercise: Exercise) -> dict[str, str]:
    """The same without this exercise: what goes into the room can be read there."""
    modules = dict(reference_modules())
    start, end = extent(modules[exercise.module], exercise.name)
    modules[exercise.module] = modules[exercise.module][:start] + modules[exercise.module][end:]
    return modules


class Examiner:
    """Examines packages one after the other; it holds the room, so that torch is loaded once.

    Args:
        training: whether the tests that train a model are run. Without them an exercise's points come from the others.
        seed: of the numbers that the tests draw: each course has its own.
        patience: factor on every time limit, for a slow machine.
        naming: whether the visible check is run where points are missing, since it knows more mistakes by name.
        device: "auto" trains on a GPU where there is one that a room can use, "cpu" never does.
    """

    def __init__(
        self,
        training: bool = True,
        seed: int = 0,
        patience: float = 1.0,
        naming: bool = True,
        device: str = "auto",
    ):
        self._training, self._seed, self._patience, self._naming = training, seed, patience, naming
        self._gpu_room = GpuRoom(patience) if training and device == "auto" else None
        self._room = Room(patience)
        self._seen: dict[tuple, ExerciseVerdict] = {}

    def __enter__(self) -> "Examiner":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self._room.close()
        if self._gpu_room is not None:
            self._gpu_room.close()

    @property
    def confinement(self) -> str:
        """How the student's code is kept apart; and on what it trained, where there is a GPU."""
        remark = self._gpu_room.remark if self._gpu_room is not None else ""
        return "; ".join(filter(None, [self._room.confinement, remark]))

    def examine(self, files: Mapping[str, bytes], names: Iterable[str]) -> dict[str, ExerciseVerdict]:
        """Points of each of these exercises.

        Args:
            files: the student's `rlhf_exercises/`, content by path inside it.
        """
        seen = self._survey(files)
        verdicts = {}
        for name in names:
            exercise = exercises()[name]
            try:
                verdicts[name] = self._examine_one(exercise, files, seen)
            except Stuck as stuck:  # the other exercises of the module would wait just as long
                seen[exercise.module] = {"problem": str(stuck), "digests": {}}
                verdicts[name] = self._examine_one(exercise, files, seen)
        return verdicts

    def _survey(self, files: Mapping[str, bytes]) -> dict[str, dict]:
        """Per module, as `Child.survey` has it; every module with a problem when even reading them leads to no end."""
        child = self._child()
        try:
            by_module: dict[str, list[str]] = {}
            for exercise in exercises().values():
                by_module.setdefault(exercise.module, []).append(exercise.name)
            return child.ask("survey", dict(files), by_module, seconds=SURVEY)
        except Gone as gone:
            return {module: {"problem": f"cannot be read: it {gone}", "digests": {}} for module in MODULES}
        finally:
            child.close()

    def _child(self) -> Child:
        """A fork of the warm parent; of a new one where the old one is gone (out of memory, for instance)."""
        try:
            return self._room.child()
        except RoomLost:
            self._room.close()
            self._room = Room(self._patience)
            return self._room.child()

    def _examine_one(self, exercise: Exercise, files: Mapping[str, bytes], seen: dict) -> ExerciseVerdict:
        if exercise.file not in files:
            return self._nothing(exercise, f"{exercise.file} is missing.")
        module = seen[exercise.module]
        if module["problem"] is not None:
            return self._nothing(
                exercise, f"{exercise.file} {module['problem']}: no exercise in it can be examined."
            )
        others = {path: text for path, text in files.items() if path.removesuffix(".py") not in MODULES}
        key = (exercise.name, module["digests"][exercise.name], digest_of(others))
        whole = (exercise.name, digest_of(files))
        for known in (key, whole):
            if known in self._seen:
                return self._seen[known]
        verdict, raised = self._sit(exercise, files, mixed=True)
        if not raised:
            self._seen[key] = verdict
            return verdict
        # perhaps it leans on a change of the student's in another exercise, a further argument for instance: so what
        # it is worth depends on the whole package
        own, _ = self._sit(exercise, files, mixed=False)
        self._seen[whole] = max(verdict, own, key=lambda either: either.score)
        return self._seen[whole]

    def _sit(
        self, exercise: Exercise, files: Mapping[str, bytes], mixed: bool
    ) -> tuple[ExerciseVerdict, bool]:
        """The verdict, and whether an exception of the student's code cost points."""
        sitting = _Sitting(
            lambda: self._enter(self._child(), exercise, files, mixed),
            lambda: self._enter_with_gpu(exercise, files, mixed),
        )
        try:
            tests = [test for test in TESTS[exercise.name] if self._training or not test.training]
            failed: dict[HiddenTest, str] = {}
            for test in tests:
                if any(other.title in test.after for other in failed):
                    failed[test] = ""
                elif (message := sitting.run(test, Draw(self._seed, test.title))) is not None:
                    failed[test] = message
                if sitting.over:
                    return self._nothing(exercise, sitting.over, sitting.examined), sitting.raised
            points = sum(test.points for test in tests)
            score = exercise.points * (points - sum(test.points for test in failed)) / points
            if not failed:
                return ExerciseVerdict(exercise.name, float(exercise.points), float(exercise.points)), False
            first = next(filter(None, failed.values()), "")
            if self._naming and not sitting.gone:  # the visible check would wait for it once more
                first = self._mistake(exercise, files, mixed) or first
            share = exercise.points / points
            lost = [LOST.format(points=round(test.points * share, 2), title=test.title) for test in failed]
            messages = (first, *lost) if first else tuple(lost)
            verdict = ExerciseVerdict(exercise.name, round(score, 2), float(exercise.points), messages)
            return verdict, sitting.raised
        finally:
            if self._gpu_room is not None:
                self._gpu_room.passed += sitting.passed_with_gpu
            sitting.close()

    def _enter_with_gpu(self, exercise: Exercise, files: Mapping[str, bytes], mixed: bool) -> Child | None:
        """The same with a GPU; None where there is none."""
        child = self._gpu_room.child() if self._gpu_room is not None else None
        return self._enter(child, exercise, files, mixed) if child is not None else None

    def _enter(self, child: Child, exercise: Exercise, files: Mapping[str, bytes], mixed: bool) -> Child:
        """This child, with the student's code in it.

        Raises:
            Broken: when it cannot be imported.
            Stuck: when importing it leads to no end.
        """
        names = [other.name for other in exercises().values() if other.module == exercise.module]
        mix = (reference_without(exercise), exercise.module, names, exercise.name) if mixed else None
        try:
            answer = child.ask("enter", dict(files), mix, seconds=ENTER)
        except Gone as gone:
            child.close()
            raise Stuck(f"{gone} while it is imported") from None
        problem = answer.get("problem", "") if isinstance(answer, dict) else ""
        if problem is not None:
            child.close()
            raise Broken(str(problem)[:200] or f"{exercise.file} cannot be imported.")
        return child

    def _mistake(self, exercise: Exercise, files: Mapping[str, bytes], mixed: bool) -> str | None:
        """The mistake, where the visible check knows it by name. Its experiments are public, and so run in the room."""
        try:
            child = self._enter(self._child(), exercise, files, mixed)
        except (Broken, Stuck):
            return None
        try:
            answer = child.ask("observe", exercise.name, seconds=CHECK)
            outcomes = [
                Outcome(plain(out["observed"]), bool(out["crashed"]), stub=out["stub"])
                for out in answer["outcomes"]
            ]
            return recognise(load_known(exercise.name), cases_of(exercise), outcomes)
        except Gone:
            return None
        except Exception:  # a forged answer; what it costs is the sentence
            return None
        finally:
            child.close()

    def _nothing(self, exercise: Exercise, message: str, examined: bool = False) -> ExerciseVerdict:
        return ExerciseVerdict(exercise.name, 0.0, float(exercise.points), (message,), examined)


class Broken(Exception):
    """The student's code cannot be imported; the sentence says why."""


class Stuck(Exception):
    """A module whose import never comes back; the text is the rest of a sentence about the file."""


class _Sitting:
    """The tests of one exercise, on as many children as they use up.

    Args:
        enter: makes a child with the student's code in it.
        enter_with_gpu: makes one with a GPU, or None where there is none.

    Attributes:
        over: why it makes no sense to go on, or empty.
        raised: whether a test failed because the student's code raised what a missing or changed function leads to.
        gone: whether a child was used up.
        examined: whether there is a function to examine.
        passed_with_gpu: number of tests that were passed on a GPU.
    """

    def __init__(self, enter: Callable[[], Child], enter_with_gpu: Callable[[], Child | None]):
        self._enter, self._lives, self._child = enter, LIVES, None
        self._enter_with_gpu, self._gpu_child, self._gpu_tried = enter_with_gpu, None, False
        self.passed_with_gpu = 0
        self.over, self.raised, self.gone, self.examined = "", False, False, True

    def run(self, test: HiddenTest, draw: Draw) -> str | None:
        """None when the test passes, else its sentence to the student."""
        if test.gpu and self._passes_with_gpu(test, draw):
            return None
        try:
            if self._child is None:
                self._child = self._enter()
            test.experiment(Candidate(self._child), draw)
            return None
        except Wrong as wrong:
            return str(wrong) or test.message
        except Raised as raised:
            if raised.stub is not None:
                self.over, self.examined = f"{raised.stub} is not written yet.", False
            self.raised |= raised.kind in ELSEWHERE
            return _where(raised)
        except Broken as broken:
            self.over, self.raised, self.examined = str(broken), True, False
            return self.over
        except Gone as gone:
            self.close()
            self.gone = True
            self._lives -= 1
            if not self._lives:
                self.over = f"Your {test.exercise} {gone}."
            return f"Your {test.exercise} {gone}."
        except (Stuck, RoomLost):  # say nothing about this test
            raise
        except Exception:  # an answer of a kind that the test did not think of
            return test.message

    def _passes_with_gpu(self, test: HiddenTest, draw: Draw) -> bool:
        """Whether the test passes on a GPU. What is lost there, for whatever reason, is not lost yet: the memory of the
        card may be another's, and verdicts do not depend on the device. After a first loss the GPU is left alone."""
        try:
            if not self._gpu_tried:
                self._gpu_tried, self._gpu_child = True, self._enter_with_gpu()
            if self._gpu_child is None:
                return False
            test.experiment(Candidate(self._gpu_child), draw)
            self.passed_with_gpu += 1
            return True
        except Exception:  # of the student's code, of CUDA, of the room
            self._close_gpu_child()
            return False

    def close(self) -> None:
        self._close_gpu_child()
        if self._child is not None:
            self._child.close()
            self._child = None

    def _close_gpu_child(self) -> None:
        if self._gpu_child is not None:
            self._gpu_child.close()
            self._gpu_child = None


def _where(raised: Raised) -> str:
    place = f", in line {raised.line} of {raised.function}" if raised.function.isidentifier() else ""
    return f"Your code raised {raised.kind}{place}."
