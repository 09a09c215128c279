"""Import one exercise of a student among the reference's others, so that a mistake costs points where it is."""

import __future__

import ast
import hashlib
import importlib
import importlib.util
import linecache
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from ..settings import MODULES, STUB_PACKAGE
from ..student_code import builtin_kind
from ..taught_code import TaughtCode


class Broken(Exception):
    """A module that cannot be imported; the text is one sentence without anything of the student's in it."""


def survey(text: bytes, exercises: list[str]) -> dict:
    """What can be said about a module without running it.

    Args:
        exercises: all names that the module should define.

    Returns:
        `problem`, why it does not parse, or None; and `digests`, by exercise, of the module as it is examined for
        that exercise: equal ones behave the same. A module with a problem has none.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        where = f" in line {error.lineno}" if error.lineno else ""
        return _unreadable(f"is no valid Python{where}")
    except Exception as error:  # a null byte, an encoding that does not exist, nesting without end
        return _unreadable(f"cannot be read as Python ({type(error).__name__})")
    try:
        digests = {name: _digest(_without(tree, set(exercises) - {name})) for name in exercises}
    except RecursionError:
        return _unreadable("is nested too deeply")
    return {"problem": None, "digests": digests}


def _unreadable(problem: str) -> dict:
    return {"problem": problem, "digests": {}}


def _digest(tree: ast.Module) -> str:
    return hashlib.sha256(ast.dump(tree).encode("utf-8", "replace")).hexdigest()


def _without(tree: ast.Module, names: set[str]) -> ast.Module:
    """The module without the definitions of these functions and classes."""
    kept = [node for node in tree.body if getattr(node, "name", None) not in names or not _defines(node)]
    return ast.Module(kept, tree.type_ignores)


def _defines(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def import_exercise(
    folder: Path,
    files: Mapping[str, bytes],
    reference: Mapping[str, str],
    module: str,
    names: list[str],
    name: str,
) -> TaughtCode:
    """The reference's package with the student's `name` in it.

    The student's other files are there to be imported. In the module of the exercise the reference's other exercises
    stand before the student's text runs and again after it.

    Args:
        folder: empty, where the package is written.
        files: the student's, by path inside the package.
        reference: text of every taught module, that of the exercise's own without the exercise.
        module: the one that holds the exercise.
        names: all exercises of that module.

    Raises:
        Broken: when the student's module fails while it is imported.
    """
    package = _write_package(
        folder, {**files, **{f"{m}.py": text.encode() for m, text in reference.items() if m != module}}
    )
    _import("__init__.py")
    modules = {}
    for each in MODULES:
        if each == module:
            modules[each] = _mixed_module(
                package / f"{each}.py", files[f"{each}.py"], reference[each], names, name
            )
        else:
            modules[each] = _import(f"{each}.py")
    return TaughtCode(STUB_PACKAGE, **modules)


def import_package(folder: Path, files: Mapping[str, bytes]) -> TaughtCode:
    """The student's package as it is.

    Raises:
        Broken: when a module fails while it is imported.
    """
    _write_package(folder, files)
    _import("__init__.py")
    return TaughtCode(STUB_PACKAGE, **{name: _import(f"{name}.py") for name in MODULES})


def _write_package(folder: Path, files: Mapping[str, bytes]) -> Path:
    package = folder / STUB_PACKAGE
    for path, content in {"__init__.py": b"", **files}.items():
        target = package / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    linecache.clearcache()
    return package


def _mixed_module(path: Path, text: bytes, reference: str, names: list[str], name: str) -> ModuleType:
    others = set(names) - {name}
    # annotations are left alone: some name the class that the student writes, and that is not there yet
    around = compile(reference, "reference", "exec", flags=__future__.annotations.compiler_flag)
    own = compile(_without(ast.parse(text), others), str(path), "exec")
    full_name = f"{STUB_PACKAGE}.{path.stem}"
    spec = importlib.util.spec_from_file_location(full_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[full_name] = module
    setattr(sys.modules[STUB_PACKAGE], path.stem, module)
    exec(around, module.__dict__)
    try:
        exec(own, module.__dict__)
    except BaseException as error:
        raise _broken(path.name, error) from None
    if not hasattr(module, name):
        raise Broken(f"There is no {name} in {path.name}.")
    exec(around, module.__dict__)
    return module


def _import(file: str) -> ModuleType:
    """A module of the package that `_write_package` has written."""
    name = STUB_PACKAGE if file == "__init__.py" else f"{STUB_PACKAGE}.{file.removesuffix('.py')}"
    try:
        return importlib.import_module(name)
    except BaseException as error:  # SystemExit too, and what the student derives from BaseException
        raise _broken(file, error) from None


def _broken(file: str, error: BaseException) -> Broken:
    """The sentence about an import that failed, with the innermost line of the file itself that led there."""
    place, step = "", error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename.endswith(f"/{STUB_PACKAGE}/{file}"):
            place = f" in line {step.tb_lineno}"
        step = step.tb_next
    return Broken(f"{file} raises {builtin_kind(error)}{place} while it is imported.")
