"""Stage 1, supervised fine-tuning (SFT): teach a language model to answer, from demonstrations.

It is the first stage of Ouyang et al. 2022, "Training language models to follow instructions with human
feedback", section 3.5. The loss is the language-modelling loss of the response alone: the prompt is read, not
imitated. That is the convention of this course, and of most code for instruction tuning.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset

IGNORE = -100  # PyTorch's label for "no loss here"


def build_sft_example(
    prompt_ids: list[int],
    response_ids: list[int],
    eos_id: int,
    pad_id: int,
    max_len: int,
) -> dict[str, list[int]]:
    """Lay out one demonstration as `prompt + response + [eos] + padding` (exercise 1.1).

    Args:
        prompt_ids, response_ids: token ids without special tokens.
        eos_id: is put behind the response, whatever that ends in; it is a token to learn, even where `pad_id` is the
            same number.
        pad_id: fills the row on the right up to `max_len` tokens.
        max_len: length of the row. What is too long is cut on the right; a cut response gets no EOS,
            or the model would learn to stop in mid-sentence.

    Returns:
        Three lists of length `max_len`:
        `input_ids`; `labels`, a copy with -100 on prompt and padding; `attention_mask`, 1 on real tokens
        (EOS included) and 0 on padding, counted from the lengths and never read off the ids.

    Raises:
        ValueError: when the prompt alone fills `max_len`, so that no response token is left to learn from. Its text
            names both lengths.
    """
    ### BEGIN SOLUTION
    if len(prompt_ids) >= max_len:
        raise ValueError(
            f"the prompt has {len(prompt_ids)} tokens and max_len is {max_len}: no response token would be left"
        )
    input_ids = (prompt_ids + response_ids + [eos_id])[:max_len]
    labels = ([IGNORE] * len(prompt_ids) + response_ids + [eos_id])[:max_len]
    n_real, n_pad = len(input_ids), max_len - len(input_ids)
    return {
        "input_ids": input_ids + [pad_id] * n_pad,
        "labels": labels + [IGNORE] * n_pad,
        "attention_mask": [1] * n_real + [0] * n_pad,
    }
    ### END SOLUTION


class SFTDataset(Dataset):
    """Demonstrations as rows of equal length, ready for a `DataLoader` (exercise 1.2).

    Item `i` is a dictionary of three `LongTensor [max_len]`: `input_ids`, `labels`, `attention_mask`.

    Args:
        data: rows with `"prompt"` and `"response"` (a list of dictionaries or a `datasets.Dataset`).
        tokenizer: a Hugging Face tokenizer. Where it has no pad token, it gets `eos_token` as one.
        max_len: length of every row, in tokens.

    Prompt and response are tokenised apart, without special tokens: then the border between them is exact,
    whatever the tokenizer would merge across it (a prompt that ends in a space, for instance). Every row of the data
    is an item, in the same order; an index behind the last one is an `IndexError`, which ends `for item in dataset`.
    """

    def __init__(self, data: Sequence[dict], tokenizer, max_len: int = 128):
        ### BEGIN SOLUTION
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.examples = [
            build_sft_example(
                tokenizer(row["prompt"], add_special_tokens=False).input_ids,
                tokenizer(row["response"], add_special_tokens=False).input_ids,
                tokenizer.eos_token_id,
                tokenizer.pad_token_id,
                max_len,
            )
            for row in data
        ]
        ### END SOLUTION

    def __len__(self) -> int:
        ### BEGIN SOLUTION
        return len(self.examples)
        ### END SOLUTION

    def __getitem__(self, index: int) -> dict[str, Int[Tensor, "max_len"]]:
        ### BEGIN SOLUTION
        return {name: torch.tensor(ids, dtype=torch.long) for name, ids in self.examples[index].items()}
        ### END SOLUTION


def masked_ce_loss(
    logits: Float[Tensor, "batch seq vocab"],
    labels: Int[Tensor, "batch seq"],
) -> Float[Tensor, ""]:
    """Mean next-token cross-entropy, in nats, over the labels that are not -100 (exercise 1.3).

    `logits[:, t]` predicts token `t + 1`, so logits and labels are shifted against each other by one.
    A batch in which every label is -100 has loss 0, not NaN; a training loop can call `backward()` on it.
    """
    ### BEGIN SOLUTION
    predictions, targets = logits[:, :-1], labels[:, 1:]
    total = F.cross_entropy(
        predictions.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    return total / (targets != IGNORE).sum().clamp(min=1)
    ### END SOLUTION


def train_sft(
    model: torch.nn.Module,
    dataloader: Iterable[dict[str, Tensor]],
    n_epochs: int = 3,
    lr: float = 5e-5,
    device: str | torch.device = "cpu",
) -> list[float]:
    """Fine-tune a causal language model on batches of `SFTDataset` items (exercise 1.4).

    AdamW with a constant learning rate, gradient norm clipped to 1.0, the loss of exercise 1.3. The data loader is gone
    through anew in each epoch. The model is trained in place and in training mode; it is called with `input_ids` and
    `attention_mask` by name.

    Returns:
        The loss of each step, in nats per response token: `n_epochs * len(dataloader)` numbers.
    """
    ### BEGIN SOLUTION
    model.to(device)
    model.train()
    optim = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for _ in range(n_epochs):
        for batch in dataloader:
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            loss = masked_ce_loss(logits, batch["labels"])
            optim.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            losses.append(loss.item())
    model.eval()
    return losses
    ### END SOLUTION
