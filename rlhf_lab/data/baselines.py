"""Baselines that do not read: how far do length, one word, or a bag of words get on the preference pairs?

A reward model that has understood negation, degree and "but" must stand clearly above all of them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from .judge import polarity_count

MOST_WORDS = 1000  # that the bag of words knows: the time to fit it grows with the cube of their number
_WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*|[\u4e00-\u9fff]")  # English words, Chinese characters


def _counts(text: str) -> Counter:
    return Counter(_WORD.findall(text.lower()))


def _differences(pairs: Iterable[Mapping]) -> list[Counter]:
    """For each pair: how many more of each word the chosen response has (negative: fewer)."""
    differences = []
    for row in pairs:
        difference = _counts(row["chosen"])
        difference.subtract(_counts(row["rejected"]))
        differences.append(Counter({word: n for word, n in difference.items() if n}))
    return differences


def _accuracy(scores: Iterable[float]) -> float:
    """Share of pairs with a positive difference of scores; ties count half."""
    scores = np.asarray(list(scores), dtype=float)
    return float(np.mean((scores > 0) + 0.5 * (scores == 0)))


def one_word_accuracy(train: Iterable[Mapping], heldout: Iterable[Mapping]) -> tuple[str, float]:
    """The training pairs' best rule "more of this word is better (worse)", and its held-out accuracy."""
    differences = _differences(train)
    gain = Counter()
    for difference in differences:
        for word, n in difference.items():
            gain[word] += 1 if n > 0 else -1
    word = max(sorted(gain), key=lambda w: abs(gain[w]), default="")  # no pair may differ in a word
    sign = 1 if gain[word] > 0 else -1
    return word, _accuracy(sign * difference[word] for difference in _differences(heldout))


def sentiment_count_accuracy(heldout: Iterable[Mapping]) -> float:
    """Positive minus negative words of the full lexicon, blind to negation, degree and order."""
    return _accuracy(polarity_count(row["chosen"]) - polarity_count(row["rejected"]) for row in heldout)


def bag_of_words_accuracy(train: Iterable[Mapping], heldout: Iterable[Mapping], l2: float = 1.0) -> float:
    """Held-out accuracy of a logistic regression on differences of word counts.

    Args:
        l2: weight of the penalty, for the summed (not averaged) loss.
    """
    train, heldout = _differences(train), _differences(heldout)
    n_pairs_with = Counter(word for difference in train for word in difference)
    columns = {word: i for i, word in enumerate(sorted(dict(n_pairs_with.most_common(MOST_WORDS))))}

    def matrix(differences: list[Counter]) -> np.ndarray:
        rows = np.zeros((len(differences), len(columns)))
        for row, difference in zip(rows, differences):
            for word, n in difference.items():
                if word in columns:
                    row[columns[word]] = n
        return rows

    x = matrix(train)
    weights = np.zeros(len(columns))
    for _ in range(15):  # Newton's method; the loss is convex, it converges in a few steps
        wrong = 1 / (1 + np.exp(np.clip(x @ weights, -30, 30)))
        gradient = x.T @ wrong - l2 * weights
        hessian = (x * (wrong * (1 - wrong))[:, None]).T @ x + l2 * np.eye(len(columns))
        weights += np.linalg.solve(hessian, gradient)
    return _accuracy(matrix(heldout) @ weights)
