"""Stage 2, the reward model: turn comparisons into a score.

A person saw two responses to a prompt and preferred one. The Bradley-Terry model says how likely that was given a
score for each, and the reward model is the score that makes the observed preferences likely
(Stiennon et al. 2020, "Learning to summarize from human feedback", section 3.4).
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import AutoModel

from .sft import build_sft_example


def last_token_index(attention_mask: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch"]:
    """Index of the last 1 in each row of a mask, whichever side the padding is on (exercise 2.1).

    `mask.sum(-1) - 1` is that index only where the padding is on the right.

    Raises:
        ValueError: when a row has no valid token.
    """
    ### BEGIN SOLUTION
    if not (attention_mask != 0).any(dim=-1).all():
        raise ValueError("a row of the attention mask has no valid token")
    positions = torch.arange(attention_mask.shape[-1], device=attention_mask.device)
    return (positions * (attention_mask != 0)).argmax(dim=-1)
    ### END SOLUTION


def position_ids_from_mask(attention_mask: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
    """Number the real tokens of each row 0, 1, 2, ... and the left padding 0 (given, not an exercise).

    GPT-2 learns an embedding for each position and does not look at the mask to number them: without this, a row
    that is padded on the left is read as if it started in the middle of a text.
    """
    return (attention_mask.long().cumsum(dim=-1) - 1).clamp(min=0)


class RewardModel(nn.Module):
    """A backbone without its language-modelling head, and one number read at the last token (exercise 2.2).

    Attributes:
        backbone: `AutoModel` of `base_model_name` (a Hugging Face id or a local folder).
        v_head: `Linear(hidden, 1)` without bias: a constant cancels in every comparison.
    """

    def __init__(self, base_model_name: str = "gpt2"):
        super().__init__()
        ### BEGIN SOLUTION
        self.backbone = AutoModel.from_pretrained(base_model_name, dtype=torch.float32)
        self.v_head = nn.Linear(self.backbone.config.hidden_size, 1, bias=False)
        ### END SOLUTION

    def forward(
        self,
        input_ids: Int[Tensor, "batch seq"],
        attention_mask: Int[Tensor, "batch seq"],
    ) -> Float[Tensor, "batch"]:
        """Score of each text, read at its last valid token: the only one that has seen the whole text.

        The score depends neither on the side or length of the padding nor on the other rows of the batch.
        """
        ### BEGIN SOLUTION
        hidden = self.backbone(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids_from_mask(attention_mask),
            use_cache=False,
        ).last_hidden_state
        rows = torch.arange(len(input_ids), device=input_ids.device)
        last_hidden = hidden[rows, last_token_index(attention_mask)]
        return self.v_head(last_hidden).squeeze(-1)
        ### END SOLUTION


class RMDataset(Dataset):
    """Preference pairs as rows of equal length (exercise 2.3).

    Item `i` is a dictionary of four `LongTensor [max_len]`: `chosen_ids`, `chosen_mask`, `rejected_ids`,
    `rejected_mask`; each text is laid out as in exercise 1.1, EOS included. An index behind the last pair is an
    `IndexError`, which ends `for item in dataset`.

    Args:
        data: rows with `"prompt"`, `"chosen"` and `"rejected"`.
        tokenizer: as for `SFTDataset`.
        max_len: length of every row, in tokens.

    Attributes:
        dropped: number of pairs that are left out, because both texts are the same tokens once they are cut to
            `max_len`: such a pair says nothing, and its loss is ln 2 for ever. A pair whose prompt alone fills the row
            is one of them: it is dropped too, without an error.
    """

    def __init__(self, data: Sequence[dict], tokenizer, max_len: int = 128):
        ### BEGIN SOLUTION
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        eos_id, pad_id = tokenizer.eos_token_id, tokenizer.pad_token_id
        self.pairs = []
        self.dropped = 0
        for row in data:
            prompt_ids, chosen_ids, rejected_ids = (
                tokenizer(row[column], add_special_tokens=False).input_ids
                for column in ("prompt", "chosen", "rejected")
            )
            chosen_text, rejected_text = (
                prompt_ids + chosen_ids + [eos_id],
                prompt_ids + rejected_ids + [eos_id],
            )
            if chosen_text[:max_len] == rejected_text[:max_len]:
                self.dropped += 1
                continue
            chosen = build_sft_example(prompt_ids, chosen_ids, eos_id, pad_id, max_len)
            rejected = build_sft_example(prompt_ids, rejected_ids, eos_id, pad_id, max_len)
            self.pairs.append(
                {
                    "chosen_ids": chosen["input_ids"],
                    "chosen_mask": chosen["attention_mask"],
                    "rejected_ids": rejected["input_ids"],
                    "rejected_mask": rejected["attention_mask"],
                }
            )
        ### END SOLUTION

    def __len__(self) -> int:
        ### BEGIN SOLUTION
        return len(self.pairs)
        ### END SOLUTION

    def __getitem__(self, index: int) -> dict[str, Int[Tensor, "max_len"]]:
        ### BEGIN SOLUTION
        return {name: torch.tensor(ids, dtype=torch.long) for name, ids in self.pairs[index].items()}
        ### END SOLUTION


def rm_loss(
    r_chosen: Float[Tensor, "batch"],
    r_rejected: Float[Tensor, "batch"],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Bradley-Terry loss and accuracy of a batch of comparisons (exercise 2.4).

    The loss is the mean of -log sigmoid(r_chosen - r_rejected) (Stiennon et al. 2020, section 3.4), finite for
    differences of any size. The accuracy is the share of pairs in which the chosen response scores strictly
    higher; a tie is not correct.
    """
    ### BEGIN SOLUTION
    loss = -F.logsigmoid(r_chosen - r_rejected).mean()
    accuracy = (r_chosen > r_rejected).float().mean()
    return loss, accuracy
    ### END SOLUTION


def train_rm(
    model: nn.Module,
    dataloader: Iterable[dict[str, Tensor]],
    n_epochs: int = 2,
    lr: float = 1e-5,
    device: str | torch.device = "cpu",
) -> list[dict[str, float]]:
    """Train a reward model on batches of `RMDataset` items (exercise 2.5).

    AdamW on backbone and head together with a constant learning rate, gradient norm clipped to 1.0. The data loader is
    gone through anew in each epoch. The model is trained in place and in training mode.

    Returns:
        `{"loss", "accuracy"}` of each step: `n_epochs * len(dataloader)` dictionaries of floats.
    """
    ### BEGIN SOLUTION
    model.to(device)
    model.train()
    optim = torch.optim.AdamW(model.parameters(), lr=lr)
    history = []
    for _ in range(n_epochs):
        for batch in dataloader:
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            # chosen and rejected are one batch: one pass through the backbone instead of two
            scores = model(
                torch.cat([batch["chosen_ids"], batch["rejected_ids"]]),
                torch.cat([batch["chosen_mask"], batch["rejected_mask"]]),
            )
            r_chosen, r_rejected = scores.chunk(2)
            loss, accuracy = rm_loss(r_chosen, r_rejected)
            optim.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            history.append({"loss": loss.item(), "accuracy": accuracy.item()})
    model.eval()
    return history
    ### END SOLUTION


# --- when people disagree (given, not an exercise) ------------------------------------------------


class RatedPairs(Dataset):
    """Preference pairs of which the share of raters is known that prefer the chosen one (given, not an exercise).

    Item `i` is an item of `RMDataset` with `share`, a float tensor without dimensions, between 0 and 1.

    Args:
        data: rows with `"prompt"`, `"chosen"`, `"rejected"` and `"share"`.

    Attributes:
        dropped: as in `RMDataset`.
    """

    def __init__(self, data: Sequence[dict], tokenizer, max_len: int = 128):
        # row by row, so that each pair that is kept stays beside its share
        kept = [row for row in data if len(RMDataset([row], tokenizer, max_len)) == 1]
        self.pairs = RMDataset(kept, tokenizer, max_len)
        self.shares = torch.tensor([row["share"] for row in kept], dtype=torch.float32)
        self.dropped = len(data) - len(kept)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {**self.pairs[index], "share": self.shares[index]}


def rm_loss_on_shares(
    r_chosen: Float[Tensor, "batch"],
    r_rejected: Float[Tensor, "batch"],
    share: Float[Tensor, "batch"],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Bradley-Terry loss and accuracy when raters disagree (given, not an exercise).

    `rm_loss` takes every comparison for certain: it is smallest where the chosen response scores infinitely higher.
    Here the target is the `share` of raters who prefer the chosen response, and the loss is the cross-entropy between
    this share and the probability sigmoid(r_chosen - r_rejected). It is smallest where the difference is the log-odds
    of the share: 0 where the raters are split. With a share of 1 it is `rm_loss`.
    """
    loss = F.binary_cross_entropy_with_logits(r_chosen - r_rejected, share)
    accuracy = (r_chosen > r_rejected).float().mean()
    return loss, accuracy


def train_rm_on_shares(
    model: nn.Module,
    dataloader: Iterable[dict[str, Tensor]],
    n_epochs: int = 2,
    lr: float = 1e-5,
    device: str | torch.device = "cpu",
) -> list[dict[str, float]]:
    """Train a reward model on batches of `RatedPairs` items (given, not an exercise): `train_rm` with shares.

    Returns:
        `{"loss", "accuracy"}` of each step. The loss does not fall to 0: what the raters disagree about is left.
    """
    model.to(device)
    model.train()
    optim = torch.optim.AdamW(model.parameters(), lr=lr)
    history = []
    for _ in range(n_epochs):
        for batch in dataloader:
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            scores = model(
                torch.cat([batch["chosen_ids"], batch["rejected_ids"]]),
                torch.cat([batch["chosen_mask"], batch["rejected_mask"]]),
            )
            r_chosen, r_rejected = scores.chunk(2)
            loss, accuracy = rm_loss_on_shares(r_chosen, r_rejected, batch["share"])
            optim.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            history.append({"loss": loss.item(), "accuracy": accuracy.item()})
    model.eval()
    return history
