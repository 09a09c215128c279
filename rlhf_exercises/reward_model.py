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
    raise NotImplementedError(
        "exercise 2.1: write last_token_index in rlhf_exercises/reward_model.py (notebooks/02_reward_model.ipynb, section 2.1)"
    )


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
        raise NotImplementedError(
            "exercise 2.2: write RewardModel in rlhf_exercises/reward_model.py (notebooks/02_reward_model.ipynb, section 2.2)"
        )

    def forward(
        self,
        input_ids: Int[Tensor, "batch seq"],
        attention_mask: Int[Tensor, "batch seq"],
    ) -> Float[Tensor, "batch"]:
        """Score of each text, read at its last valid token: the only one that has seen the whole text.

        The score depends neither on the side or length of the padding nor on the other rows of the batch.
        """
        raise NotImplementedError(
            "exercise 2.2: write RewardModel.forward in rlhf_exercises/reward_model.py (notebooks/02_reward_model.ipynb, section 2.2)"
        )


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
        raise NotImplementedError(
            "exercise 2.3: write RMDataset in rlhf_exercises/reward_model.py (notebooks/02_reward_model.ipynb, section 2.3)"
        )

    def __len__(self) -> int:
        raise NotImplementedError(
            "exercise 2.3: write RMDataset.__len__ in rlhf_exercises/reward_model.py (notebooks/02_reward_model.ipynb, section 2.3)"
        )

    def __getitem__(self, index: int) -> dict[str, Int[Tensor, "max_len"]]:
        raise NotImplementedError(
            "exercise 2.3: write RMDataset.__getitem__ in rlhf_exercises/reward_model.py (notebooks/02_reward_model.ipynb, section 2.3)"
        )


def rm_loss(
    r_chosen: Float[Tensor, "batch"],
    r_rejected: Float[Tensor, "batch"],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Bradley-Terry loss and accuracy of a batch of comparisons (exercise 2.4).

    The loss is the mean of -log sigmoid(r_chosen - r_rejected) (Stiennon et al. 2020, section 3.4), finite for
    differences of any size. The accuracy is the share of pairs in which the chosen response scores strictly
    higher; a tie is not correct.
    """
    raise NotImplementedError(
        "exercise 2.4: write rm_loss in rlhf_exercises/reward_model.py (notebooks/02_reward_model.ipynb, section 2.4)"
    )


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
    raise NotImplementedError(
        "exercise 2.5: write train_rm in rlhf_exercises/reward_model.py (notebooks/02_reward_model.ipynb, section 2.5)"
    )


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
