"""A checkpoint laid out as `gpt2` is on the hub, made on the spot: by folder and by name, through a whole run.

What is particular about GPT-2's own files: no pad token anywhere; the EOS token is the last of the vocabulary and
comes from the tokenizer's class; the tensors have no `transformer.` before their names, no `lm_head`, and causal masks
among them; dropout of 0.1; a recommendation to sample `max_length` 50.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

from rlhf_lab import backbones
from rlhf_lab.cli import main
from rlhf_lab.data import FILES, load_data
from rlhf_lab.errors import LabError
from rlhf_lab.runs import read_json
from tests.conftest import EOS

CHECKOUT = Path(__file__).parent.parent
N_POSITIONS = 64
COMMIT = 40 * "a"  # any name of a snapshot does
SMALL_RUN = (
    "--max-len 48 --sft-epochs 1 --sft-batch 8 --rm-epochs 1 --rm-batch 8 --batch 4 --new-tokens 5 --steps 2"
).split()


@pytest.fixture(scope="module")
def few_rows(tmp_path_factory):
    """A data folder: the first rows of the toy corpus's English files."""
    folder, data = tmp_path_factory.mktemp("data"), load_data("toy-en")
    for file in FILES:
        getattr(data, file).select(range(32)).to_json(folder / f"{file}.jsonl")
    return folder


@pytest.fixture(scope="module")
def gpt2(few_rows, tmp_path_factory):
    """The folder with all files that the hub has of GPT-2, 2 layers of 32 and 600 tokens instead of 50257."""
    folder = tmp_path_factory.mktemp("gpt2-shaped")
    bpe = ByteLevelBPETokenizer()
    bpe.train([str(path) for path in few_rows.iterdir()], vocab_size=599, show_progress=False)
    bpe.save_model(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    vocabulary[EOS] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    GPT2Tokenizer(str(folder / "vocab.json"), str(folder / "merges.txt")).backend_tokenizer.save(
        str(folder / "tokenizer.json")
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": N_POSITIONS}))

    config = {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": vocabulary[EOS], "embd_pdrop": 0.1, "eos_token_id": vocabulary[EOS], "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": N_POSITIONS, "n_embd": 32, "n_head": 4, "n_layer": 2,
        "n_positions": N_POSITIONS, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": len(vocabulary),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    recommended = {"bos_token_id": vocabulary[EOS], "eos_token_id": vocabulary[EOS]}
    (folder / "generation_config.json").write_text(json.dumps(recommended))
    save_file(weights(config), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def weights(config: dict) -> dict[str, torch.Tensor]:
    """Random tensors under the names that GPT-2's file has."""
    torch.manual_seed(5)
    # ten times GPT-2's own range: positions and padding have to matter
    model = GPT2LMHeadModel(GPT2Config(**{**config, "initializer_range": 0.2}))
    tensors = {
        name.removeprefix("transformer."): tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    mask = torch.ones(N_POSITIONS, N_POSITIONS).tril().view(1, 1, N_POSITIONS, N_POSITIONS)
    return tensors | {f"h.{layer}.attn.bias": mask.clone() for layer in range(config["n_layer"])}


@pytest.mark.parametrize("shape", ["gpt2", "llama_folder"])
def test_a_whole_run_on_a_local_folder_keeps_every_invariant(shape, few_rows, request, tmp_path, capsys):
    folder, run = request.getfixturevalue(shape), tmp_path / "run"
    arguments = ["--backbone", str(folder), "--data", str(few_rows), "--run", str(run)]
    assert main(["run", *arguments, *SMALL_RUN]) in (0, 2)
    printed = capsys.readouterr().out
    for point in (3, 4, 5):  # of the score card: they hold whatever the budget
        assert f"\n{point}  pass" in printed
    assert "of 7 points passed" in printed
    figures = {stage: read_json(run / stage / "figures.json") for stage in ("sft", "reward_model", "ppo")}
    losses = [loss for _, loss in figures["sft"]["heldout_loss"]]
    assert losses[-1] < losses[0]
    assert len(read_json(run / "reward_model" / "history.json")) == 4
    assert figures["ppo"]["first_ratio_error"] < 1e-4
    assert set(figures["ppo"]["invariants"].values()) == {"held"}


def test_gpt2_is_found_by_name_in_the_hub_s_cache_without_a_network(gpt2, tmp_path):
    repository = tmp_path / "home" / "hub" / "models--gpt2"
    snapshot = Path(shutil.copytree(gpt2, repository / "snapshots" / COMMIT))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    done = subprocess.run(
        [sys.executable, "-c", "from rlhf_lab import backbones; print(backbones.resolve('gpt2'))"],
        cwd=CHECKOUT, capture_output=True, text=True,
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == str(snapshot), done.stderr
    assert backbones.load_causal_lm(snapshot).config.n_positions == N_POSITIONS


def test_gpt2_without_hub_and_cache_is_one_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert main(["run", "--backbone", "gpt2", "--run", str(tmp_path / "run")]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "gpt2 is not on this machine" in sentence and "--backbone tiny" in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("missing", ["tokenizer.json", "vocab.json"])
def test_either_form_of_the_tokenizer_is_enough(gpt2, tmp_path, missing):
    names = [missing, "merges.txt"] if missing == "vocab.json" else [missing]
    folder = shutil.copytree(gpt2, tmp_path / "copy", ignore=shutil.ignore_patterns(*names))
    whole, tokenizer = backbones.load_tokenizer(gpt2), backbones.load_tokenizer(folder)
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == len(tokenizer) - 1
    assert tokenizer("The soup was warm").input_ids == whole("The soup was warm").input_ids != []


def test_weights_of_the_old_kind_are_loaded(gpt2, tmp_path):
    folder = shutil.copytree(gpt2, tmp_path / "old", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(gpt2 / "model.safetensors"), folder / "pytorch_model.bin")
    old, new = (backbones.load_causal_lm(path).state_dict() for path in (folder, gpt2))
    assert all(torch.equal(old[name], new[name]) for name in new)


class Trap:
    """An object that would run a command where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_code_in_weights_of_the_old_kind_is_refused_in_one_sentence(gpt2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(gpt2, tmp_path / "old", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save({"wte.weight": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(LabError, match="no language model can be loaded from") as refused:
        backbones.load_causal_lm(folder)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "sprung").exists()
