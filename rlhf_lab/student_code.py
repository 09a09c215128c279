"""What a student saved, as it is on disk now, and where in it an exception came from.

A check looks at the file, not at what the kernel has imported: an edit that is saved counts, without a restart.
"""

import importlib.util
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

import torch

from .course import Exercise
from .errors import LabError
from .settings import MODULES, STUB_PACKAGE
from .taught_code import TaughtCode

STUB = re.compile(r"exercise \S+: write (\S+) in ")  # how a stub's NotImplementedError begins


class BrokenFile(Exception):
    """A module that cannot be imported: `problem` says why, `place` where."""

    def __init__(self, problem: str, place: str):
        super().__init__(f"{place}: {problem}")
        self.problem = problem
        self.place = place


class _FreshLoader(SourceFileLoader):
    """Compiles the source each time: a cached .pyc goes by the second and the size, and misses a quick edit."""

    def get_code(self, fullname: str):
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def prefer_course_folder() -> None:
    """Put the course folder that we are in first on the import path.

    A notebook runs in a folder below it, and the package beside the notebook is meant, not that of another checkout
    which may be installed.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / STUB_PACKAGE).is_dir():
            sys.path.insert(0, str(folder))
            return


class _FreshFinder(MetaPathFinder):
    """Lets the student's own helper modules be compiled each time, too."""

    def __init__(self, package: str):
        self._inside = f"{package}."

    def find_spec(self, fullname: str, path, target=None):
        spec = PathFinder.find_spec(fullname, path) if fullname.startswith(self._inside) else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _FreshLoader(fullname, spec.origin)
        return spec


def package_folder(package: str) -> Path:
    """Folder of a package that can be imported from here, without importing it.

    Raises:
        LabError: when there is none, or another one of this name was imported before.
    """
    prefer_course_folder()
    spec = PathFinder.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LabError(f"there is no package {package} here: work in the course's own folder (make lab)")
    folder = Path(list(spec.submodule_search_locations)[0])
    imported = getattr(sys.modules.get(package), "__file__", None)
    if imported is not None and Path(imported).parent != folder:
        raise LabError(
            f"{package} was imported from {Path(imported).parent}, and the one of this course folder is {folder}: "
            f"restart, and import rlhf_lab.notebook before it"
        )
    return folder


@contextmanager
def fresh_code(folder: Path) -> Iterator[TaughtCode]:
    """The package in `folder`, imported anew and for this `with` alone: what the kernel has imported stays.

    Raises:
        BrokenFile: when a module does not parse or fails while it is imported.
    """
    package = folder.name
    live = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == package}
    linecache.checkcache()
    finder = _FreshFinder(package)
    sys.meta_path.insert(0, finder)
    put_back = _global_state()
    try:
        import_file(package, folder / "__init__.py", submodule_search_locations=[str(folder)])
        modules = {name: import_file(f"{package}.{name}", folder / f"{name}.py") for name in MODULES}
        yield TaughtCode(package, **modules)
    finally:
        put_back()
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]
        sys.modules.update(live)


def _global_state() -> Callable[[], None]:
    """Remember what student code may change for the whole process; the result puts it back."""
    folder, limit, path = os.getcwd(), sys.getrecursionlimit(), list(sys.path)
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    grad, deterministic = torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
    random_state = torch.get_rng_state()

    def put_back() -> None:
        os.chdir(folder)
        sys.setrecursionlimit(limit)
        sys.path[:] = path
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_rng_state(random_state)

    return put_back


def import_file(name: str, path: Path, **options):
    """Import one file as the module `name`, as it is on disk now.

    Raises:
        BrokenFile: when it does not parse or fails while it is imported.
    """
    if not path.is_file():
        raise BrokenFile("the file is missing", _shown(str(path)))
    try:
        spec = importlib.util.spec_from_file_location(
            name, path, loader=_FreshLoader(name, str(path)), **options
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    except SyntaxError as error:
        problem = str(error.msg or "it does not parse") + (f": {error.text.strip()}" if error.text else "")
        line = f", line {error.lineno}" if error.lineno else ""
        raise BrokenFile(problem, f"{_shown(error.filename or str(path))}{line}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        blame = find_blame(error, path.parent)
        place = str(blame) if blame else _shown(str(path))
        raise BrokenFile(f"the file fails while it is imported: {describe(error)}", place) from None


@dataclass(frozen=True)
class Blame:
    """The line of the student's that an exception passed through last."""

    path: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{_shown(self.path)}, line {self.line}, in {self.function}: {self.text}"


def find_blame(error: BaseException, folder: Path) -> Blame | None:
    """The innermost line in `folder` that `error` came through, or None."""
    root = os.path.realpath(folder) + os.sep
    blame, line = None, error.__traceback__
    while line is not None:
        code = line.tb_frame.f_code
        if os.path.realpath(code.co_filename).startswith(root):
            text = linecache.getline(code.co_filename, line.tb_lineno).strip()
            blame = Blame(code.co_filename, line.tb_lineno, code.co_name, text)
        line = line.tb_next
    return blame


def describe(error: BaseException) -> str:
    """Kind and first line of an exception, without the addresses that change from run to run."""
    try:
        first = (str(error).strip() or "no message").splitlines()[0]
    except Exception:  # an exception class of the student's may have any __str__
        first = "its message cannot be read"
    return f"{type(error).__name__}: {re.sub(r' at 0x[0-9a-f]+', '', first)}"[:300]


def builtin_kind(error: BaseException) -> str:
    """Name of Python's own class that an exception is, or is derived from."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")


def stub_of(error: BaseException) -> str | None:
    """Name of the function or method whose stub raised `error`; None when it was something else."""
    match = STUB.search(describe(error)) if isinstance(error, NotImplementedError) else None
    return match[1] if match else None


def stub_text(exercise: Exercise, qualified_name: str) -> str:
    """What a stub says: which exercise, which file and which section of which notebook."""
    return (
        f"exercise {exercise.number}: write {qualified_name} in {STUB_PACKAGE}/{exercise.file} "
        f"(notebooks/{exercise.notebook}.ipynb, section {exercise.number})"
    )


def _shown(path: str) -> str:
    """A path from the package's folder on, which is how a student knows it."""
    return "/".join(Path(path).parts[-2:])
