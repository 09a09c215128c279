"""The six files of the toy corpus."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from .. import FILES
from .demonstrations import demonstrations
from .pairs import CountTokens, Pair, PairSource
from .prompts import LANGUAGES, held_out_topic_prompts, training_prompts

SEED = 2024

# Rows per language. The prompt files hold every prompt there is.
N_SFT_TRAIN, N_SFT_HELDOUT = 240, 60
N_PAIRS_TRAIN, N_PAIRS_HELDOUT = 900, 66  # the latter for each kind of held-out pair


def build(count_tokens: CountTokens, seed: int = SEED) -> dict[str, list[dict]]:
    """The six files of the toy corpus as {name: rows}; `count_tokens` balances the pairs' lengths."""
    files = {name: [] for name in FILES}
    for lang in LANGUAGES:
        for name, rows in _build_language(lang, count_tokens, seed):
            files[name] += rows
    for name in ("sft_train", "pairs_train", "prompts_train"):
        random.Random(f"{seed} {name}").shuffle(files[name])  # the languages side by side in every batch
    return files


def _build_language(lang: str, count_tokens: CountTokens, seed: int) -> Iterator[tuple[str, list[dict]]]:
    rng = random.Random(f"{seed} {lang}")  # seeded by a string: stable across machines, unlike hash()
    known, new = training_prompts(lang), held_out_topic_prompts(lang)
    yield "sft_train", demonstrations(rng, known, N_SFT_TRAIN, "train")
    yield "sft_heldout", demonstrations(rng, new, N_SFT_HELDOUT, "all")
    source = PairSource(rng, count_tokens)
    yield "pairs_train", [_pair_row(pair) for pair in source.draw(known, N_PAIRS_TRAIN, "train")]
    for held_out, prompts, wording in (
        ("topic", new, "train"),
        ("wording", known, "held_out"),
        ("both", new, "held_out"),
    ):
        pairs = source.draw(prompts, N_PAIRS_HELDOUT, wording)
        yield "pairs_heldout", [_pair_row(pair, held_out=held_out) for pair in pairs]
    yield "prompts_train", [{"prompt": p.text, "lang": lang} for p in known]
    yield "prompts_heldout", [{"prompt": p.text, "lang": lang} for p in new]


def _pair_row(pair: Pair, **columns: str) -> dict:
    return {
        "prompt": pair.prompt.text,
        "chosen": pair.chosen.text,
        "rejected": pair.rejected.text,
        "lang": pair.prompt.lang,
        **columns,
        "phenomenon": pair.phenomenon,
    }


def to_jsonl(rows: list[dict]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def tiny_token_counter() -> CountTokens:
    """Counts tokens as the shipped `tiny` does, whose tokenizer depends on the pretraining text alone."""
    from tokenizers import Tokenizer

    from ...backbones import TINY

    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text).ids)


def write_toy(folder: Path) -> None:
    """Write the six files to the folder, over those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in build(tiny_token_counter()).items():
        path = folder / f"{name}.jsonl"
        path.write_text(to_jsonl(rows), encoding="utf-8", newline="\n")
        print(f"{path}: {len(rows)} rows")
