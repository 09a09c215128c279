"""The parts of a sentence without sentiment, and how each language makes clauses of them.

The two languages differ in spacing, in the copula and in the order of the parts; everything that differs is
in the classes `English` and `Chinese`, so the sentence patterns (`sentences.py`) need not ask.
"""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ..topics import ASIDES, DOMAINS, IT
from .phrases import Phrase
from .prompts import Prompt

IT_SHARE = 0.4  # of the sentences with a subject of their own; the others are about an aspect
ASIDE_SHARE = 0.6
FACT_AFTER_ASIDE_SHARE = 0.5  # without an aside always, or the sentence would be very short


@dataclass(frozen=True)
class Frame(ABC):
    """The parts of a response without sentiment: two responses in one frame differ only in their phrases."""

    subject: str  # "" when the prompt is the subject
    aspect: str  # what the second clause talks about
    copula: str
    aside: str  # "" or neutral padding
    fact: str
    fact2: str
    fact_follows: bool  # a sentence with one sentiment clause goes on with a fact

    it: ClassVar[str]
    article: ClassVar[str]
    stop: ClassVar[str]

    @property
    def is_about_topic(self) -> bool:
        """The first clause is about the topic itself, not about one of its aspects."""
        return self.subject in ("", self.it)

    @abstractmethod
    def first(self, phrase: Phrase) -> str:
        """The clause that opens the sentence, with the aside."""

    @abstractmethod
    def second(self, phrase: Phrase) -> str:
        """The clause about the aspect."""

    @abstractmethod
    def second_too(self, phrase: Phrase) -> str:
        """The clause about the aspect, where it agrees with the first one."""

    @abstractmethod
    def states(self) -> str:
        """The fact as the clause that opens the sentence."""

    @abstractmethod
    def adds_fact(self) -> str:
        """The fact as the clause that ends the sentence."""

    @abstractmethod
    def join(self, first: str, conjunction: str, second: str) -> str:
        """The sentence of two clauses; the conjunction is given in English."""

    @abstractmethod
    def two_facts(self) -> str:
        """The sentence without sentiment."""

    @abstractmethod
    def at_first(self, p: Phrase, q: Phrase) -> str:
        """The sentence "p at first, but q in the end"."""

    @abstractmethod
    def although(self, p: Phrase, q: Phrase) -> str:
        """The sentence "q, although p"."""

    @abstractmethod
    def rather_than(self, p: Phrase, q: Phrase) -> str:
        """The sentence "p, not q"."""


class English(Frame):
    """Every response begins with the space that separates it from its prompt."""

    it, article, stop = IT["en"], "the ", "."

    def first(self, phrase: Phrase) -> str:
        bare = self._bare(phrase)
        if not self.aside:
            return bare
        if self.subject:
            return f" {self.aside},{bare}"
        return bare if phrase.is_verb else f"{bare} {self.aside}"

    def second(self, phrase: Phrase) -> str:
        return f"{self.aspect} {self._predicate(phrase)}"

    def second_too(self, phrase: Phrase) -> str:
        return self.second(phrase)

    def states(self) -> str:
        return f" {self.it} {self.fact}" if self.subject else f" {self.fact}"

    def adds_fact(self) -> str:
        return f"{self.it} {self.fact}"

    def join(self, first: str, conjunction: str, second: str) -> str:
        return f"{first}, {conjunction} {second}."

    def two_facts(self) -> str:
        return f"{self.states()} and {self.fact2}."

    def at_first(self, p: Phrase, q: Phrase) -> str:
        return f"{self._bare(p)} at first, but {self._predicate(q)} in the end."

    def although(self, p: Phrase, q: Phrase) -> str:
        return self.join(self.first(q), "although", self.second(p))

    def rather_than(self, p: Phrase, q: Phrase) -> str:
        aside = f" {self.aside}" if self.aside and not self.subject else ""
        return f"{self._bare(p)}, not {q.word.text}{aside}."

    def _bare(self, phrase: Phrase) -> str:
        """The first clause without the aside."""
        subject = f" {self.subject}" if self.subject else ""
        return f"{subject} {self._predicate(phrase)}"

    def _predicate(self, phrase: Phrase) -> str:
        return phrase.text if phrase.is_verb else f"{self.copula} {phrase.text}"


class Chinese(Frame):
    """No spaces and no copula; clauses that agree are joined by a comma and 也."""

    it, article, stop = IT["zh"], "", "。"
    CONJUNCTIONS: ClassVar = {"and": "", "but": "但是"}

    def first(self, phrase: Phrase) -> str:
        return self.aside + self.subject + phrase.text

    def second(self, phrase: Phrase) -> str:
        return self.aspect + phrase.text

    def second_too(self, phrase: Phrase) -> str:
        return f"{self.aspect}也{phrase.text}"

    def states(self) -> str:
        return self.fact

    def adds_fact(self) -> str:
        return self.fact

    def join(self, first: str, conjunction: str, second: str) -> str:
        return f"{first}，{self.CONJUNCTIONS[conjunction]}{second}。"

    def two_facts(self) -> str:
        return f"{self.fact}，{self.fact2}。"

    def at_first(self, p: Phrase, q: Phrase) -> str:
        return f"{self.subject}起初{p.text}，不过最后{q.text}。"

    def although(self, p: Phrase, q: Phrase) -> str:
        return f"尽管{self.second(p)}，{self.subject or self.it}{q.text}。"

    def rather_than(self, p: Phrase, q: Phrase) -> str:
        """The words themselves: beside 并不, the adjective needs no 很."""
        return f"{self.aside}{self.subject}{p.word.text}，并不{q.word.text}。"


FRAMES = {"en": English, "zh": Chinese}


def draw_frame(rng: random.Random, prompt: Prompt) -> Frame:
    domain, frame = DOMAINS[prompt.lang][prompt.domain], FRAMES[prompt.lang]
    first, second = rng.sample(domain.aspects, 2)
    fact, fact2 = rng.sample(domain.facts, 2)
    subject = ""
    if not prompt.is_subject:
        subject = frame.it if rng.random() < IT_SHARE else frame.article + first
    aside = rng.choice(ASIDES[prompt.lang]) if rng.random() < ASIDE_SHARE else ""
    return frame(
        subject=subject,
        aspect=frame.article + second,
        copula=domain.copula,
        aside=aside,
        fact=fact,
        fact2=fact2,
        fact_follows=not aside or rng.random() < FACT_AFTER_ASIDE_SHARE,
    )
