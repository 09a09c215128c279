"""The room: what a student's code can reach there, with bubblewrap and without it."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rlhf_lab
from authoring.stubs import stub_files
from grader_tests import room as room_module
from grader_tests.candidate import Candidate
from grader_tests.room import Gone, Room, RoomLost, bubblewrap_works
from rlhf_lab.errors import LabError

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", params=["bubblewrap", "without"])
def room(request):
    if request.param == "bubblewrap":
        if not bubblewrap_works():
            pytest.skip("bubblewrap is not installed, or may not make namespaces here")
        room = Room()
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(room_module, "bubblewrap_works", lambda: False)
            room = Room()
    yield room
    room.close()


@pytest.fixture(scope="module")
def enter(room):
    """A candidate whose ppo.py has this text behind its stubs."""
    children = []

    def enter(text: str) -> Candidate:
        children.append(room.child())
        files = {path: content.encode() for path, content in stub_files().items()}
        files["ppo.py"] += textwrap.dedent(text).encode()
        assert children[-1].ask("enter", files, None, seconds=20) == {"problem": None}
        return Candidate(children[-1])

    yield enter
    for child in children:
        child.close()


@pytest.fixture(scope="module")
def reached(enter):
    """What a child could reach, by name."""
    probes = "".join(f"        {what!r}: reach(lambda: {probe}),\n" for what, probe in FORBIDDEN.items())
    return enter(f"{REACH}\ndef probe():\n    return {{\n{probes}    }}\n").call("ppo.probe").value


REACH = """
import ctypes, os, resource, socket, subprocess

PARENT = os.getppid() or 1  # in a namespace of its own a child has no parent

def reach(what, *args):
    try:
        return f"reached: {what(*args)!r:.80}"
    except BaseException as error:
        return type(error).__name__

def read(path):
    with open(path, "rb") as file:
        return file.read(40)

def call(name, *arguments):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "refused")
    return name

def write(path):
    with open(path, "wb") as file:
        file.write(b"x")
    return "written"
"""

FORBIDDEN = {
    "the hidden tests": f"read({str(ROOT / 'grader_tests' / 'ppo.py')!r})",
    "the solutions": f"read({str(ROOT / 'solutions' / 'ppo.py')!r})",
    "the course folder": f"os.listdir({str(ROOT)!r})",
    "the home folder": f"os.listdir({str(Path.home())!r})",
    "passwords": "read('/etc/passwd')",
    "the workbench, to write": f"write({str(ROOT / 'rlhf_lab' / 'owned.py')!r})",
    "a file in /usr": "write('/usr/owned')",
    "a file in /var/tmp": "write('/var/tmp/owned')",
    "the environment of the parent": "read(f'/proc/{os.getppid()}/environ')",
    "the memory of process 1": "read('/proc/1/mem') if os.getpid() != 1 else 1 / 0",
    "a socket": "socket.socket()",
    "a unix socket": "socket.socket(socket.AF_UNIX)",
    "a fork": "os.fork()",
    "a command": "subprocess.run(['/bin/true'])",
    "a signal to the parent": "os.kill(PARENT, 0)",
    "a new name space": "call('unshare', 0x10000000)",
    "the limits of the parent": "resource.prlimit(PARENT, resource.RLIMIT_CORE, (0, 0))",
    "the priority of the parent": "os.setpriority(os.PRIO_PROCESS, PARENT, 19)",
    "the processors of the parent": "os.sched_setaffinity(PARENT, {0})",
    "a mount": "call('mount', b'none', b'.', b'tmpfs', 0, None)",
    "capabilities": "call('capset', bytes([0x22, 5, 8, 0x20, 0, 0, 0, 0]), bytes([255]) * 24)",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_out_of_reach(what, reached):
    assert not reached[what].startswith("reached"), reached[what]


def test_the_environment_holds_nothing_of_the_examiners(enter, room):
    candidate = enter("import os\ndef probe():\n    return dict(os.environ)\n")
    said = candidate.call("ppo.probe").value
    assert set(said) <= {"HOME", "TMPDIR", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE"}


def test_the_scratch_folder_can_be_written_and_is_empty_for_the_next_child(enter):
    text = f"""
    {REACH}
    def leave():
        for place in (".", "/tmp", "/dev/shm", os.environ["HOME"]):
            reach(write, os.path.join(place, "a-note"))
        return os.path.exists("a-note")

    def find():
        found = []
        for place in (".", "/tmp", "/dev/shm", os.environ["HOME"]):
            for parent, _, names in os.walk(place):
                found += [name for name in names if name == "a-note"]
        return found
    """.replace(REACH, textwrap.indent(REACH, "    "))
    assert enter(text).call("ppo.leave").value is True
    assert enter(text).call("ppo.find").value == []


def test_memory_is_limited(enter):
    candidate = enter("def probe():\n    return len(bytearray(40 << 30))\n")
    assert candidate.call("ppo.probe").raised.kind == "MemoryError"


def test_a_loop_is_ended_and_costs_nobody_else(enter):
    candidate = enter("def probe():\n    while True: pass\n")
    started = time.monotonic()
    with pytest.raises(Gone, match="did not come to an end within 1 seconds"):
        candidate.call("ppo.probe", seconds=1.0)
    assert time.monotonic() - started < 8
    assert enter("def probe():\n    return 7\n").call("ppo.probe").value == 7


def test_an_exit_is_said(enter):
    with pytest.raises(Gone, match="ended the process"):
        enter("def probe():\n    os._exit(0)\nimport os\n").call("ppo.probe")


def test_a_warm_parent_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(room_module, "START", 0.01)
    started = time.monotonic()
    with pytest.raises(RoomLost, match="could not be opened"):
        Room()
    assert time.monotonic() - started < 15


def test_without_bubblewrap_hidden_tests_beside_the_libraries_are_refused(monkeypatch, tmp_path):
    (tmp_path / "lib/python3/site-packages/grader_tests").mkdir(parents=True)
    monkeypatch.setattr(room_module, "bubblewrap_works", lambda: False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(LabError, match="install bubblewrap"):
        Room()


@pytest.fixture
def unknown_workbench():
    """What `check_workbench` has found out is forgotten, before a test and after it."""
    room_module.check_workbench.cache_clear()
    yield
    room_module.check_workbench.cache_clear()


def test_a_python_with_another_copy_of_the_workbench_is_refused(unknown_workbench, monkeypatch, tmp_path):
    installed = Path(rlhf_lab.__file__).parents[1]
    (tmp_path / "rlhf_lab").mkdir()
    (tmp_path / "rlhf_lab" / "__init__.py").touch()
    monkeypatch.setattr(rlhf_lab, "__file__", str(tmp_path / "rlhf_lab" / "__init__.py"))
    with pytest.raises(
        LabError, match=f"has rlhf_lab from {installed}, and not from {tmp_path}: .*make setup"
    ):
        Room()


def test_a_python_without_the_workbench_is_refused(unknown_workbench, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="\n"))
    with pytest.raises(LabError, match="rlhf_lab is not installed in .*make setup"):
        Room()


def test_the_room_opens_again_after_its_warm_parent_died():
    from grader_tests.examiner import Examiner

    solution = {path.name: path.read_bytes() for path in (ROOT / "solutions").glob("*.py")}
    with Examiner(training=False) as examiner:
        os.kill(examiner._room._process.pid, 9)
        examiner._room._process.wait()
        verdict = examiner.examine(solution, ["response_mask"])["response_mask"]
    assert verdict.score == verdict.max


# --- what goes through the wall -------------------------------------------------------------------


def test_values_arrive_as_they_were(enter):
    candidate = enter(
        """
    import torch
    def probe(x, names, flag=None):
        y = x * 2
        return {"y": y, "z": y.detach(), "names": names, "flag": flag, "pair": (1, 2.5), "nothing": None}
    """
    )
    x = torch.arange(3.0).requires_grad_()
    answer = candidate.call("ppo.probe", x, ["a", "b"], flag=True, after=(0, "flag"))
    assert answer.value["y"].tolist() == [0, 2, 4] and answer.value["y"].requires_grad
    assert not answer.value["z"].requires_grad
    assert (answer.value["names"], answer.value["pair"]) == (["a", "b"], (1, 2.5))
    assert (answer.value["flag"], answer.value["nothing"]) == (True, None)
    assert answer.after[0].tolist() == [0, 1, 2] and answer.after["flag"] is True
    assert answer.gradients(0, of=("y",), cotangent=torch.ones(3))[0].tolist() == [2, 2, 2]
    assert answer.gradients(0, of=("z",), cotangent=torch.ones(3)) == [None]


def test_tensors_without_numbers_stay_in_the_room(enter):
    candidate = enter(
        """
    import torch
    def probe():
        return torch.zeros(2, device="meta"), torch.eye(2).to_sparse()
    """
    )
    assert [value.kind for value in candidate.call("ppo.probe").value] == ["Tensor", "Tensor"]
    assert candidate.call("ppo.probe").raised is None


def test_a_tensor_with_more_rows_than_anybody_would_go_through_is_no_data(enter):
    candidate = enter(
        """
    import torch
    def probe(rows, width):
        return torch.empty(rows, width)
    """
    )
    assert candidate.call("ppo.probe", 50_000, 3).value.shape == (50_000, 3)
    for width in (0, 1):
        with pytest.raises(Gone, match="no data"):
            candidate.call("ppo.probe", 10**6, width)


def test_changed_arguments_are_seen(enter):
    candidate = enter("def probe(x, names):\n    x += 1\n    names.append('c')\n")
    answer = candidate.call("ppo.probe", torch.zeros(2), ["a"], after=(0, 1))
    assert (answer.after[0].tolist(), answer.after[1]) == ([1, 1], ["a", "c"])


def test_an_exception_comes_with_its_line_and_without_its_class(enter):
    candidate = enter(
        """
    class Mine(ValueError):
        pass
    def probe():
        x = 1
        raise Mine("too long: 7 of 5")
    """
    )
    raised = candidate.call("ppo.probe").raised
    assert (raised.kind, raised.text, raised.function, raised.line) == (
        "ValueError",
        "too long: 7 of 5",
        "probe",
        3,
    )


def test_an_object_stays_in_the_room_and_can_be_used_again(enter):
    candidate = enter(
        """
    class Counter:
        def __init__(self): self.n = 0
        def __call__(self, by): self.n += by; return self.n
    """
    )
    counter = candidate.call("ppo.Counter").value
    assert counter.kind == "Counter"
    assert [candidate.call(counter, 2).value, candidate.call(counter, 3).value] == [2, 5]
    assert candidate.read(counter, "n") == 5
