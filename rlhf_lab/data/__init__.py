"""Data: the toy corpus and user folders of JSONL files, as `datasets.Dataset`s.

    data = load_data("toy")            # or "toy-en", "toy-zh", or a folder
    data.sft_train[0]                  # {"prompt": ..., "response": ..., "lang": ...}

`python -m rlhf_lab data` prints what is in a data set, with the baselines that do not read.
"""

import json
import random
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LabError

if TYPE_CHECKING:
    from datasets import Dataset

TOY_FOLDER = Path(__file__).parent / "toy"
TOY_NAMES = {"toy": None, "toy-en": "en", "toy-zh": "zh"}  # name -> language, None for both

COLUMNS = {"sft": ("prompt", "response"), "pairs": ("prompt", "chosen", "rejected"), "prompts": ("prompt",)}
HELD_OUT_SHARE = 0.1  # of a training file whose held-out file is missing


@dataclass(frozen=True)
class CourseData:
    """What the three stages read.

    The SFT sets have the columns `prompt` and `response`; the pairs `prompt`, `chosen` and `rejected`; the
    prompts `prompt`. Prompt + response is the text: an English response brings its own leading space. The toy
    sets also have `lang`, the toy pairs `phenomenon`, the toy held-out pairs `held_out` ("topic", "wording"
    or "both").
    """

    name: str
    sft_train: "Dataset"
    sft_heldout: "Dataset"
    pairs_train: "Dataset"
    pairs_heldout: "Dataset"
    prompts_train: "Dataset"
    prompts_heldout: "Dataset"


FILES = tuple(field.name for field in fields(CourseData) if field.name != "name")


def load_data(name_or_folder: str | Path) -> CourseData:
    """Load "toy", "toy-en", "toy-zh", or a folder with the same JSONL files.

    A folder needs `sft_train.jsonl`, `pairs_train.jsonl` and `prompts_train.jsonl`. Where a
    `..._heldout.jsonl` is missing, a tenth of the training file is held out instead, always the same rows.

    Raises:
        LabError: for a missing folder or file, an empty file, a line that is not a JSON object, a row
            whose column is missing or not a non-empty text; it names file, row (the line number) and column.
    """
    name = str(name_or_folder)
    if name in TOY_NAMES:
        return _load(name, TOY_FOLDER, TOY_NAMES[name])
    if not Path(name).is_dir():
        names = ", ".join(TOY_NAMES)
        raise LabError(f"there is no data called {name}: give {names} or a folder with JSONL files")
    return _load(name, Path(name), None)


def length_only_accuracy(pairs: Iterable[Mapping]) -> float:
    """Accuracy of guessing by length: the better of "longer wins" and "shorter wins"; ties count half."""
    longer, total = 0.0, 0
    for row in pairs:
        chosen, rejected = len(row["chosen"]), len(row["rejected"])
        longer += 0.5 if chosen == rejected else chosen > rejected
        total += 1
    return max(longer, total - longer) / total


def _load(name: str, folder: Path, lang: str | None) -> CourseData:
    loaded = {}
    for kind, columns in COLUMNS.items():
        train, heldout = f"{kind}_train", f"{kind}_heldout"
        _check(folder / f"{train}.jsonl", columns)
        has_heldout = (folder / f"{heldout}.jsonl").exists()
        if has_heldout:
            _check(folder / f"{heldout}.jsonl", columns)
        for split in (train, heldout) if has_heldout else (train,):
            loaded[split] = _read(folder / f"{split}.jsonl")
        if not has_heldout:
            loaded[train], loaded[heldout] = _split(loaded[train], folder / f"{train}.jsonl")
    if lang is not None:
        for split, rows in loaded.items():
            loaded[split] = rows.select([i for i, row_lang in enumerate(rows["lang"]) if row_lang == lang])
    return CourseData(name=name, **loaded)


def _check(path: Path, columns: tuple[str, ...]) -> None:
    """Every row a JSON object with a non-empty text in every column, or a LabError."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise LabError(f"the data folder {path.parent} has no {path.name}") from None
    except UnicodeDecodeError:
        raise LabError(f"{path} is not UTF-8 text") from None
    n_rows = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        n_rows += 1
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise LabError(f"{path}, row {number}: not JSON ({error.msg})") from None
        if not isinstance(row, dict):
            raise LabError(f"{path}, row {number}: not a JSON object with the columns {', '.join(columns)}")
        for column in columns:
            if column not in row:
                raise LabError(f"{path}, row {number}: the column {column!r} is missing")
            if not isinstance(row[column], str) or not row[column].strip():
                raise LabError(f"{path}, row {number}: the column {column!r} must be a non-empty text")
    if n_rows == 0:
        raise LabError(f"{path} has no rows")


def _read(path: Path) -> "Dataset":
    import datasets  # takes about a second, so only when data are loaded

    bars = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    # a cache of its own, thrown away: an edited file is never answered from an older one
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        try:
            return datasets.load_dataset(
                "json", data_files=str(path), split="train", cache_dir=cache, keep_in_memory=True
            )
        finally:
            if bars:
                datasets.enable_progress_bars()


def _split(rows: "Dataset", path: Path) -> tuple["Dataset", "Dataset"]:
    if len(rows) < 2:
        raise LabError(f"{path} has one row: with no held-out file beside it, two or more are needed")
    held_out = set(random.Random(0).sample(range(len(rows)), max(1, round(HELD_OUT_SHARE * len(rows)))))
    return rows.select([i for i in range(len(rows)) if i not in held_out]), rows.select(sorted(held_out))
