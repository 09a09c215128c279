"""The shipped backbone `tiny` and the script that builds it."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_lab.backbones import TINY, build_tiny
from rlhf_lab.data import FILES, load_data
from rlhf_lab.data.corpus.pretraining import pretraining_text

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(TINY).eval()


@pytest.fixture(scope="module")
def provenance():
    return json.loads((TINY / "provenance.json").read_text())


def test_it_is_small():
    assert sum(file.stat().st_size for file in TINY.iterdir()) < 8 * MEGABYTE


def test_it_is_a_gpt2_of_about_a_million_parameters(model, provenance):
    assert model.config.model_type == "gpt2"
    assert 0.5e6 < model.num_parameters() < 1.5e6
    assert model.num_parameters() == provenance["parameters"]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config.resid_pdrop == model.config.embd_pdrop == model.config.attn_pdrop == 0.1


def test_its_tokenizer_is_like_gpt2s(tokenizer, model):
    assert tokenizer.eos_token == "<|endoftext|>"
    assert tokenizer.pad_token is None
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.eos_token_id == model.config.eos_token_id
    assert tokenizer("It").input_ids == tokenizer("It", add_special_tokens=False).input_ids


def test_its_tokenizer_keeps_every_text(tokenizer):
    for text in [" is superb.", "屏幕惊艳。", "naïve 🙂 ключ", "a  b\n\nc , d ."]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_responses_have_the_length_that_ppo_samples(tokenizer):
    data = load_data("toy")
    texts = data.sft_train["response"][:] + data.pairs_train["chosen"][:] + data.pairs_train["rejected"][:]
    lengths = [len(ids) for ids in tokenizer(texts).input_ids]
    assert max(lengths) < 24
    assert 6 <= sum(lengths) / len(lengths) <= 16
    for name in FILES:
        assert max(len(ids) for ids in tokenizer(getattr(data, name)["prompt"][:]).input_ids) <= 24


def test_it_was_built_from_the_present_corpus(provenance, tokenizer):
    text = pretraining_text(provenance["corpus_lines"], provenance["seed"])
    assert build_tiny.corpus_hash(text) == provenance["corpus_sha256"], "run `python -m rlhf_lab build-tiny`"
    assert build_tiny.train_tokenizer(text).get_vocab() == tokenizer.get_vocab()


@torch.no_grad()
def test_it_knows_the_language_but_not_when_to_stop(model, tokenizer, provenance):
    text = pretraining_text(200, seed=provenance["seed"] + 1)  # reviews it has not read
    ids = torch.tensor(tokenizer(text).input_ids[: 8 * 128]).view(8, 128)
    assert model(input_ids=ids, labels=ids).loss.item() < provenance["loss"] + 0.3
    ended = torch.tensor([tokenizer("The new phone is superb.").input_ids])
    assert model(input_ids=ended).logits[0, -1].softmax(-1)[tokenizer.eos_token_id] < 0.01


def test_the_same_seed_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(build_tiny, "N_LINES", 300)
    for name, seed in (("first", 1), ("second", 1), ("other", 2)):
        build_tiny.build_tiny(tmp_path / name, steps=2, seed=seed)
    first, second, other = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}
        for name in ("first", "second", "other")
    )
    assert first == second
    assert {"model.safetensors", "config.json", "tokenizer.json", "provenance.json"} <= set(first)
    assert first["model.safetensors"] != other["model.safetensors"]
