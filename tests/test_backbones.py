"""Every backbone name becomes a local folder, or one sentence that says what to do."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from rlhf_lab import backbones
from rlhf_lab.devices import choose_compute
from rlhf_lab.errors import LabError


def test_a_local_folder_is_itself(gpt2_folder):
    assert backbones.resolve(str(gpt2_folder)) == gpt2_folder
    assert backbones.context_length(gpt2_folder) == 64
    assert backbones.load_causal_lm(gpt2_folder).dtype == torch.float32


def test_weights_in_half_precision_are_trained_in_float32(gpt2_folder, tmp_path):
    backbones.load_causal_lm(gpt2_folder).bfloat16().save_pretrained(tmp_path)
    assert backbones.load_causal_lm(tmp_path).dtype == torch.float32


def test_a_tokenizer_without_a_pad_token_gets_one(gpt2_folder):
    assert AutoTokenizer.from_pretrained(gpt2_folder).pad_token is None
    tokenizer = backbones.load_tokenizer(gpt2_folder)
    assert tokenizer.pad_token == tokenizer.eos_token


def test_a_tokenizer_without_eos_is_refused(gpt2_folder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(gpt2_folder)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(LabError, match="has no EOS token"):
        backbones.load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["./nope", "/no/such/folder", "a/b/c", "..\\models\\x"])
def test_a_missing_folder_is_not_asked_of_the_hub(name):
    with pytest.raises(LabError, match="there is no model folder"):
        backbones.resolve(name)


def test_no_network_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        LabError, match="gpt2 is not on this machine and the hub cannot be reached.*--backbone tiny"
    ):
        backbones.resolve("gpt2")


def test_a_name_that_no_model_can_have():
    with pytest.raises(LabError, match="neither a folder nor the name of a model"):
        backbones.resolve("a b!c")


def test_an_empty_folder_is_not_a_model(tmp_path):
    with pytest.raises(LabError, match="holds no config.json"):
        backbones.load_causal_lm(tmp_path)
    with pytest.raises(LabError, match="no tokenizer can be loaded"):
        backbones.load_tokenizer(tmp_path)


def test_a_damaged_model_is_one_sentence(gpt2_folder, tmp_path):
    config = json.loads((gpt2_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(LabError, match="no language model can be loaded from"):
        backbones.load_causal_lm(tmp_path)


def test_weights_that_are_missing_are_named_and_not_drawn_at_random(gpt2_folder, tmp_path):
    shutil.copytree(gpt2_folder, tmp_path / "model")
    weights = load_file(gpt2_folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "h.0.mlp" not in name}
    save_file(kept, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        LabError, match=r"lack transformer\.h\.0\.mlp\S+ \(4 in all\): it is another model's file"
    ):
        backbones.load_causal_lm(tmp_path / "model")


def test_a_model_that_knows_fewer_tokens_than_its_tokenizer_is_refused(gpt2_folder):
    with pytest.raises(LabError, match=r"knows \d+ tokens, and its tokenizer has 99999"):
        backbones.context_length(gpt2_folder, vocabulary=99999)


def test_smollm2_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("RLHF_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(backbones, "SMOLLM2_PACKAGE", "no_such_package")
    with pytest.raises(LabError, match="python -m rlhf_lab setup --smollm2"):
        backbones.resolve("smollm2")


def test_smollm2_loads_where_it_is_installed():
    try:
        folder = backbones.resolve("smollm2")
    except LabError as missing:
        pytest.skip(str(missing))
    model, tokenizer = backbones.load_causal_lm(folder), backbones.load_tokenizer(folder)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        best = model(input_ids=ids).logits[0, -1].argmax()
    assert tokenizer.decode(best) == " Paris"


def test_the_device_is_chosen_and_refused_in_words():
    compute = choose_compute("cpu")
    assert compute.dtype == torch.float32 and "cpu (CPU" in str(compute)
    assert choose_compute("cpu", "bfloat16").dtype == torch.bfloat16
    with pytest.raises(LabError, match="dtype 'float8' is not supported"):
        choose_compute("cpu", "float8")
    for device in ("nonsense", "meta"):
        with pytest.raises(LabError, match=f"{device}"):
            choose_compute(device)


def test_no_gpu_is_one_sentence():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(LabError, match="torch sees no GPU here: use --device cpu"):
        choose_compute("cuda")


def test_a_gpu_is_used_in_bfloat16_when_there_is_one():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    compute = choose_compute()
    assert compute.device.type == "cuda" and compute.dtype == torch.bfloat16
    with compute.autocast():
        assert (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).dtype == torch.bfloat16
