"""Train the checkpoints that the notebooks start from, with the solutions and the settings of the demo."""

import json
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

from rlhf_lab.backbones import load_causal_lm
from rlhf_lab.checkpoints import REWARD, SFT
from rlhf_lab.lab import open_lab
from rlhf_lab.runs import read_tensors, replace_folder
from rlhf_lab.settings import Settings
from rlhf_lab.stages import reward_model, sft

STORED = torch.float16  # half the size; the notebooks compute in float32


def build_checkpoints() -> None:
    """Write `rlhf_lab/checkpoints/sft` and `rlhf_lab/checkpoints/reward_model`."""
    with tempfile.TemporaryDirectory() as place:
        lab = open_lab(Settings(device="cpu"), Path(place))
        torch.manual_seed(lab.settings.seed)
        figures = sft.train(lab, lab.folder / "sft")
        with replace_folder(SFT) as folder:
            load_causal_lm(lab.sft_model).to(STORED).save_pretrained(folder)
            lab.tokenizer.save_pretrained(folder)
            _write_provenance(folder, {"heldout_loss": figures["heldout_loss"][-1][1]})

        torch.manual_seed(lab.settings.seed)
        figures = reward_model.train(lab, lab.folder / "reward_model")
        weights = read_tensors(lab.folder / "reward_model" / "model.safetensors")
        model = AutoModelForSequenceClassification.from_pretrained(
            lab.base, num_labels=1, dtype=torch.float32
        )
        model.base_model.load_state_dict(_under(weights, "backbone."))
        model.score.load_state_dict(_under(weights, "v_head."))
        with replace_folder(REWARD) as folder:
            model.to(STORED).save_pretrained(folder)
            scale = {"mean": figures["score_mean"], "std": figures["score_std"]}
            (folder / "scale.json").write_text(json.dumps(scale) + "\n", encoding="utf-8")
            _write_provenance(folder, {"heldout_accuracy": figures["heldout_accuracy"]})


def _under(weights: dict, prefix: str) -> dict:
    """The weights of one submodule, named as it names them."""
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}


def _write_provenance(folder: Path, measured: dict) -> None:
    """How the checkpoint was made, beside it."""
    provenance = {"made_by": "python -m authoring checkpoints", "seed": Settings.seed, **measured}
    (folder / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")
