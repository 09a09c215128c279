"""The sentence patterns: a frame and one or two phrases make a response, whose value follows from theirs."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from .. import lexicon
from ..lexicon import combine
from .frames import Frame, draw_frame
from .phrases import Phrase
from .prompts import Prompt
from .speaker import ANY_VALUE, Span, Speaker, Wording


@dataclass(frozen=True)
class Response:
    text: str
    value: float

    @property
    def probability(self) -> float:
        return lexicon.probability(self.value)


def neutral(frame: Frame) -> Response:
    return Response(frame.two_facts(), 0.0)


def single(frame: Frame, p: Phrase) -> Response:
    first = frame.first(p)
    if frame.fact_follows or p.is_verb:
        return Response(frame.join(first, "and", frame.adds_fact()), p.value)
    return Response(first + frame.stop, p.value)


def after_fact(frame: Frame, p: Phrase) -> Response:
    return Response(frame.join(frame.states(), "and", frame.second(p)), p.value)


def both(frame: Frame, p: Phrase, q: Phrase) -> Response:
    text = frame.join(frame.first(p), "and", frame.second_too(q))
    return Response(text, combine([p.value, q.value], []))


def but(frame: Frame, p: Phrase, q: Phrase) -> Response:
    return Response(frame.join(frame.first(p), "but", frame.second(q)), combine([q.value], [p.value]))


def at_first(frame: Frame, p: Phrase, q: Phrase) -> Response:
    return Response(frame.at_first(p, q), combine([q.value], [p.value]))


def although(frame: Frame, p: Phrase, q: Phrase) -> Response:
    """p is conceded, q counts."""
    return Response(frame.although(p, q), combine([q.value], [p.value]))


def rather_than(frame: Frame, p: Phrase, q: Phrase) -> Response:
    """ "quick, not slow": p and q are plain phrases of opposite sign."""
    return Response(frame.rather_than(p, q), combine([p.value, lexicon.negate(q.word.value)], []))


PATTERN_WEIGHTS: dict[Callable[..., Response], int] = {
    single: 20,
    after_fact: 15,
    both: 25,
    but: 15,
    at_first: 10,
    rather_than: 5,
    although: 10,
}
HELD_OUT_PATTERNS = (although,)


def draw_response(rng: random.Random, prompt: Prompt, wording: Wording, span: Span = ANY_VALUE) -> Response:
    """A response whose value lies in the span; phrases of both signs, any pattern that the wording allows."""
    weights = {
        pattern: weight
        for pattern, weight in PATTERN_WEIGHTS.items()
        if not (wording == "train" and pattern in HELD_OUT_PATTERNS)
    }
    speaker = Speaker(rng, prompt, wording)
    while True:
        frame = draw_frame(rng, prompt)
        pattern = rng.choices(list(weights), list(weights.values()))[0]
        response = _fill(pattern, frame, speaker, span)
        if response is not None and response.value in span:
            return response


def _fill(pattern: Callable[..., Response], frame: Frame, speaker: Speaker, span: Span) -> Response | None:
    """The pattern with phrases that suit it; None where those that were picked do not."""
    own = frame.is_about_topic
    if pattern is single:
        return single(frame, speaker.pick(span, own=own))
    if pattern is after_fact:
        return after_fact(frame, speaker.pick(span))
    if pattern is rather_than:
        sign = speaker.rng.choice((1, -1))
        return rather_than(frame, speaker.pick_deniable(sign, own=own), speaker.pick_deniable(-sign))
    p, q = speaker.pick(own=own), speaker.pick()
    they_agree = p.value * q.value > 0
    if p.word == q.word or they_agree != (pattern is both):
        return None  # "and" joins clauses that agree, "but" clauses that disagree
    return pattern(frame, p, q)
