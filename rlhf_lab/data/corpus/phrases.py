"""Every way of saying a sentiment with the lexicon's words, each with its value: "not clear at all" is -1.8.

What can be said differs between the languages (an English word takes any adverb, a long Chinese one none), so
each has a small class with its rules.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from .. import lexicon
from ..lexicon import LUKEWARM, MILD, STRONG, unstar

ANY_DOMAIN = "any"  # the lexicon's name for the words that fit every subject


@dataclass(frozen=True)
class Word:
    """An entry of the lexicon."""

    text: str
    value: float
    lang: str
    domain: str
    held_out: bool  # starred

    @property
    def is_lukewarm(self) -> bool:
        return abs(self.value) == LUKEWARM

    @property
    def is_strong(self) -> bool:
        return abs(self.value) >= STRONG


@dataclass(frozen=True)
class Phrase:
    """One way of saying a sentiment: "not clear at all"."""

    text: str
    value: float
    form: str  # plain, negated, intensified, toned, verb
    word: Word  # the word inside: "clear"
    held_out: bool  # contains starred wording

    @property
    def is_verb(self) -> bool:
        return self.form == "verb"


@dataclass(frozen=True)
class Negation:
    text: str
    factor: float  # see `lexicon.NEGATORS`
    held_out: bool


class English:
    """Adverbs and negators stand before any word, and "at all" behind it."""

    LONGEST_MODIFIED = math.inf  # characters of a word that takes adverbs

    def predicate(self, word: Word) -> str:
        return word.text

    def with_adverb(self, adverb: str, word: Word) -> str:
        return f"{adverb} {word.text}"

    def can_be_negated(self, word: Word) -> bool:
        return not word.is_lukewarm

    def negations(self, word: Word) -> Iterator[Negation]:
        for entry, factor in lexicon.NEGATORS["en"].items():
            negator, held_out = unstar(entry)
            is_soft = factor < 1
            if not (is_soft and word.is_strong):  # nobody says "not very horrible"
                yield Negation(f"{negator} {word.text}", factor, held_out)
        yield Negation(f"not {word.text} {lexicon.AT_ALL}", lexicon.AT_ALL_FACTOR, held_out=False)


class Chinese:
    """Only short words take adverbs and negators, and those that begin with 不 no negator."""

    LONGEST_MODIFIED = 2
    NEGATORS_OF_STRONG = ("谈不上", "称不上", "并不", "一点也不", "绝不")

    def predicate(self, word: Word) -> str:
        """A bare mild adjective is not a predicate; 很 makes it one without making it stronger."""
        is_bare = abs(word.value) == MILD and self._is_short_and_unnegated(word)
        return "很" + word.text if is_bare else word.text

    def with_adverb(self, adverb: str, word: Word) -> str:
        return adverb + word.text

    def can_be_negated(self, word: Word) -> bool:
        return not word.is_lukewarm and self._is_short_and_unnegated(word)

    def negations(self, word: Word) -> Iterator[Negation]:
        for entry, factor in lexicon.NEGATORS["zh"].items():
            negator, held_out = unstar(entry)
            if not word.is_strong or negator in self.NEGATORS_OF_STRONG:
                yield Negation(negator + word.text, factor, held_out)

    def _is_short_and_unnegated(self, word: Word) -> bool:
        return len(word.text) <= self.LONGEST_MODIFIED and not word.text.startswith("不")


RULES = {"en": English(), "zh": Chinese()}


def can_be_negated(word: Word) -> bool:
    return RULES[word.lang].can_be_negated(word)


@cache
def phrases(lang: str, domain: str) -> tuple[Phrase, ...]:
    """Every way of saying a sentiment with the words of one domain."""
    found = [phrase for word in _words(lang, domain) for phrase in _ways_of_saying(word)]
    if domain == ANY_DOMAIN:
        found += [_phrase(verb, verb.text, verb.value, "verb") for verb in _verbs(lang)]
    return tuple(found)


def _words(lang: str, domain: str) -> Iterator[Word]:
    for value, words in lexicon.WORDS[lang][domain].items():
        for entry in words.split():
            text, held_out = unstar(entry)
            yield Word(text, value, lang, domain, held_out)


def _verbs(lang: str) -> Iterator[Word]:
    for value, verbs in lexicon.VERBS[lang].items():
        for entry in verbs.split("|"):
            text, held_out = unstar(entry)
            yield Word(text, value, lang, ANY_DOMAIN, held_out)


def _ways_of_saying(word: Word) -> Iterator[Phrase]:
    rules = RULES[word.lang]
    yield _phrase(word, rules.predicate(word), word.value, "plain")
    if word.is_lukewarm:
        return
    if len(word.text) <= rules.LONGEST_MODIFIED:
        yield from _with_adverbs(word)
    if rules.can_be_negated(word):
        for negation in rules.negations(word):
            value = lexicon.negate(word.value, negation.factor)
            yield _phrase(word, negation.text, value, "negated", negation.held_out)


def _with_adverbs(word: Word) -> Iterator[Phrase]:
    intensifiers = lexicon.INTENSIFIERS[word.lang]
    of_praise, of_blame = lexicon.DOWNTONERS[word.lang]
    downtoners = of_praise if word.value > 0 else of_blame
    graded = [(intensifiers, lexicon.intensify(word.value), "intensified")]
    if not word.is_strong:
        graded.append((downtoners, lexicon.tone_down(word.value), "toned"))
    for adverbs, value, form in graded:
        for entry in adverbs.split("|"):
            adverb, held_out = unstar(entry)
            yield _phrase(word, RULES[word.lang].with_adverb(adverb, word), value, form, held_out)


def _phrase(word: Word, text: str, value: float, form: str, held_out: bool = False) -> Phrase:
    """held_out: what was added to the word is starred; a starred word makes every phrase held out."""
    return Phrase(text, value, form, word, held_out or word.held_out)
