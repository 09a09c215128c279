"""Training tests on a GPU: what a room with one may reach, when it is used, and that nobody loses points to it.

Most of it is tested without a GPU: a room is told that /dev/full is the driver's file and that torch calls the card
"cpu".
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from authoring.grader_kills import package_of
from grader_tests import examiner as examiner_module
from grader_tests import gpu as gpu_module
from grader_tests.candidate import Candidate
from grader_tests.course.exam import Exam
from grader_tests.examiner import Examiner, _Sitting
from grader_tests.gpu import GpuRoom, find_gpu
from grader_tests.hidden import TESTS, Draw, HiddenTest, Wrong
from grader_tests.room import Gone, Gpu, Room, RoomLost, bubblewrap, bubblewrap_works
from rlhf_lab.course import exercises
from rlhf_lab.room import gpu
from tests.test_room import FORBIDDEN, REACH

PRETENDED = Gpu(("/dev/full",), "/usr/lib", "cpu")
ABSENT = replace(PRETENDED, device="cuda")  # torch finds no such device behind that file

needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="a room with a GPU needs bubblewrap")
needs_gpu = pytest.mark.skipif(find_gpu() is None, reason="there is no GPU here")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA starts here")

PROBES = {
    **FORBIDDEN,
    "the device file": "write('/dev/full')",
    "another device file": "open('/dev/tty', 'wb')",
    "much private memory": "len(bytearray(40 << 30))",
    "shared memory": "mmap.mmap(-1, 1 << 20)",
    "a file in memory": "os.memfd_create('x')",
    "System V memory": "call('shmget', 0, 1 << 20, 0o1600)",
    "a stack that grows": "mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100)",
    "much address space": "mmap.mmap(-1, 100 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0)",
    "the memory next to the card": "os.listdir('/sys/devices/system')",
    "the address of another": "socket.socketpair()[0].connect('\\\\0x')",
}


@pytest.fixture(scope="module", params=[PRETENDED, None], ids=["with a GPU", "without"])
def reached(request):
    """What a child could reach, by name, and whether it had a GPU."""
    if not bubblewrap_works():
        pytest.skip("a room with a GPU needs bubblewrap")
    probes = "".join(f"        {what!r}: reach(lambda: {probe}),\n" for what, probe in PROBES.items())
    text = f"{REACH}\nimport mmap\ndef probe():\n    return {{\n{probes}    }}\n"
    room = Room(gpu=request.param)
    child = room.child()
    try:
        files = {**package_of(None), "ppo.py": package_of(None)["ppo.py"] + text.encode()}
        assert child.ask("enter", files, None, seconds=20) == {"problem": None}
        yield Candidate(child).call("ppo.probe").value, request.param is not None
    finally:
        room.close()


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_gpu_opens_no_other_door(what, reached):
    found, _ = reached
    assert not found[what].startswith("reached"), found[what]


@pytest.mark.parametrize("what", ["much private memory", "another device file", "the address of another"])
def test_out_of_reach_with_a_gpu_too(what, reached):
    found, _ = reached
    assert not found[what].startswith("reached"), found[what]


@pytest.mark.parametrize("what", ["much address space", "the memory next to the card"])
def test_in_reach_with_a_gpu_only(what, reached):
    found, with_gpu = reached
    assert found[what].startswith("reached") == with_gpu, found[what]


def test_the_device_file_can_be_opened_with_a_gpu_only(reached):
    found, with_gpu = reached
    assert found["the device file"] == ("OSError" if with_gpu else "PermissionError")  # /dev/full is full


@pytest.mark.parametrize(
    "what", ["shared memory", "a file in memory", "System V memory", "a stack that grows"]
)
def test_memory_that_no_limit_counts_is_refused_with_a_gpu(what, reached):
    found, with_gpu = reached
    assert found[what].startswith("reached") != with_gpu, found[what]


def test_the_drivers_files_are_those_of_each_card_and_two_more(tmp_path):
    assert gpu.device_files(str(tmp_path)) == []
    for name in ("nvidia0", "nvidia1", "nvidia-modeset", "nvidiactl", "nvidia-caps"):
        (tmp_path / name).touch()
    assert gpu.device_files(str(tmp_path)) == [], "a card without nvidia-uvm cannot be used"
    (tmp_path / "nvidia-uvm").touch()
    names = [path.removeprefix(f"{tmp_path}/") for path in gpu.device_files(str(tmp_path))]
    assert names == ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"]


def test_bubblewrap_binds_the_devices_of_a_listing_and_none_without_one(tmp_path):
    files = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
    command = bubblewrap(Gpu(files, str(tmp_path), "cuda"))
    bound = [command[i + 1 : i + 3] for i, word in enumerate(command) if word == "--dev-bind"]
    assert bound == [[path, path] for path in files]
    library = command.index("LD_LIBRARY_PATH")
    assert command[library - 1 : library + 2] == ["--setenv", "LD_LIBRARY_PATH", str(tmp_path)]
    readable = [command[i + 1] for i, word in enumerate(command) if word == "--ro-bind"]
    assert str(tmp_path) in readable and "/sys/devices" in readable

    ordinary = bubblewrap()
    assert "--dev-bind" not in ordinary and "LD_LIBRARY_PATH" not in ordinary
    assert not {"/sys/devices", "/sys/bus/pci"} & set(ordinary)


# --- where there is none, or none that works ------------------------------------------------------


def test_a_machine_without_the_drivers_files_has_no_gpu_and_says_nothing(monkeypatch):
    monkeypatch.setattr(gpu, "device_files", lambda: [])
    room = GpuRoom()
    assert room.child() is None and room.remark == ""


def test_a_torch_without_cuda_has_no_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "device_files", lambda: ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"])
    monkeypatch.setattr(gpu, "driver_folder", lambda: "/usr/lib")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert find_gpu() == Gpu(("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"), "/usr/lib", "cuda")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert find_gpu() is None


@needs_bubblewrap
@without_gpu
def test_cuda_that_does_not_start_in_the_room_is_tried_once_and_said(monkeypatch):
    monkeypatch.setattr(gpu_module, "find_gpu", lambda: ABSENT)
    room = GpuRoom(patience=5)  # a busy machine is not to be taken for a card that does not start
    assert room.child() is None
    monkeypatch.setattr(gpu_module, "Room", None)  # no other one is opened
    assert room.child() is None
    assert room.remark.startswith("training on the CPU, for the GPU cannot be used in the room (")
    assert "CUDA" in room.remark or "NVIDIA" in room.remark


def test_without_bubblewrap_no_room_gets_a_gpu(monkeypatch):
    monkeypatch.setattr(gpu_module, "find_gpu", lambda: PRETENDED)
    monkeypatch.setattr(gpu_module, "bubblewrap_works", lambda: False)
    monkeypatch.setattr(gpu_module, "Room", None)
    room = GpuRoom()
    assert room.child() is None
    assert room.remark.endswith("(that needs bubblewrap)")


# --- what an examination makes of it ---------------------------------------------------------------


@pytest.fixture
def sat():
    """Run two tests that train on a GPU in one sitting, with children that only know where they are.

    Args:
        lost: of each run that is lost, as (title, place), what it raises.
        gpu: whether there is one.

    Returns:
        the titles of the tests that were lost, and where each one was run.
    """

    def sit(lost, gpu=True):
        places = []

        def experiment(title, candidate, draw):
            places.append((title, candidate.device))
            if places[-1] in lost:
                raise lost[places[-1]]

        def child(device):
            return SimpleNamespace(device=device, close=lambda: None)

        sitting = _Sitting(lambda: child("cpu"), lambda: child("cuda") if gpu else None)
        tests = [
            HiddenTest("train_ppo", title, 1.0, ("x",), "Lost.", (), True, True, partial(experiment, title))
            for title in ("first", "second")
        ]
        return [test.title for test in tests if sitting.run(test, Draw(0, "x")) is not None], places

    return sit


def test_tests_that_train_are_run_with_a_gpu_where_there_is_one(sat):
    assert sat({}) == ([], [("first", "cuda"), ("second", "cuda")])
    assert sat({}, gpu=False) == ([], [("first", "cpu"), ("second", "cpu")])


@pytest.mark.parametrize(
    "loss", [Wrong(), Gone("died"), RoomLost("gone"), RuntimeError("CUDA out of memory")]
)
def test_what_is_lost_with_a_gpu_is_run_again_without_one(sat, loss):
    lost, places = sat({("first", "cuda"): loss})
    assert (lost, places) == ([], [("first", "cuda"), ("first", "cpu"), ("second", "cpu")])


def test_what_is_lost_on_both_is_lost(sat):
    lost, _ = sat({("second", "cuda"): Wrong(), ("second", "cpu"): Wrong()})
    assert lost == ["second"]


@pytest.mark.parametrize(
    ("settings", "asked"),
    [({}, True), ({"device": "cpu"}, False), ({"training": False}, False)],
)
def test_an_instructor_can_leave_the_gpu_alone(settings, asked, monkeypatch):
    fake = SimpleNamespace(confinement="a wall", remark="training on a card", passed=0, close=lambda: None)
    monkeypatch.setattr(examiner_module, "Room", lambda *_: fake)
    monkeypatch.setattr(examiner_module, "GpuRoom", lambda *_: fake)
    with Examiner(**settings) as examiner:
        assert examiner.confinement == ("a wall; training on a card" if asked else "a wall")


def test_no_verdict_is_out_of_date_because_of_the_device():
    assert Exam(device="cpu").fingerprint() == Exam(device="auto").fingerprint()


def test_the_tests_of_train_ppo_that_train_are_the_ones_for_a_gpu():
    titles = {name: {test.title for test in tests if test.gpu} for name, tests in TESTS.items()}
    trained = {test.title for test in TESTS["train_ppo"] if test.training}
    assert {name: found for name, found in titles.items() if found} == {"train_ppo": trained}


@needs_gpu
@needs_bubblewrap
def test_the_solution_keeps_full_marks_on_the_gpu():
    with Examiner() as examiner:
        verdict = examiner.examine(package_of(None), ["train_ppo"])["train_ppo"]
    assert verdict.score == exercises()["train_ppo"].points
    assert ", 3 tests passed there," in examiner.confinement
