"""Stage 2: the reward model."""

from pathlib import Path

import torch
from torch.utils.data import DataLoader

from ..data import length_only_accuracy
from ..devices import reads_in_float32
from ..errors import LabError
from ..lab import Lab
from ..passes import in_passes
from ..returned import checked_rm_history
from ..rewards import ModelReward
from ..runs import read_json, read_tensors, write_json, write_tensors
from ..watch import StageWatch, WatchedLoader, shuffled


def train(lab: Lab, folder: Path) -> dict:
    """Train a reward model from the backbone; leaves `model.safetensors`, history and the held-out scores.

    Where the shares of raters are known, they are the target.
    """
    settings = lab.settings
    rated = "share" in lab.data.pairs_train.column_names
    train_rm = lab.code.reward_model.train_rm_on_shares if rated else lab.code.reward_model.train_rm
    model = reads_in_float32(lab.code.reward_model.RewardModel(str(lab.base)).to(lab.compute.device))
    dataset = _pairs(lab, lab.data.pairs_train, "RatedPairs" if rated else "RMDataset")
    loader = shuffled(dataset, settings.rm_batch, settings.seed)
    with (
        StageWatch("reward model", settings.rm_epochs * len(loader), last_good=str(lab.sft_model)) as watch,
        in_passes(lab.profile, model),
    ):
        watch.module(model, "scores")
        returned = train_rm(
            model,
            WatchedLoader(loader, watch),
            n_epochs=settings.rm_epochs,
            lr=settings.rm_lr,
            device=lab.compute.device,
        )
        history = checked_rm_history(returned, settings.rm_epochs * len(loader))
        watch.losses([info["loss"] for info in history])
        watch.weights(model)

    model.eval()
    on_train = torch.cat(_scores(lab, model, lab.data.pairs_train))
    chosen, rejected = _scores(lab, model, lab.data.pairs_heldout)
    write_json(folder / "history.json", history)
    write_json(folder / "heldout_scores.json", {"chosen": chosen.tolist(), "rejected": rejected.tolist()})
    write_tensors(folder / "model.safetensors", model.state_dict())
    right = chosen > rejected
    return {
        "heldout_accuracy": right.float().mean().item(),
        "heldout_accuracy_by": _accuracy_by_kind(lab.data.pairs_heldout, right),
        "length_only_accuracy": length_only_accuracy(lab.data.pairs_heldout),
        "n_heldout": len(right),
        "dropped": dataset.dropped,
        "dropped_heldout": len(lab.data.pairs_heldout) - len(right),
        "score_mean": on_train.mean().item(),
        "score_std": on_train.std().item(),
    }


def load_reward(lab: Lab) -> ModelReward:
    """The reward function that this stage left behind."""
    folder = lab.folder / "reward_model"
    figures = read_json(folder / "figures.json")
    model = reads_in_float32(lab.code.reward_model.RewardModel(str(lab.base)))
    model.load_state_dict(read_tensors(folder / "model.safetensors"))
    return ModelReward(model.to(lab.compute.device), figures["score_mean"], figures["score_std"])


def _pairs(lab: Lab, pairs, kind: str = "RMDataset"):
    """The taught data set of some pairs, of which at least one has to be left."""
    dataset = getattr(lab.code.reward_model, kind)(pairs, lab.tokenizer, lab.settings.max_len)
    if len(dataset) == 0:
        raise LabError(
            f"{lab.data.name}: all {len(pairs)} pairs are the same on both sides once they are cut to "
            f"--max-len {lab.settings.max_len}: give a larger one"
        )
    return dataset


@torch.no_grad()
def _scores(lab: Lab, model, pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of the chosen and of the rejected responses."""
    dataset = _pairs(lab, pairs)
    chosen, rejected = [], []
    for batch in DataLoader(dataset, batch_size=64):
        batch = {name: tensor.to(lab.compute.device) for name, tensor in batch.items()}
        chosen.append(model(batch["chosen_ids"], batch["chosen_mask"]).float().cpu())
        rejected.append(model(batch["rejected_ids"], batch["rejected_mask"]).float().cpu())
    return torch.cat(chosen), torch.cat(rejected)


def _accuracy_by_kind(pairs, right: torch.Tensor) -> dict[str, dict[str, float]]:
    """Accuracy for each kind of pair, where the data says of what kind a pair is and none was dropped."""
    table = {}
    for column in ("held_out", "phenomenon", "margin", "lang"):
        if column in pairs.column_names and len(pairs) == len(right):
            kinds = list(pairs[column])
            table[column] = {
                kind: right[[row for row, k in enumerate(kinds) if k == kind]].float().mean().item()
                for kind in sorted(set(kinds))
            }
    return table
