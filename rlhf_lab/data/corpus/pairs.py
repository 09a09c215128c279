"""The preference pairs: two responses to one prompt that differ in one phenomenon of the language.

Neither single words (the phenomena see to that) nor length (`Balance`) tell which response is better.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..lexicon import LUKEWARM, MILD, STRONG
from .frames import Frame, draw_frame
from .phrases import ANY_DOMAIN
from .prompts import Prompt
from .sentences import Response, after_fact, although, at_first, both, but, rather_than, single
from .shares import in_shares
from .speaker import Span, Speaker, Wording

CountTokens = Callable[[str], int]
MARGIN = 0.15  # smallest difference in probability between chosen and rejected

PRAISE, BLAME = Span(low=LUKEWARM), Span(high=-LUKEWARM)
CLEAR_PRAISE, CLEAR_BLAME = Span(low=0.7), Span(high=-0.7)  # not lukewarm, nor a mild word toned down
HIGH_PRAISE, HARD_BLAME = Span(low=2.5), Span(high=-2.5)
FAINT_PRAISE, FAINT_BLAME = Span(0.3, 1.1), Span(-1.1, -0.3)
MODEST_PRAISE, MODEST_BLAME = Span(0.3, 1.6), Span(-1.6, -0.3)

BOTH_PRAISE_SHARE = 0.7  # of the pairs of the phenomenon "strength"


@dataclass(frozen=True)
class Scene:
    """What the pair is made of. Where the frames are the same too, both responses are made in the first."""

    speaker: Speaker
    frame: Frame
    other: Frame

    @property
    def own(self) -> bool:
        """The topic's own words suit both frames."""
        return self.frame.is_about_topic and self.other.is_about_topic

    @property
    def rng(self) -> random.Random:
        return self.speaker.rng

    def toss(self) -> bool:
        return self.rng.random() < 0.5


Built = tuple[Response, Response] | None  # chosen and rejected, or None where the phrases do not suit


def _plain(scene: Scene) -> Built:
    """Praise against blame, in one clause or in two that agree: what counting words can solve."""
    speaker, forms = scene.speaker, ("plain", "verb")
    good, bad = speaker.pick(PRAISE, forms, scene.own), speaker.pick(BLAME, forms, scene.own)
    if scene.toss():
        return single(scene.frame, good), single(scene.other, bad)
    good2, bad2 = speaker.pick(PRAISE, forms), speaker.pick(BLAME, forms)
    if good.word == good2.word or bad.word == bad2.word:
        return None
    return both(scene.frame, good, good2), both(scene.other, bad, bad2)


def _negation(scene: Scene) -> Built:
    """The same word said and denied."""
    said = scene.speaker.pick_deniable(scene.rng.choice((1, -1)), own=scene.own)
    denied = scene.rng.choice(scene.speaker.negations_of(said))
    good, bad = (said, denied) if said.value > denied.value else (denied, said)
    pattern = scene.rng.choice((single, after_fact))
    if said.word.domain != ANY_DOMAIN:
        pattern = single  # the other one is about an aspect
    return pattern(scene.frame, good), pattern(scene.other, bad)


def _negated_other(scene: Scene) -> Built:
    """Faint praise against strong praise denied, or a fault denied against faint blame: the words mislead."""
    speaker, forms = scene.speaker, ("plain", "toned")
    if scene.toss():
        good = speaker.pick(MODEST_PRAISE, forms, scene.own)
        bad = scene.rng.choice(speaker.negations_of(speaker.pick_deniable(1, STRONG, scene.own)))
    else:
        good = scene.rng.choice(speaker.negations_of(speaker.pick_deniable(-1, own=scene.own)))
        bad = speaker.pick(MODEST_BLAME, forms, scene.own)
    return single(scene.frame, good), single(scene.other, bad)


def _strength(scene: Scene) -> Built:
    """Both praise or both blame; one of them strongly."""
    both_praise = scene.rng.random() < BOTH_PRAISE_SHARE
    better, worse = (HIGH_PRAISE, FAINT_PRAISE) if both_praise else (FAINT_BLAME, HARD_BLAME)
    forms = ("plain", "intensified", "toned", "verb")
    good = scene.speaker.pick(better, forms, scene.own)
    bad = scene.speaker.pick(worse, forms, scene.own)
    return single(scene.frame, good), single(scene.other, bad)


def _mixed(scene: Scene) -> Built:
    """The same two clauses; the one after "but" (or outside "although") decides."""
    good, bad = scene.speaker.pick(CLEAR_PRAISE), scene.speaker.pick(CLEAR_BLAME)
    if good.word == bad.word:
        return None
    held_out = scene.speaker.wording == "held_out"
    pattern = scene.rng.choice((but, at_first, although) if held_out else (but, at_first))
    return pattern(scene.frame, bad, good), pattern(scene.frame, good, bad)


def _same_words(scene: Scene) -> Built:
    """The same words; what is denied decides: "quick, not slow" against "slow, not quick"."""
    speaker, frame = scene.speaker, scene.frame
    good, bad = speaker.pick_deniable(1, MILD), speaker.pick_deniable(-1, MILD)
    if scene.toss():
        return rather_than(frame, good, bad), rather_than(frame, bad, good)
    not_bad, not_good = speaker.negations_of(bad), speaker.negations_of(good)
    index = scene.rng.randrange(len(not_bad))  # the same negator in both
    return both(frame, good, not_bad[index]), both(frame, bad, not_good[index])


class Phenomenon(NamedTuple):
    build: Callable[[Scene], Built]
    share: float  # of the pairs


PHENOMENA = {
    "plain": Phenomenon(_plain, 0.22),
    "negation": Phenomenon(_negation, 0.22),
    "negated_other": Phenomenon(_negated_other, 0.13),
    "strength": Phenomenon(_strength, 0.20),
    "mixed": Phenomenon(_mixed, 0.14),
    "same_words": Phenomenon(_same_words, 0.09),
}


@dataclass(frozen=True)
class Pair:
    prompt: Prompt
    chosen: Response
    rejected: Response
    phenomenon: str

    @property
    def texts(self) -> tuple[str, str, str]:
        return self.prompt.text, self.chosen.text, self.rejected.text


def draw_pair(rng: random.Random, prompt: Prompt, wording: Wording, phenomenon: str) -> Pair:
    """A pair whose chosen response is better by MARGIN or more."""
    while True:
        scene = Scene(Speaker(rng, prompt, wording), draw_frame(rng, prompt), draw_frame(rng, prompt))
        built = PHENOMENA[phenomenon].build(scene)
        if built is None:
            continue
        chosen, rejected = built
        if chosen.probability - rejected.probability >= MARGIN:
            return Pair(prompt, chosen, rejected, phenomenon)


class Balance:
    """Lets a pair in only while neither the longer nor the shorter response is getting ahead.

    Length is counted in characters and in tokens of the backbone `tiny`; both tallies stay within a pair of
    zero.
    """

    def __init__(self, count_tokens: CountTokens):
        self.measures = (len, count_tokens)
        self.tallies = [0, 0]

    def admits(self, pair: Pair) -> bool:
        signs = [_sign(measure(pair.chosen.text) - measure(pair.rejected.text)) for measure in self.measures]
        tallies = [tally + sign for tally, sign in zip(self.tallies, signs, strict=True)]
        if any(abs(new) > max(1, abs(old)) for new, old in zip(tallies, self.tallies, strict=True)):
            return False
        self.tallies = tallies
        return True


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


class PairSource:
    """Draws lists of pairs, and no pair twice in any of them."""

    def __init__(self, rng: random.Random, count_tokens: CountTokens):
        self.rng, self.count_tokens = rng, count_tokens
        self.taken = set()

    def draw(self, prompts: list[Prompt], n: int, wording: Wording) -> list[Pair]:
        """n pairs, the phenomena in their shares, balanced in length."""
        balance = Balance(self.count_tokens)
        shares = {name: phenomenon.share for name, phenomenon in PHENOMENA.items()}
        phenomena = in_shares(self.rng, shares, n)
        return [self._draw_one(prompts, wording, phenomenon, balance) for phenomenon in phenomena]

    def _draw_one(self, prompts: list[Prompt], wording: Wording, phenomenon: str, balance: Balance) -> Pair:
        while True:
            pair = draw_pair(self.rng, self.rng.choice(prompts), wording, phenomenon)
            if pair.texts not in self.taken and balance.admits(pair):
                self.taken.add(pair.texts)
                return pair
