"""The taught package, handed to the workbench by name."""

import hashlib
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from .errors import LabError
from .settings import MODULES


@dataclass(frozen=True)
class TaughtCode:
    """The taught modules of one package, `solutions` or a student's `rlhf_exercises`."""

    package: str
    sft: ModuleType
    reward_model: ModuleType
    ppo: ModuleType
    dpo: ModuleType
    grpo: ModuleType
    toy: ModuleType
    trainer: ModuleType

    def fingerprint(self, *modules: str) -> str:
        """SHA-256 of the named modules' sources, and of what else lies in the package for them to import.

        A finished stage is reused only for the code that made it.
        """
        folder = Path(self.sft.__file__).parent
        others = {f"{name}.py" for name in MODULES if name not in modules}
        digest = hashlib.sha256()
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder).as_posix()
            # solutions/ has the notebooks' sources beside it
            if name not in others and not name.startswith("notebooks/"):
                digest.update(path.read_bytes())
        return digest.hexdigest()


def load_code(package: str) -> TaughtCode:
    """Import `package` from the current folder or the installed packages.

    Raises:
        LabError: when there is no such package, or one of its modules does not import; the sentence names the file
            and line.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    modules = {name: _import(package, name) for name in MODULES}
    return TaughtCode(package, **modules)


def _import(package: str, name: str) -> ModuleType:
    full_name = f"{package}.{name}"
    try:
        return importlib.import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name in (package, full_name):
            raise LabError(
                f"no module {full_name}: run from the course's folder, or give --code the name of a package "
                f"that holds {', '.join(f'{module}.py' for module in MODULES)}"
            ) from None
        raise LabError(
            f"{full_name} needs the package {error.name}, which is not installed: "
            f"run `python -m rlhf_lab setup`, or take the import out"
        ) from None
    except SyntaxError as error:
        raise LabError(
            f"{full_name} does not parse: {error.filename}, line {error.lineno}: {error.msg}"
        ) from None
    except Exception as error:
        line = error.__traceback__
        while line.tb_next is not None:
            line = line.tb_next
        where = f"{line.tb_frame.f_code.co_filename}, line {line.tb_lineno}"
        raise LabError(f"{full_name} fails while it is imported: {where}: {error!r}") from None
