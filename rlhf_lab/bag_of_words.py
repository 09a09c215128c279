"""A reward model that trains in seconds: a score for each word, and a text is worth their sum.

It has the interface of the taught `RewardModel`, so that the taught training loop can train it. Notebook 10 asks with it
what the target of a reward model changes, where a language model would take an hour to answer.
"""

from collections import Counter
from collections.abc import Iterable

from jaxtyping import Float, Int
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast


def word_tokenizer(texts: Iterable[str], least: int = 2) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the words that occur at least so often in the texts; all others are one token."""
    normalizer = normalizers.Lowercase()
    split = pre_tokenizers.Split(Regex(r"\w+(?:'\w+)?|[^\w\s]"), "removed", invert=True)
    counts = Counter(
        word for text in texts for word, _ in split.pre_tokenize_str(normalizer.normalize_str(text))
    )
    words = ["<end>", "<other>", *(word for word, count in counts.most_common() if count >= least)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<other>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, split
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<other>")


class BagOfWords(nn.Module):
    """The score of a text is the sum of the scores of its words, which start at 0."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.word_scores = nn.Embedding(vocabulary, 1)
        nn.init.zeros_(self.word_scores.weight)

    def forward(
        self, input_ids: Int[Tensor, "batch seq"], attention_mask: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch"]:
        return (self.word_scores(input_ids).squeeze(-1) * attention_mask).sum(-1)
