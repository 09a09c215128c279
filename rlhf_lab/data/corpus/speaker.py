"""Picks phrases: at random, but of the wanted value, form and wording."""

import math
import random
from dataclasses import dataclass
from functools import cache
from typing import Literal

from .phrases import ANY_DOMAIN, Phrase, can_be_negated, phrases
from .prompts import Prompt

Wording = Literal["train", "held_out", "all"]  # no starred entry, every word starred, or either

FORM_WEIGHTS = {"plain": 50, "negated": 25, "intensified": 12, "toned": 9, "verb": 4}
FORMS = tuple(FORM_WEIGHTS)
OWN_WORDS_SHARE = 0.6  # of the phrases, where the words of the topic's domain are allowed


@dataclass(frozen=True)
class Span:
    """The sentiment values from low to high, both included."""

    low: float = -math.inf
    high: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


ANY_VALUE = Span()


@dataclass(frozen=True)
class Vocabulary:
    lang: str
    domain: str
    wording: Wording

    def allows(self, phrase: Phrase) -> bool:
        if self.wording == "train":
            return not phrase.held_out
        return self.wording == "all" or phrase.word.held_out


@cache  # a corpus asks some hundred thousand times, nearly always one of a few hundred questions
def _by_form(vocabulary: Vocabulary, span: Span, forms: tuple[str, ...]) -> dict[str, list[Phrase]]:
    found = {}
    for phrase in phrases(vocabulary.lang, vocabulary.domain):
        if phrase.value in span and phrase.form in forms and vocabulary.allows(phrase):
            found.setdefault(phrase.form, []).append(phrase)
    return found


class Speaker:
    """Picks phrases for one prompt.

    `own` allows the words of the topic's domain: a film may be gripping, but not a battery.
    """

    def __init__(self, rng: random.Random, prompt: Prompt, wording: Wording):
        self.rng, self.prompt, self.wording = rng, prompt, wording

    def pick(self, span: Span = ANY_VALUE, forms: tuple[str, ...] = FORMS, own: bool = False) -> Phrase:
        """First the form, by its weight, then the phrase: rare forms with many phrases stay rare."""
        domain = self.prompt.domain if own and self.rng.random() < OWN_WORDS_SHARE else ANY_DOMAIN
        # a domain has few words, perhaps none that is wanted
        by_form = self._by_form(domain, span, forms) or self._by_form(ANY_DOMAIN, span, forms)
        form = self.rng.choices(list(by_form), [FORM_WEIGHTS[f] for f in by_form])[0]
        return self.rng.choice(by_form[form])

    def pick_deniable(self, sign: int, strength: float | None = None, own: bool = False) -> Phrase:
        """A plain phrase of praise (sign 1) or blame (-1) whose word can be negated."""
        while True:
            phrase = self.pick(forms=("plain",), own=own)
            word = phrase.word
            fits = word.value * sign > 0 and strength in (None, abs(word.value))
            if fits and can_be_negated(word):
                return phrase

    def negations_of(self, phrase: Phrase) -> list[Phrase]:
        """A held-out word may be denied in known wording, but a training text has no starred negator."""
        return [
            p
            for p in phrases(phrase.word.lang, phrase.word.domain)
            if p.word == phrase.word and p.form == "negated" and not (self.wording == "train" and p.held_out)
        ]

    def _by_form(self, domain: str, span: Span, forms: tuple[str, ...]) -> dict[str, list[Phrase]]:
        return _by_form(Vocabulary(self.prompt.lang, domain, self.wording), span, forms)
