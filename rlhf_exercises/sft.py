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
    raise NotImplementedError(
        "exercise 1.1: write build_sft_example in rlhf_exercises/sft.py (notebooks/01_sft.ipynb, section 1.1)"
    )


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
        raise NotImplementedError(
            "exercise 1.2: write SFTDataset in rlhf_exercises/sft.py (notebooks/01_sft.ipynb, section 1.2)"
        )

    def __len__(self) -> int:
        raise NotImplementedError(
            "exercise 1.2: write SFTDataset.__len__ in rlhf_exercises/sft.py (notebooks/01_sft.ipynb, section 1.2)"
        )

    def __getitem__(self, index: int) -> dict[str, Int[Tensor, "max_len"]]:
        raise NotImplementedError(
            "exercise 1.2: write SFTDataset.__getitem__ in rlhf_exercises/sft.py (notebooks/01_sft.ipynb, section 1.2)"
        )


def masked_ce_loss(
    logits: Float[Tensor, "batch seq vocab"],
    labels: Int[Tensor, "batch seq"],
) -> Float[Tensor, ""]:
    """Mean next-token cross-entropy, in nats, over the labels that are not -100 (exercise 1.3).

    `logits[:, t]` predicts token `t + 1`, so logits and labels are shifted against each other by one.
    A batch in which every label is -100 has loss 0, not NaN; a training loop can call `backward()` on it.
    """
    raise NotImplementedError(
        "exercise 1.3: write masked_ce_loss in rlhf_exercises/sft.py (notebooks/01_sft.ipynb, section 1.3)"
    )


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
    raise NotImplementedError(
        "exercise 1.4: write train_sft in rlhf_exercises/sft.py (notebooks/01_sft.ipynb, section 1.4)"
    )
