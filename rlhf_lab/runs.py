"""Run folders: what a stage has finished is on disk, whole, and a later run picks it up.

    runs/demo-seed0/
        run.json            format, version and settings of the run
        sft/                one folder a stage: checkpoint (safetensors), history.json ...
            inputs.json     ... what it is made from: taught code, backbone, data, earlier stages
            stage.json      ... and, written last, the hash of every file that came out
        reward_model/
        ppo/
            step-00010/     checkpoint in the middle of the stage, until the stage is finished

A file is written under another name, flushed and renamed, so that it is there whole or not at all. A stage counts as
finished when its `stage.json` is there, was made from the same inputs, and every file still has the hash that it
names. What a finished stage has made is never deleted: what is in the way is moved aside.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from filelock import FileLock, Timeout

from . import __version__
from .errors import LabError
from .settings import Settings

FORMAT = 1
CHECKPOINTS = "step-[0-9][0-9][0-9][0-9][0-9]"  # folders inside a stage's own


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or nothing.

    Raises:
        LabError: when the disk is full or the folder cannot be written to.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # two processes may write at a time
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, content) -> None:
    write_bytes(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path):
    """Raises LabError when the file is missing or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LabError(f"{path} is missing") from None
    except (ValueError, UnicodeDecodeError):
        raise LabError(f"{path} is not valid JSON: it was changed or damaged") from None


def write_tensors(path: Path, tensors: dict) -> None:
    """Write a dictionary of tensors as safetensors; tensors that share memory are written out each."""
    from safetensors.torch import save

    write_bytes(path, save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}))


def read_tensors(path: Path) -> dict:
    """Raises LabError when the file is missing or is not safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise LabError(f"{path} is missing") from None
    except SafetensorError:
        raise LabError(f"{path} is not a valid safetensors file: it was changed or damaged") from None


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Fill a new folder under another name and rename it to `folder` when that succeeded."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    with _disk_errors(folder):
        temporary.mkdir(parents=True)
        try:
            yield temporary
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def set_aside(folder: Path) -> Path:
    """Rename a folder to `NAME.old-1`, `NAME.old-2`, ... and return where it went."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    with _disk_errors(folder):
        os.replace(folder, aside)
    return aside


def check_idle(folder: Path) -> None:
    """Raise LabError unless `folder` is a run folder in which nobody is working."""
    if not (folder / "run.json").exists():
        raise LabError(f"{folder} is not a run folder: it is left as it is")
    with _disk_errors(folder):
        _lock(folder).release()


def read_settings(folder: Path) -> Settings:
    """The settings of a run, for who starts from what it has finished.

    Raises:
        LabError: when the folder is not that of a run, or another version or another command has made it.
    """
    if not (folder / "run.json").is_file():
        raise LabError(
            f"{folder} is not a run folder: train one first with `python -m rlhf_lab run --run {folder}`"
        )
    header = read_json(folder / "run.json")
    settings = header.get("settings", {})
    if header.get("format") != FORMAT or not set(settings) <= {field.name for field in fields(Settings)}:
        raise LabError(
            f"the run {folder} was made by another version of the course or by another command: train one first with "
            f"`python -m rlhf_lab run`"
        )
    return Settings(**settings)


def check_finished(folder: Path, *stages: str) -> None:
    """Raise LabError unless the run in `folder` has finished these stages."""
    for stage in stages:
        if not (folder / stage / "stage.json").is_file():
            raise LabError(
                f"the run {folder} has not finished its stage {stage}: give its command again first"
            )


def _lock(folder: Path) -> FileLock:
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise LabError(
            f"another process is working in {folder}: wait for it, or give another --run"
        ) from None
    return lock


class Run:
    """One run folder, held by one process at a time.

    Args:
        folder: is made when it does not exist.
        settings: what the run is asked to do; a folder that was begun with other settings is refused.

    Raises:
        LabError: when the folder belongs to another version, other settings or another process.
    """

    def __init__(self, folder: Path, settings: dict):
        self.folder = folder
        self.settings = settings
        with _disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder)
        try:
            self._check_or_write_header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._lock.release()

    def stage(self, name: str, inputs: dict) -> "Stage":
        return Stage(self.folder / name, inputs)

    def _check_or_write_header(self) -> None:
        header_path = self.folder / "run.json"
        if not header_path.exists():
            foreign = [entry.name for entry in self.folder.iterdir() if entry.name != ".lock"]
            if foreign:
                raise LabError(
                    f"{self.folder} is not a run folder (it holds {min(foreign)}): give another --run"
                )
            write_json(header_path, {"format": FORMAT, "version": __version__, "settings": self.settings})
            return
        header = read_json(header_path)
        made_by = header.get("format") if isinstance(header, dict) else None
        if made_by != FORMAT:
            raise LabError(
                f"{self.folder} was made by another version of the course (run format {made_by}, this is {FORMAT}): "
                f"give another --run, or --fresh to move it aside"
            )
        before, now = header["settings"], json.loads(json.dumps(self.settings))
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if changed:
            key = changed[0]
            raise LabError(
                f"{self.folder} was begun with {key} = {before.get(key)!r}, and now it is {now.get(key)!r}: "
                f"give another --run, or --fresh to move it aside"
            )


class Stage:
    """One stage of a run: a folder, the inputs it is made from, and whether it is finished."""

    def __init__(self, folder: Path, inputs: dict):
        self.folder = folder
        self.inputs = inputs
        self._manifest_path = folder / "stage.json"

    def begin(self) -> bool:
        """True when there is work to do, False when the stage is finished.

        Raises:
            LabError: when the stage was made from other inputs, for instance from other taught code.
        """
        started = self._read("inputs.json")
        something_trained = self._manifest_path.exists() or any(self.folder.glob(CHECKPOINTS))
        if something_trained and started != self.inputs:
            started = started or {}
            changed = [key for key in {**started, **self.inputs} if started.get(key) != self.inputs.get(key)]
            raise LabError(
                f"{self.folder} was made with another {changed[0]}: add --fresh {self.folder.name} to move it aside "
                f"and train it again, or give another --run"
            )
        manifest = self._read("stage.json")
        if manifest is not None:
            damaged = [
                name for name, digest in manifest["files"].items() if digest_of(self.folder / name) != digest
            ]
            if not damaged:
                return False
            aside = set_aside(self.folder)
            print(
                f"{self.folder / damaged[0]} is damaged: the stage is trained again (the old one is in {aside})"
            )
        write_json(self.folder / "inputs.json", self.inputs)
        return True

    def finish(self) -> None:
        """Declare the stage finished, with the hash of every file that it made, and drop its checkpoints."""
        checkpoints = list(self.folder.glob(CHECKPOINTS))
        files = {
            path.relative_to(self.folder).as_posix(): digest_of(path)
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not path.name.startswith(".") and not set(path.parents) & set(checkpoints)
        }
        write_json(self._manifest_path, {"files": files})
        for checkpoint in checkpoints:
            shutil.rmtree(checkpoint)

    def _read(self, name: str) -> dict | None:
        path = self.folder / name
        return read_json(path) if path.exists() else None


def digest_of(path: Path) -> str | None:
    """SHA-256 of a file, or of the names and contents of a folder; None when there is nothing."""
    if path.is_dir():
        total = hashlib.sha256()
        for file in sorted(path.rglob("*")):
            if file.is_file():
                total.update(f"{file.relative_to(path).as_posix()} {digest_of(file)}\n".encode())
        return total.hexdigest()
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Say in one sentence that a write failed, whichever library noticed it."""
    disk_full = LabError(
        f"the disk is full: {path} could not be written; what was finished before is safe, free some space and run "
        f"the same command again"
    )
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full from None
        raise LabError(f"{path} could not be written: {error.strerror or error}") from None
    except Exception as error:
        if "No space left on device" in str(error):  # safetensors reports it as an error of its own
            raise disk_full from None
        raise
