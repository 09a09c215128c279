"""Rewards: what PPO is trained on, and the independent judge beside it.

Taught code sees one form, `reward_fn(full_ids [B, T], full_mask [B, T]) -> [B]`. Judges and stand-in rewards read
texts, `scorer(texts) -> list of floats`; `TextReward` turns one into the other.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .errors import LabError

TextScorer = Callable[[Sequence[str]], list[float]]
RewardFunction = Callable[[Tensor, Tensor], Tensor]

SST2 = "distilbert/distilbert-base-uncased-finetuned-sst-2-english"


class VaderScorer:
    """VADER's compound score, -1 (negative) to 1 (positive); English only.

    Hutto and Gilbert 2014, "VADER: a parsimonious rule-based model for sentiment analysis of social media text".
    """

    def __init__(self):
        try:
            from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
        except ModuleNotFoundError:
            raise LabError(
                "the reward vader needs the package vaderSentiment: run `python -m rlhf_lab setup`"
            ) from None
        self._analyzer = SentimentIntensityAnalyzer()

    def __call__(self, texts: Sequence[str]) -> list[float]:
        return [self._analyzer.polarity_scores(text)["compound"] for text in texts]


class ClassifierScorer:
    """Probability of the positive class under a sentiment classifier, 0 to 1.

    Args:
        folder: a sequence-classification model with its tokenizer. The positive class is the one whose label says
            so (`POSITIVE`), or the last of two.
        device: where the classifier runs.
    """

    def __init__(self, folder: Path, device: torch.device):
        from transformers import AutoModelForSequenceClassification

        from .backbones import check_all_loaded, load_tokenizer_as_is

        self._tokenizer = load_tokenizer_as_is(folder)
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        try:
            model, loaded = AutoModelForSequenceClassification.from_pretrained(
                folder, output_loading_info=True
            )
        except Exception as error:  # transformers raises many kinds for one cause
            raise LabError(f"no classifier can be loaded from {folder}: {error!r:.200}") from None
        check_all_loaded(folder, loaded)
        self._model = model.to(device).eval()
        self._positive = self._positive_class(self._model.config.id2label, folder)
        self._max_length = min(self._tokenizer.model_max_length, self._model.config.max_position_embeddings)

    @staticmethod
    def _positive_class(id2label: dict[int, str], folder: Path) -> int:
        named = [index for index, label in id2label.items() if label.lower().startswith("pos")]
        if len(named) == 1:
            return int(named[0])
        if len(id2label) == 2:
            return 1
        raise LabError(
            f"the classifier in {folder} has the labels {list(id2label.values())}: none is POSITIVE"
        )

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> list[float]:
        # an empty text would be an empty row: let the classifier read a space instead
        encoded = self._tokenizer(
            [text or " " for text in texts],
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=self._max_length,
        ).to(self._model.device)
        probabilities = self._model(**encoded).logits.float().softmax(dim=-1)
        return probabilities[:, self._positive].tolist()


class CheckedScorer:
    """The workbench's door for what reads texts: one finite number a text.

    Raises:
        LabError: with the scorer's name and what it returned.
    """

    def __init__(self, name: str, scorer: TextScorer):
        self.name = name
        self.scorer = scorer

    def __call__(self, texts: Sequence[str]) -> list[float]:
        scores = self.scorer(texts)
        if len(scores) != len(texts):
            raise LabError(f"{self.name} returned {len(scores)} scores for {len(texts)} texts")
        for text, score in zip(texts, scores, strict=True):
            if not math.isfinite(score):
                raise LabError(f"{self.name} returned {score} for the text {text[:60]!r}")
        return scores


class TextReward:
    """A reward function out of a text scorer: it decodes the valid tokens and scores prompt and response."""

    def __init__(self, scorer: TextScorer, tokenizer):
        self.scorer = scorer
        self.tokenizer = tokenizer

    def __call__(self, full_ids: Tensor, full_mask: Tensor) -> Tensor:
        texts = [
            self.tokenizer.decode(ids[mask.bool()], skip_special_tokens=True)
            for ids, mask in zip(full_ids, full_mask, strict=True)
        ]
        return torch.tensor(self.scorer(texts), device=full_ids.device)


class ModelReward:
    """A trained reward model, frozen, on a known scale: mean 0 and standard deviation 1 on its own training texts.

    A comparison fixes differences of scores, not their zero or their unit, so the raw numbers mean nothing to the
    KL coefficient (Stiennon et al. 2020, section 3.4, set the zero in the same way).
    """

    def __init__(self, model: torch.nn.Module, mean: float, std: float):
        self.model = model.eval().requires_grad_(False)
        self.mean = mean
        self.std = std

    @torch.no_grad()
    def __call__(self, full_ids: Tensor, full_mask: Tensor) -> Tensor:
        return (self.model(full_ids, full_mask).float() - self.mean) / self.std


class CheckedReward:
    """The workbench's door: a reward must be one finite number a row.

    Raises:
        LabError: with the reward's name, what came back and what was expected.
    """

    def __init__(self, name: str, reward_fn: RewardFunction):
        self.name = name
        self.reward_fn = reward_fn

    def __call__(self, full_ids: Tensor, full_mask: Tensor) -> Tensor:
        scores = self.reward_fn(full_ids, full_mask)
        batch_size = len(full_ids)
        if not isinstance(scores, Tensor):
            raise LabError(
                f"the reward {self.name} returned a {type(scores).__name__}, not a tensor [{batch_size}]"
            )
        if scores.shape != (batch_size,):
            raise LabError(f"the reward {self.name} returned shape {list(scores.shape)}, not [{batch_size}]")
        finite = scores.isfinite()
        if not finite.all():
            row = int((~finite).nonzero()[0])
            raise LabError(f"the reward {self.name} returned {scores[row].item()} for row {row} of the batch")
        return scores.float()
