"""Stage 1: supervised fine-tuning."""

from pathlib import Path

import torch
from torch.utils.data import DataLoader

from .. import backbones
from ..devices import reads_in_float32
from ..lab import Lab
from ..memory import SAMPLED_ROWS
from ..passes import in_passes
from ..returned import checked_losses
from ..runs import replace_folder, write_json
from ..sampling import judged_samples
from ..watch import StageWatch, WatchedLoader, shuffled


def train(lab: Lab, folder: Path) -> dict:
    """Fine-tune the backbone; leaves `model/`, a folder that `from_pretrained` loads, and `history.json`."""
    settings = lab.settings
    model = reads_in_float32(backbones.load_causal_lm(lab.base).to(lab.compute.device))
    heldout = lab.code.sft.SFTDataset(lab.data.sft_heldout, lab.tokenizer, settings.max_len)
    losses = []
    heldout_loss = [[0, _mean_loss(lab, model, heldout)]]  # [step, loss]
    if settings.sft_epochs > 0:
        dataset = lab.code.sft.SFTDataset(lab.data.sft_train, lab.tokenizer, settings.max_len)
        loader = shuffled(dataset, settings.sft_batch, settings.seed)

        def between_epochs(epoch: int) -> None:
            heldout_loss.append([epoch * len(loader), _mean_loss(lab, model, heldout)])

        with (
            StageWatch(
                "sft", settings.sft_epochs * len(loader), last_good=f"the backbone in {lab.base}"
            ) as watch,
            in_passes(lab.profile, model),
        ):
            watch.module(model, "logits")
            returned = lab.code.sft.train_sft(
                model,
                WatchedLoader(loader, watch, between_epochs),
                n_epochs=settings.sft_epochs,
                lr=settings.sft_lr,
                device=lab.compute.device,
            )
            losses = checked_losses(returned, settings.sft_epochs * len(loader))
            watch.losses(losses)
            watch.weights(model)
        heldout_loss.append([len(losses), _mean_loss(lab, model, heldout)])

    write_json(folder / "history.json", {"loss": losses, "heldout_loss": heldout_loss})
    with replace_folder(folder / "model") as new_folder:
        model.save_pretrained(new_folder)
        lab.tokenizer.save_pretrained(new_folder)
    samples = judged_samples(lab, model)
    return {"heldout_loss": heldout_loss, "eos_share": samples["eos_share"], "judge": samples["judge"]}


@torch.no_grad()
def _mean_loss(lab: Lab, model, dataset) -> float:
    """Mean loss over the response tokens in nats, by the library's own `labels=` loss."""
    was_training = model.training
    model.eval()
    total, n_tokens = 0.0, 0
    rows = SAMPLED_ROWS if lab.profile is None else min(lab.profile.rows, SAMPLED_ROWS)
    for batch in DataLoader(dataset, batch_size=rows):
        batch = {name: tensor.to(lab.compute.device) for name, tensor in batch.items()}
        n_labels = int((batch["labels"][:, 1:] != -100).sum())
        total += model(**batch).loss.item() * n_labels
        n_tokens += n_labels
    model.train(was_training)
    return total / max(n_tokens, 1)
