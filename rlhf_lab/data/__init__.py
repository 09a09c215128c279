"""Data: the toy corpus, human feedback, user folders of JSONL files and two sets of the hub, as `datasets.Dataset`s.

    data = load_data("toy")            # or "toy-en", "toy-zh", "ratings", "hh-rlhf", "rm-static", or a folder
    data.sft_train[0]                  # {"prompt": ..., "response": ..., "lang": ...}

`python -m rlhf_lab data` prints what is in a data set, with the baselines that do not read.
"""

import gzip
import json
import random
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LabError
from ..settings import Settings

if TYPE_CHECKING:
    from datasets import Dataset

TOY_FOLDER = Path(__file__).parent / "toy"
TOY_NAMES = {"toy": None, "toy-en": "en", "toy-zh": "zh"}  # name -> language, None for both
RATINGS = "ratings"

COLUMNS = {"sft": ("prompt", "response"), "pairs": ("prompt", "chosen", "rejected"), "prompts": ("prompt",)}
EXTRA_COLUMNS = ("lang", "held_out", "phenomenon")  # what kind of row it is
HELD_OUT_SHARE = 0.1  # of a training file whose held-out file is missing


@dataclass(frozen=True)
class CourseData:
    """What the three stages read.

    The SFT sets have the columns `prompt` and `response`; the pairs `prompt`, `chosen` and `rejected`; the
    prompts `prompt`. Prompt + response is the text: an English response brings its own leading space. The toy
    sets also have `lang`, the toy pairs `phenomenon`, the toy held-out pairs `held_out` ("topic", "wording"
    or "both"); rated pairs have `share` and `margin` (see `ratings`).
    """

    name: str
    sft_train: "Dataset"
    sft_heldout: "Dataset"
    pairs_train: "Dataset"
    pairs_heldout: "Dataset"
    prompts_train: "Dataset"
    prompts_heldout: "Dataset"


FILES = tuple(field.name for field in fields(CourseData) if field.name != "name")


def load_data(name_or_folder: str | Path, rows: int = Settings.rows) -> CourseData:
    """Load "toy", "toy-en", "toy-zh", "ratings" (`ratings.py`), a set of the hub (`dialogues.py`), or a folder.

    A folder has the files of the toy corpus. It needs `sft_train.jsonl`, `pairs_train.jsonl` and `prompts_train.jsonl`. Where a
    `..._heldout.jsonl` is missing, a tenth of the training file is held out instead, always the same rows.

    Args:
        rows: of a hub set, how many dialogues to draw for training; a tenth as many are drawn to be held out.

    Raises:
        LabError: for a missing folder or file, an empty file, a line that is not a JSON object, a row
            whose column is missing or not a non-empty text; it names file, row (the line number) and column.
            For "ratings": when they are not on this machine and cannot be fetched.
    """
    from . import dialogues  # which needs this module

    name = str(name_or_folder)
    if name == RATINGS:
        from .ratings import load_ratings

        return CourseData(name=name, **load_ratings())
    if name in TOY_NAMES:
        return _load(name, TOY_FOLDER, TOY_NAMES[name])
    if (hub_set := dialogues.named(name)) is not None:
        return dialogues.load(name, hub_set, rows)
    if not Path(name).is_dir():
        names = ", ".join([*TOY_NAMES, RATINGS, *dialogues.HUB_SETS])
        raise LabError(f"there is no data called {name}: give {names} or a folder with JSONL files")
    return _load(name, Path(name), None)


def toy_rows(file: str) -> list[dict]:
    """The rows of a file of the toy corpus, with all their columns; `file` is one of `FILES`."""
    kind, _, _ = file.partition("_")
    return checked_rows(TOY_FOLDER / f"{file}.jsonl", COLUMNS[kind])


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
        loaded[train] = _read(folder / f"{train}.jsonl", columns)
        if (folder / f"{heldout}.jsonl").exists():
            loaded[heldout] = _read(folder / f"{heldout}.jsonl", columns)
        else:
            loaded[train], loaded[heldout] = _split(loaded[train], folder / f"{train}.jsonl")
    if lang is not None:
        for split, rows in loaded.items():
            loaded[split] = rows.select([i for i, row_lang in enumerate(rows["lang"]) if row_lang == lang])
    return CourseData(name=name, **loaded)


def _read(path: Path, columns: tuple[str, ...]) -> "Dataset":
    """The rows of a JSONL file: the wanted columns, and those of `EXTRA_COLUMNS` that every row has as a text."""
    import datasets  # takes about a second, so only when data are loaded

    rows = checked_rows(path, columns)
    extra = [column for column in EXTRA_COLUMNS if all(isinstance(row.get(column), str) for row in rows)]
    return datasets.Dataset.from_dict(
        {column: [row[column] for row in rows] for column in (*columns, *extra)}
    )


def checked_rows(path: Path, columns: tuple[str, ...], may_be_empty: bool = False) -> list[dict]:
    """Every row of a JSONL file, gzipped or not: a JSON object with a text in every column, or a LabError."""
    open_text = gzip.open if path.suffix == ".gz" else open
    try:
        # -sig: some editors write a mark of order first
        with open_text(path, "rt", encoding="utf-8-sig") as file:
            lines = file.read().split("\n")
    except FileNotFoundError:
        raise LabError(f"the data folder {path.parent} has no {path.name}") from None
    except UnicodeDecodeError:
        raise LabError(f"{path} is not UTF-8 text") from None
    except (OSError, EOFError, zlib.error) as error:
        raise LabError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise LabError(f"{path}, row {number}: not JSON ({error.msg})") from None
        except RecursionError:
            raise LabError(f"{path}, row {number}: nested too deeply") from None
        if not isinstance(row, dict):
            raise LabError(f"{path}, row {number}: not a JSON object with the columns {', '.join(columns)}")
        for column in columns:
            if column not in row:
                raise LabError(f"{path}, row {number}: the column {column!r} is missing")
            if not isinstance(row[column], str) or not (may_be_empty or row[column].strip()):
                kind = "a text" if may_be_empty else "a non-empty text"
                raise LabError(f"{path}, row {number}: the column {column!r} must be {kind}")
            try:
                row[column].encode()
            except UnicodeEncodeError:
                raise LabError(
                    f"{path}, row {number}: the column {column!r} holds half a character (a surrogate)"
                ) from None
        rows.append(row)
    if not rows:
        raise LabError(f"{path} has no rows")
    return rows


def _split(rows: "Dataset", path: Path) -> tuple["Dataset", "Dataset"]:
    if len(rows) < 2:
        raise LabError(f"{path} has one row: with no held-out file beside it, two or more are needed")
    held_out = set(random.Random(0).sample(range(len(rows)), max(1, round(HELD_OUT_SHARE * len(rows)))))
    return rows.select([i for i in range(len(rows)) if i not in held_out]), rows.select(sorted(held_out))
