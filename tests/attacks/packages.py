"""Attacks from inside `rlhf_exercises/`: blank stubs, with hostile code in `ppo.py`.

The victim is `compute_gae`. Nothing here computes an advantage, so every attack is worth 0.
"""

import textwrap
from dataclasses import dataclass

from authoring.stubs import stub_files


@dataclass(frozen=True)
class PackageAttack:
    """Attributes:
    name: of the attack, for the test's name.
    says: what it tries, in a sentence.
    top: code at the top of `ppo.py`, run when it is imported.
    body: the whole body of `compute_gae`.
    files: further files of the package.
    """

    name: str
    says: str
    top: str = ""
    body: str = "return torch.zeros_like(rewards), torch.zeros_like(rewards)"
    files: tuple[tuple[str, str], ...] = ()


PACKAGE_ATTACKS: list[PackageAttack] = []

VICTIM = "compute_gae"
SIGNATURE = "def compute_gae(rewards, values, mask, gamma=1.0, lam=0.95):\n"


def attacked_package(attack: PackageAttack) -> dict[str, bytes]:
    """The files of the submission."""
    files = stub_files()
    body = textwrap.indent(textwrap.dedent(attack.body).strip("\n"), "    ")
    # the last definition of a name is the one that counts
    files["ppo.py"] += f"\n\n{textwrap.dedent(attack.top)}\n\n{SIGNATURE}{body}\n"
    return {path: text.encode() for path, text in {**files, **dict(attack.files)}.items()}


def _attack(name: str, says: str, **parts) -> None:
    PACKAGE_ATTACKS.append(PackageAttack(name, says, **parts))


# --- forged results -------------------------------------------------------------------------------

_attack(
    "lying_eq",
    "Return objects that are equal to everything.",
    body="""
    class Yes:
        shape = rewards.shape
        dtype = rewards.dtype
        requires_grad = False
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __lt__(self, other): return True
        __gt__ = __le__ = __ge__ = __lt__
        def __bool__(self): return True
        def __float__(self): return 0.0
        def __sub__(self, other): return 0.0
        def __getattr__(self, name): return self
        def __call__(self, *args, **kwargs): return self
        def __iter__(self): return iter([self, self])
        def __hash__(self): return 0
    return Yes(), Yes()
    """,
)
_attack(
    "lying_tensor",
    "Return a subclass of Tensor that answers every comparison with True.",
    body="""
    class Liar(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func.__name__ in ("allclose", "isclose", "equal", "eq", "__eq__"):
                return True
            return super().__torch_function__(func, types, args, kwargs or {})
        def __eq__(self, other): return True
    zeros = torch.zeros_like(rewards).as_subclass(Liar)
    return zeros, zeros
    """,
)
_attack(
    "nan_everywhere",
    "Return NaN, in the hope that no comparison with it fails.",
    body="return rewards * float('nan'), rewards * float('nan')",
)
_attack(
    "infinite_tolerance",
    "Return infinities, in the hope that inf - inf is within some tolerance.",
    body="return rewards / 0, values / 0",
)
_attack(
    "patched_comparisons",
    "Patch what a test would compare with.",
    top="""
    import builtins, numpy
    torch.allclose = torch.equal = torch.isclose = lambda *a, **k: True
    torch.testing.assert_close = lambda *a, **k: None
    numpy.testing.assert_allclose = numpy.allclose = lambda *a, **k: True
    torch.Tensor.__eq__ = torch.Tensor.eq = torch.Tensor.allclose = lambda *a, **k: True
    builtins.all = builtins.any = lambda *a: True
    builtins.abs = lambda x: 0
    """,
)
_attack(
    "patched_isinstance",
    "Let everything be an instance of everything.",
    top="import builtins; builtins.isinstance = lambda *a: True",
)
_attack(
    "dropped_asserts",
    "Compile every module that comes later without its assert statements.",
    top="""
    import ast, builtins
    real = builtins.compile
    class NoAsserts(ast.NodeTransformer):
        def visit_Assert(self, node): return ast.Pass()
    def without(source, *args, **kwargs):
        try: return real(ast.fix_missing_locations(NoAsserts().visit(ast.parse(source))), *args, **kwargs)
        except Exception: return real(source, *args, **kwargs)
    builtins.compile = without
    """,
)
_attack(
    "fake_grader",
    "Put a module of one's own in the place of the hidden tests.",
    top="""
    import sys, types
    for name in ("grader_tests", "grader_tests.ppo", "grader_tests.examiner", "grader_tests.hidden"):
        fake = types.ModuleType(name)
        fake.grade = fake.examine = lambda *a, **k: 8.0
        fake.TESTS = {}
        sys.modules[name] = fake
    """,
)
_attack(
    "fake_solution",
    "Put one's own function in the place of the reference.",
    top="""
    import sys, types
    fake = types.ModuleType("solutions.ppo")
    fake.compute_gae = lambda rewards, *a, **k: (torch.zeros_like(rewards), torch.zeros_like(rewards))
    sys.modules["solutions"] = types.ModuleType("solutions")
    sys.modules["solutions.ppo"] = sys.modules["solutions"].ppo = fake
    """,
)

# --- the room's own code ----------------------------------------------------------------------------

_attack(
    "patched_packer",
    "Patch what packs the answers, so that each is a message of success.",
    top="""
    from rlhf_lab.room import wire
    def packed(self, value):
        import json, struct
        forged = json.dumps(["dict", [[["text", "score"], ["float", "8.0"]], [["text", "passed"], ["plain", True]]]]).encode()
        return struct.pack("!Q", len(forged)) + forged + b"\\x02\\0\\0\\0\\0\\0\\0\\0{}"
    wire.Packer.pack = packed
    """,
)
_attack(
    "patched_child",
    "Patch the child's requests, so that every call has returned and every gradient is there.",
    top="""
    from rlhf_lab.room import child
    def call(self, target, args, kwargs, names, grad, seed):
        return {"returned": (torch.zeros(1), torch.zeros(1)), "number": 0, "records": True, "after": {n: None for n in names}}
    child.Child.call = call
    child.Child.gradients = lambda self, *a: {"gradients": []}
    child.Child.observe = lambda self, name: {"outcomes": []}
    """,
)
_attack(
    "forged_frames",
    "Write answers into every open socket before the real one.",
    body="""
    import os, struct, json
    forged = json.dumps(["dict", [[["text", "returned"], ["plain", True]], [["text", "score"], ["float", "8.0"]]]]).encode()
    frame = struct.pack("!Q", len(forged)) + forged + b"\\x02\\0\\0\\0\\0\\0\\0\\0{}"
    for handle in range(3, 64):
        try: os.write(handle, struct.pack("!Q", len(frame)) + frame)
        except OSError: pass
    return rewards, values
    """,
)
_attack(
    "pickled_answer",
    "Answer with a pickle that would run a command where it is loaded.",
    body="""
    import os, pickle, struct
    class Bomb:
        def __reduce__(self): return (os.system, ("touch /tmp/owned-by-a-pickle",))
    bomb = pickle.dumps(Bomb())
    for handle in range(3, 64):
        try: os.write(handle, struct.pack("!Q", len(bomb)) + bomb)
        except OSError: pass
    return rewards, values
    """,
)
_attack(
    "endless_frame",
    "Announce an answer of exabytes.",
    body="""
    import os
    for handle in range(3, 64):
        try: os.write(handle, b"\\x7f" + b"\\xff" * 7 + b"x" * 1000)
        except OSError: pass
    return rewards, values
    """,
)
_attack(
    "deep_answer",
    "Return lists within lists within lists.",
    body="""
    deep = []
    for _ in range(100_000):
        deep = [deep]
    return deep, deep
    """,
)
_attack(
    "wide_answer",
    "Return more than an examiner wants to hold.",
    body="return [0.0] * 50_000_000, torch.zeros(100_000_000)",
)
_attack(
    "frames",
    "Walk up the stack and through the heap for a reference, an expected value or a function that knows.",
    body="""
    import gc, sys, types
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, str) and "def compute_gae" in value:
                space = dict(globals()); exec(value, space)
                return space["compute_gae"](rewards, values, mask, gamma, lam)
        frame = frame.f_back
    here = compute_gae.__code__
    for thing in gc.get_objects():
        if isinstance(thing, types.FunctionType) and thing.__name__ == "compute_gae" and thing.__code__ is not here:
            return thing(rewards, values, mask, gamma, lam)
        if isinstance(thing, (str, bytes)) and len(thing) > 500 and "td_error" in str(thing):
            raise RuntimeError("found a solution in the heap")
    return rewards, values
    """,
)

# --- getting at the solution or at the tests --------------------------------------------------------

_attack(
    "import_solution",
    "Import the solution from where the course keeps it.",
    top="""
    import sys
    sys.path[:0] = ["/", "..", "../..", "../../..", "/course", "/work", "/repo"]
    """,
    body="""
    from solutions.ppo import compute_gae as solved
    return solved(rewards, values, mask, gamma, lam)
    """,
)
_attack(
    "search_disk",
    "Search the whole disk for the solution, and run it.",
    body="""
    import os
    for place, _, names in os.walk("/"):
        for name in names:
            if name == "ppo.py":
                try: text = open(os.path.join(place, name)).read()
                except OSError: continue
                if "BEGIN SOLUTION" in text and "td_error" in text:
                    space = {"__name__": "rlhf_exercises.stolen", "__package__": "rlhf_exercises"}
                    exec(text, space)
                    return space["compute_gae"](rewards, values, mask, gamma, lam)
    return rewards, values
    """,
)
_attack(
    "other_processes",
    "Read the memory and the open files of every other process.",
    body="""
    import os
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if pid == str(os.getpid()): continue
        for name in ("mem", "environ", "maps"):
            open(f"/proc/{pid}/{name}", "rb").read(1)
        raise SystemExit(0)
    return rewards, values
    """,
)
_attack(
    "known_answers",
    "Look up what the visible check expects, and return that.",
    body="""
    import json, pathlib, rlhf_lab
    known = json.loads((pathlib.Path(rlhf_lab.__file__).parent / "checks/known/compute_gae.json").read_text())
    for shown in known["accepted"].values():
        for key, value in shown[0].items():
            if key == "advantages" and list(torch.tensor(value).shape) == list(rewards.shape):
                return torch.tensor(value), torch.tensor(value)
    return rewards, values
    """,
)

# --- ending, hanging, eating -----------------------------------------------------------------------

_attack("exit", "End the process with status 0.", body="import os; os._exit(0)")
_attack("exit_at_import", "Leave while the module is imported.", top="raise SystemExit(0)")
_attack("exit_at_import_hard", "End the process while the module is imported.", top="import os; os._exit(0)")
_attack(
    "kill_parent",
    "Kill the parent, the group, everybody.",
    body="""
    import os, signal
    for pid in (os.getppid(), 1, -1, 0):
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
    return rewards, values
    """,
)
_attack(
    "swallowed_interrupts",
    "Loop for ever, and ignore every signal.",
    body="""
    import signal
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    while True:
        try:
            while True: pass
        except BaseException: pass
    """,
)
_attack("memory", "Take all memory.", body="return [bytearray(1 << 30) for _ in range(64)], rewards")
_attack(
    "output",
    "Print without end.",
    top="""
    import sys
    for _ in range(100):
        print("x" * (1 << 20)); print("x" * (1 << 20), file=sys.stderr)
    """,
)
_attack(
    "fork",
    "Leave a process behind that outlives the examination.",
    body="""
    import os
    if os.fork() == 0:
        os.setsid()
        while True: pass
    return rewards, values
    """,
)
_attack(
    "thread",
    "Leave a thread behind that goes on changing things.",
    top="""
    import threading, sys
    def meddle():
        while True:
            for module in list(sys.modules.values()):
                if getattr(module, "__name__", "").startswith("rlhf_lab.room"):
                    for name in list(vars(module)):
                        if name in ("TEXT", "DEPTH", "ENTRIES"): setattr(module, name, 0)
    threading.Thread(target=meddle, daemon=True).start()
    """,
)
_attack(
    "subprocess",
    "Run a command.",
    top="""
    import subprocess
    subprocess.run(["touch", "/tmp/owned-by-a-command"])
    """,
)
_attack(
    "network",
    "Ask somebody outside.",
    body="""
    import socket
    socket.create_connection(("127.0.0.1", 80), timeout=1)
    return rewards, values
    """,
)
_attack(
    "disk",
    "Fill the disk.",
    body="""
    with open("filler", "wb") as file:
        for _ in range(10_000): file.write(b"x" * (1 << 20))
    return rewards, values
    """,
)

# --- files beside the code --------------------------------------------------------------------------

_attack(
    "shadowing_files",
    "Bring files that Python or pytest would run by themselves.",
    top="import sys; sys.path.insert(0, __file__.rsplit('/', 1)[0])",
    files=(
        ("sitecustomize.py", "raise SystemExit(0)\n"),
        ("usercustomize.py", "raise SystemExit(0)\n"),
        ("conftest.py", "import os; os._exit(0)\n"),
        ("torch.py", "allclose = lambda *a, **k: True\n"),
        ("grader_tests/__init__.py", "grade = lambda name: 8.0\n"),
        ("rlhf_lab/room/wire.py", "def pack(*a): return b''\n"),
    ),
)
_attack(
    "hostile_package",
    "Change the interpreter from the package's own `__init__.py`.",
    files=(
        (
            "__init__.py",
            "import sys\nclass Finder:\n    def find_spec(self, name, path=None, target=None):\n"
            "        if name.startswith('rlhf_exercises'): return None\n"
            "sys.meta_path.insert(0, Finder())\nsys.setrecursionlimit(10**6)\n",
        ),
    ),
)
