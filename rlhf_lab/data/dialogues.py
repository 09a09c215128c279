"""Preference dialogues of people with an assistant, in the formats of two sets on the hub.

| name | on the hub | files | a row |
|---|---|---|---|
| `hh-rlhf` | `Anthropic/hh-rlhf` | `*/train.jsonl.gz`, `*/test.jsonl.gz` | two whole dialogues, `chosen` and `rejected` |
| `rm-static` | `Dahoas/rm-static` | `data/train-*.parquet`, `data/test-*.parquet` | `prompt` and two answers |

    load_data("hh-rlhf")            # from the hub, or as it was downloaded before
    load_data("hh-rlhf:FOLDER")     # from a folder with such files, at any depth

A dialogue is text, "\\n\\nHuman: ...\\n\\nAssistant: ..." (Bai et al. 2022, "Training a helpful and harmless assistant
with reinforcement learning from human feedback"). A pair asks which of two answers to one prompt is better. The
prompt ends behind the last "\\n\\nAssistant:" that both dialogues share, and an answer is one turn: a row from which
that cannot be had is dropped, and counted by reason. Training data come from the train files, held-out data from
the test files.
"""

import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LabError
from ..hub import hub_folder
from ..settings import Settings
from . import FILES, CourseData, checked_rows

if TYPE_CHECKING:
    from datasets import Dataset

HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"  # how a turn begins
ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")  # of the files that are read
HELD_OUT_PART = 10  # a tenth as many dialogues are held out as are drawn for training

# why a dialogue is dropped
NO_TURN = "without a shared turn of the assistant"
GO_ON = "that go on behind the answer"
EMPTY = "with an empty answer"
SAME = "with the same answer twice"


@dataclass(frozen=True)
class HubSet:
    """One set.

    Attributes:
        repository: its name on the hub.
        suffix: how the names of the files go on behind "train" and "test".
        columns: what a row has to have, as texts.
    """

    repository: str
    suffix: str
    columns: tuple[str, ...]

    def dialogues(self, row: Mapping[str, str]) -> tuple[str, str]:
        """The two whole dialogues of a row, the chosen one first."""
        prompt = row.get("prompt", "")
        return prompt + row["chosen"], prompt + row["rejected"]


HUB_SETS = {
    "hh-rlhf": HubSet("Anthropic/hh-rlhf", ".jsonl*", ("chosen", "rejected")),
    "rm-static": HubSet("Dahoas/rm-static", "*.parquet", ("prompt", "chosen", "rejected")),
}


def named(name: str) -> HubSet | None:
    """The set that `name` means, "hh-rlhf" or "Anthropic/hh-rlhf", with or without ":FOLDER"; None for other data."""
    short_or_id = name.partition(":")[0]
    by_id = {hub_set.repository: hub_set for hub_set in HUB_SETS.values()}
    return HUB_SETS.get(short_or_id) or by_id.get(short_or_id)


def load(name: str, hub_set: HubSet, rows: int) -> CourseData:
    """The set called `name`, and one printed line a split: what was drawn, what was dropped and why.

    The same rows are drawn every time, and a smaller draw is part of a larger one. Chosen answers are the
    demonstrations, prompts of pairs are the prompts of PPO (each once).

    Args:
        rows: dialogues to draw from the train files; a tenth as many are drawn from the test files.

    Raises:
        LabError: where there is no such folder and no hub, a file or a row is broken, or no pair is left.
    """
    if rows < 1:
        raise LabError(f"rows is {rows}, and at least one dialogue has to be drawn")
    _, colon, folder = name.partition(":")
    if colon and not folder:
        raise LabError(f"--data {name} names no folder behind the colon")
    folder = Path(folder) if colon else _from_hub(hub_set)
    train, heldout = (_read(hub_set, folder, split) for split in ("train", "test"))
    return CourseData(
        name=name,
        **_data_sets("train", _pairs(f"{name}, train", hub_set, train, rows)),
        **_data_sets("heldout", _pairs(f"{name}, test", hub_set, heldout, max(1, rows // HELD_OUT_PART))),
    )


def pairs_of(dialogues: Iterable[tuple[str, str]]) -> tuple[list[dict[str, str]], Counter]:
    """Pairs (`prompt`, `chosen`, `rejected`) of chosen and rejected dialogues, and how many were dropped, by reason.

    An answer is brought into the course's form: one leading space, no white space at its end.
    """
    pairs, dropped = [], Counter()
    for chosen, rejected in dialogues:
        shared = os.path.commonprefix([chosen, rejected])
        turn = shared.rfind(ASSISTANT)
        border = turn + len(ASSISTANT)
        answers = [chosen[border:].strip(), rejected[border:].strip()]
        if turn < 0:
            dropped[NO_TURN] += 1
        elif any(mark in dialogue[border:] for dialogue in (chosen, rejected) for mark in (HUMAN, ASSISTANT)):
            # they part ways in an earlier turn: people compared all that follows, and a response is one turn
            dropped[GO_ON] += 1
        elif not all(answers):
            dropped[EMPTY] += 1
        elif answers[0] == answers[1]:
            dropped[SAME] += 1
        else:
            pairs.append(
                {"prompt": chosen[:border], "chosen": f" {answers[0]}", "rejected": f" {answers[1]}"}
            )
    return pairs, dropped


def fitting(data: CourseData, tokenizer, settings: Settings) -> CourseData:
    """The rows of a hub set whose prompts leave room for a response, and one printed line that counts the others.

    Room is `new_tokens` of the `max_len` tokens of a row, so that PPO's texts are no longer than those which the
    reward model has learned from. Nobody can shorten a set of the hub, so its long rows are left out, where a
    long prompt in a folder of one's own is an error. Answers that are too long are cut as exercise 1.1 says.

    Raises:
        LabError: when no row of a file is left.
    """
    most = settings.max_len - settings.new_tokens
    kept, counts = {}, []
    for file in FILES:
        rows = getattr(data, file)
        ids = tokenizer(list(rows["prompt"]), add_special_tokens=False).input_ids
        kept[file] = rows.select([row for row, prompt in enumerate(ids) if len(prompt) <= most])
        if len(kept[file]) == 0:
            raise LabError(
                f"{data.name}, {file}: none of the {len(rows)} prompts has at most {most} tokens, which is --max-len "
                f"{settings.max_len} less --new-tokens {settings.new_tokens}: give a larger --max-len or more --rows"
            )
        counts.append(f"{file} {len(kept[file])} of {len(rows)}")
    print(f"{data.name}: prompts of at most {most} tokens: {', '.join(counts)}")
    return replace(data, **kept)


def _from_hub(hub_set: HubSet) -> Path:
    short = next(name for name, named_set in HUB_SETS.items() if named_set is hub_set)
    return hub_folder(
        hub_set.repository,
        "dataset",
        [f"*{split}{hub_set.suffix}" for split in ("train", "test")],
        instead=f"give a copy as --data {short}:FOLDER, or use --data ratings or toy",
    )


def _read(hub_set: HubSet, folder: Path, split: str) -> "Dataset":
    """All rows of the "train" or the "test" files in a folder."""
    import datasets

    if not folder.is_dir():
        raise LabError(f"there is no data folder {folder}")
    files = [
        path
        for path in sorted(folder.rglob(f"{split}{hub_set.suffix}"))
        # beside the files lie what a download keeps for itself (in hidden folders), locks, and unfinished parts
        if path.is_file() and path.name.endswith(ENDINGS) and not _is_hidden(path.relative_to(folder))
    ]
    if not files:
        raise LabError(f"{folder} holds no {split}{hub_set.suffix}, at any depth")
    for path in files:
        if path.with_name(f"{path.name}.gz") in files:
            raise LabError(
                f"{path} lies beside {path.name}.gz, and both have the same rows: take one of them away"
            )
    return datasets.concatenate_datasets([_read_file(hub_set, path) for path in files])


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _read_file(hub_set: HubSet, path: Path) -> "Dataset":
    """The columns of a file, all of them texts, or a LabError that names file and row."""
    import datasets

    if path.suffix == ".parquet":
        try:
            rows = datasets.load_dataset("parquet", data_files=str(path), split="train")
        except Exception as error:  # the library raises many kinds for one cause
            reason = str(error.__cause__ or error).splitlines()[0]
            raise LabError(f"{path} cannot be read as parquet: {reason}") from None
        _check_texts(rows, hub_set.columns, path)
        return rows.select_columns(list(hub_set.columns))
    # not by the library's reader of JSON: one number in a column, and it puts every text of it into quotes
    rows = checked_rows(path, hub_set.columns, may_be_empty=True)
    return datasets.Dataset.from_dict({column: [row[column] for row in rows] for column in hub_set.columns})


def _check_texts(rows: "Dataset", columns: tuple[str, ...], path: Path) -> None:
    for column in columns:
        if column not in rows.column_names:
            raise LabError(f"{path}: the column {column!r} is missing")
        for number, text in enumerate(rows[column], start=1):
            if not isinstance(text, str):
                raise LabError(f"{path}, row {number}: the column {column!r} must be a text")


def _pairs(where: str, hub_set: HubSet, rows: "Dataset", wanted: int) -> list[dict[str, str]]:
    """The pairs of `wanted` rows, drawn the same way every time, and a printed line that counts them."""
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    drawn = rows.select(sorted(order[:wanted]))
    pairs, dropped = pairs_of(hub_set.dialogues(row) for row in drawn)
    counts = f"{len(drawn)} of {len(rows)} dialogues drawn, {len(pairs)} pairs"
    if dropped:
        counts += ", dropped: " + ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items()))
    if not pairs:
        raise LabError(f"{where}: no dialogue can be used ({counts})")
    print(f"{where}: {counts}")
    return pairs


def _data_sets(split: str, pairs: list[dict[str, str]]) -> dict[str, "Dataset"]:
    """The three data sets that the pairs of a split make."""
    import datasets

    demonstrations = [{"prompt": pair["prompt"], "response": pair["chosen"]} for pair in pairs]
    prompts = [{"prompt": prompt} for prompt in dict.fromkeys(pair["prompt"] for pair in pairs)]
    return {
        f"{kind}_{split}": datasets.Dataset.from_list(rows)
        for kind, rows in (("sft", demonstrations), ("pairs", pairs), ("prompts", prompts))
    }
