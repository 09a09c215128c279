"""What a verdict depends on besides the submission, as one number; without loading any of it."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import rlhf_lab
import solutions


@cache
def exam_fingerprint(training: bool, seed: int) -> str:
    """SHA-256 of everything that a verdict depends on besides the submission."""
    grader, workbench, reference = (
        Path(__file__).parent,
        Path(rlhf_lab.__file__).parent,
        Path(solutions.__file__).parent,
    )
    # of the workbench all: the tests use its data, rewards, models and checkpoints
    files = [*grader.glob("*.py"), *workbench.rglob("*"), *reference.glob("*.py")]
    contents = {
        path.as_posix().removeprefix(workbench.parent.as_posix()): path.read_bytes()
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
    }
    return hashlib.sha256(f"{training} {seed} {digest_of(contents)}".encode()).hexdigest()


def digest_of(files: Mapping[str, bytes]) -> str:
    """SHA-256 of files, content by path."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
