"""Stage 5, direct preference optimisation (DPO): learn from the comparisons themselves, without a reward model.

For a reward and a price `beta` on KL, the best policy is known: it is the reference, tilted by `exp(reward / beta)`.
Solved for the reward, that says `reward = beta * log(policy / reference)`, up to a constant of the prompt that
cancels in every comparison. So the policy is its own reward model, and the Bradley-Terry loss of stage 2 trains it
(Rafailov et al. 2023, "Direct preference optimization", section 4).

Two models: the policy, which learns, and the reference, a frozen copy of it as SFT left it. Nothing is sampled.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import Dataset

from .ppo import gather_logprobs
from .reward_model import position_ids_from_mask
from .sft import IGNORE, build_sft_example


class PreferenceDataset(Dataset):
    """Preference pairs with labels, so that a response can be told from its prompt (given, not an exercise).

    Item `i` is a dictionary of six `LongTensor [max_len]`: `chosen_ids`, `chosen_mask`, `chosen_labels`, and the same
    for `rejected`. Each text is laid out as in exercise 1.1. As in exercise 2.3, pairs that are the same tokens once
    they are cut to `max_len` are dropped, and counted in `dropped`.
    """

    def __init__(self, data: Sequence[dict[str, str]], tokenizer, max_len: int = 128):
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
                    "chosen_labels": chosen["labels"],
                    "rejected_ids": rejected["input_ids"],
                    "rejected_mask": rejected["attention_mask"],
                    "rejected_labels": rejected["labels"],
                }
            )

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Int[Tensor, "max_len"]]:
        return {name: torch.tensor(ids, dtype=torch.long) for name, ids in self.pairs[index].items()}


def sequence_logprobs(
    model: nn.Module,
    input_ids: Int[Tensor, "batch seq"],
    attention_mask: Int[Tensor, "batch seq"],
    labels: Int[Tensor, "batch seq"],
) -> Float[Tensor, "batch"]:
    """Log-probability of each whole response given its prompt, in nats (exercise 5.1).

    The sum, not the mean, over the tokens whose label is not -100: the response and its EOS. Each of them is predicted
    by all tokens before it. The labels are those of exercise 1.1: not shifted, and equal to the ids where they are not
    -100. The first token of a row is predicted by nothing and does not count, whatever its label. A row without a
    label has 0.

    The number of a text depends neither on the side nor on the length of the padding nor on the other rows of the
    batch: positions are counted from the attention mask (`position_ids_from_mask` in `reward_model.py`). Gradient
    reaches the model, and the arguments are unchanged.

    Args:
        model: a causal language model of transformers: `model(input_ids=..., ...).logits` is `[batch, seq, vocab]`.
    """
    raise NotImplementedError(
        "exercise 5.1: write sequence_logprobs in rlhf_exercises/dpo.py (notebooks/05_dpo.ipynb, section 5.1)"
    )


def dpo_loss(
    policy_chosen: Float[Tensor, "batch"],
    policy_rejected: Float[Tensor, "batch"],
    ref_chosen: Float[Tensor, "batch"],
    ref_rejected: Float[Tensor, "batch"],
    beta: float = 0.1,
) -> tuple[Float[Tensor, ""], Float[Tensor, "batch"], Float[Tensor, "batch"]]:
    """Bradley-Terry loss on the policy's own, implicit reward (exercise 5.2).

    Rafailov et al. 2023, eq. 7. The implicit reward of a response is
    `beta * (log-probability under the policy - log-probability under the reference)`; the loss is the batch mean of
    -log sigmoid(reward of the chosen - reward of the rejected), finite for differences of any size. It is ln 2 where
    policy and reference agree. Gradient reaches the policy's two arguments only; all arguments are unchanged.

    Args:
        policy_chosen, policy_rejected, ref_chosen, ref_rejected: what `sequence_logprobs` returns for the chosen and
            the rejected responses, under the policy and under the reference.

    Returns:
        `loss`, and the implicit rewards of chosen and rejected `[batch]`, without gradient.
    """
    raise NotImplementedError(
        "exercise 5.2: write dpo_loss in rlhf_exercises/dpo.py (notebooks/05_dpo.ipynb, section 5.2)"
    )


def train_dpo(
    policy: nn.Module,
    ref_policy: nn.Module,
    dataloader: Iterable[dict[str, Tensor]],
    n_epochs: int = 1,
    lr: float = 1e-5,
    device: str | torch.device = "cpu",
    beta: float = 0.1,
) -> list[dict[str, float]]:
    """Train a policy on batches of `PreferenceDataset` items (exercise 5.3).

    AdamW on all parameters of the policy, and on nothing else, with a constant learning rate; gradient norm clipped to
    1.0. The data loader is gone through anew in each epoch. The policy is trained in place; the reference is only read
    and never changed. Dropout is off in both (eval mode), so that the first loss is ln 2.

    Args:
        policy, ref_policy: causal language models; the reference is a frozen copy of the policy as SFT left it.

    Returns:
        For each of the `n_epochs * len(dataloader)` steps a dictionary of floats, all from before that step: `loss`;
        `accuracy`, the share of pairs whose chosen response has strictly the higher implicit reward; `margin`, the
        mean of (reward of the chosen - reward of the rejected); `chosen_logprob` and `rejected_logprob`, the batch
        means of the policy's sequence log-probabilities.
    """
    raise NotImplementedError(
        "exercise 5.3: write train_dpo in rlhf_exercises/dpo.py (notebooks/05_dpo.ipynb, section 5.3)"
    )
