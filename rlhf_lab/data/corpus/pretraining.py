"""The text that the backbone `tiny` is pretrained on: reviews as on a web page, and some synonyms.

It uses every topic, every wording and every opinion, so that the backbone knows the language; the stars tell
it which words mean well.
"""

import random
from dataclasses import replace

from .. import lexicon
from ..topics import DOMAINS
from .frames import draw_frame
from .phrases import ANY_DOMAIN
from .prompts import LANGUAGES, all_prompts
from .sentences import draw_response, neutral
from .speaker import Span

SYNONYMS_SHARE = 0.1  # of the lines
STARS = (Span(high=-2.0), Span(-2.0, -0.5), Span(-0.5, 0.5), Span(0.5, 2.0), Span(low=2.0))  # 1 to 5
THREE_STARS = 2  # index in STARS
FACTS_ONLY_SHARE = 0.3  # of the first sentences of reviews with three stars
RATED_SHARE = 0.85  # of the reviews
FURTHER_SENTENCES = (0, 1, 1, 2)  # drawn from

SPACE = {"en": " ", "zh": ""}  # between sentences
SYNONYMS_LINE = {"en": "Synonyms: {}.", "zh": "近义词：{}。"}
SYNONYMS_COMMA = {"en": ", ", "zh": "、"}


def pretraining_text(n_lines: int, seed: int) -> str:
    """Reviews of every topic in every wording and of every opinion, and some synonyms; one a line."""
    rng = random.Random(seed)
    lines = []
    for _ in range(n_lines):
        kind = _synonyms if rng.random() < SYNONYMS_SHARE else _review
        lines.append(kind(rng, rng.choice(LANGUAGES)) + "\n")
    return "".join(lines)


def _review(rng: random.Random, lang: str) -> str:
    """One line: one to three sentences of one mind, most with stars behind each, as on a page of reviews."""
    stars = rng.randrange(len(STARS))
    prompt = rng.choice(all_prompts(lang))
    follow_up = replace(prompt, is_subject=False)
    if stars == THREE_STARS and rng.random() < FACTS_ONLY_SHARE:
        first = neutral(draw_frame(rng, prompt))
    else:
        first = draw_response(rng, prompt, "all", STARS[stars])
    sentences = [prompt.text + first.text]
    for _ in range(rng.choice(FURTHER_SENTENCES)):
        sentences.append(_capital(draw_response(rng, follow_up, "all", STARS[stars]).text))
    if rng.random() < RATED_SHARE:
        sentences = [f"{sentence} {'★' * (stars + 1)}" for sentence in sentences]
    return SPACE[lang].join(sentences)


def _capital(text: str) -> str:
    text = text.strip()
    return text[0].upper() + text[1:]


def _synonyms(rng: random.Random, lang: str) -> str:
    """One line of a thesaurus: words of one strength, general ones and those of one domain."""
    domain = rng.choice(list(DOMAINS[lang]))
    words = lexicon.WORDS[lang]
    value = rng.choice(list(words[domain]))
    entries = words[ANY_DOMAIN][value].split() + words[domain][value].split()
    chosen = rng.sample(entries, min(len(entries), rng.randint(3, 6)))
    return SYNONYMS_LINE[lang].format(SYNONYMS_COMMA[lang].join(lexicon.unstar(entry)[0] for entry in chosen))
