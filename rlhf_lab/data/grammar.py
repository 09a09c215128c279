"""The seeded generator of the toy corpus: `python -m rlhf_lab.data.grammar` writes the files under `toy/`.

A response is one sentence about the prompt's topic, made of clauses whose sentiment values are known, so
every sentence carries its ground truth: a value in log-odds (see `lexicon.py`). Five things keep it from
being solved by counting words: negation ("not reliable at all", "never boring"), mild against strong, adverbs
of degree, sentences whose two clauses disagree ("slow at first, but superb in the end"), and neutral facts.

Held out are topics (the last two of every domain), prompt wordings (the last of each kind), and wording: the
starred entries of the lexicon and the "although" sentence. The pretraining text of the backbone `tiny`
(`pretraining_text`) uses everything.

Only `random.Random(seed)` decides, so the same seed gives the same files on every machine.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from . import FILES, TOY_FOLDER, lexicon
from .lexicon import LUKEWARM, MILD, STRONG, combine, probability, unstar
from .topics import ASIDES, DOMAINS, HELD_OUT_TOPICS, IT

LANGUAGES = ("en", "zh")
SEED = 2024
CountTokens = Callable[[str], int]
MARGIN = 0.15  # smallest difference in probability between chosen and rejected


# --------------------------------------------------------------------------------------------- prompts


@dataclass(frozen=True)
class Prompt:
    text: str
    lang: str
    domain: str
    topic: str
    is_subject: bool  # the response continues the prompt's sentence; otherwise the prompt ends in a colon
    held_out_topic: bool
    held_out_wording: bool


@cache
def all_prompts(lang: str) -> tuple[Prompt, ...]:
    """Every topic in every wording of its domain."""
    prompts = []
    for domain_name, domain in DOMAINS[lang].items():
        for index, entry in enumerate(domain.nouns):
            measure, _, noun = entry.rpartition("|")
            for wordings, is_subject in ((domain.subject_wordings, True), (domain.colon_wordings, False)):
                for wording in wordings:
                    prompts.append(
                        Prompt(
                            text=wording.format(n=noun, m=measure),
                            lang=lang,
                            domain=domain_name,
                            topic=noun,
                            is_subject=is_subject,
                            held_out_topic=index >= len(domain.nouns) - HELD_OUT_TOPICS,
                            held_out_wording=wording == wordings[-1],
                        )
                    )
    return tuple(prompts)


def training_prompts(lang: str) -> list[Prompt]:
    return [p for p in all_prompts(lang) if not p.held_out_topic and not p.held_out_wording]


def held_out_topic_prompts(lang: str) -> list[Prompt]:
    return [p for p in all_prompts(lang) if p.held_out_topic]


# --------------------------------------------------------------------------------------------- phrases


@dataclass(frozen=True)
class Phrase:
    """One way of saying a sentiment: "not clear at all"."""

    text: str
    value: float
    word: str  # the word inside: "clear"
    word_value: float
    form: str  # plain, negated, intensified, toned, verb
    held_out: bool  # contains starred wording
    word_held_out: bool

    @property
    def is_verb(self) -> bool:
        return self.form == "verb"


def _entries(lang: str, domain: str):
    for value, words in lexicon.WORDS[lang][domain].items():
        for entry in words.split():
            yield (*unstar(entry), value)


def _can_be_negated(lang: str, word: str, value: float) -> bool:
    if abs(value) == LUKEWARM:
        return False
    return lang == "en" or (len(word) <= 2 and not word.startswith("不"))


def _negations(lang: str, word: str, value: float):
    """Pairs of (text, factor, held-out) for all the ways of negating a word."""
    for entry, factor in lexicon.NEGATORS[lang].items():
        negator, held_out = unstar(entry)
        if lang == "en":
            if factor < 1 and abs(value) == STRONG:
                continue  # nobody says "not very horrible"
            yield f"{negator} {word}", factor, held_out
        elif abs(value) < STRONG or negator in ("谈不上", "称不上", "并不", "一点也不", "绝不"):
            yield negator + word, factor, held_out
    if lang == "en":
        yield f"not {word} {lexicon.AT_ALL}", lexicon.AT_ALL_FACTOR, False


@cache
def phrases(lang: str, domain: str) -> tuple[Phrase, ...]:
    """Every way of saying a sentiment with the words of one domain ("any": words that fit every subject)."""
    glue = " " if lang == "en" else ""
    found = []
    for word, word_held_out, value in _entries(lang, domain):

        def add(text, phrase_value, form, held_out=False):
            held_out = held_out or word_held_out
            found.append(Phrase(text, phrase_value, word, value, form, held_out, word_held_out))

        # A bare mild adjective is not a Chinese predicate; 很 makes it one without making it stronger.
        needs_hen = lang == "zh" and abs(value) == MILD and len(word) <= 2 and not word.startswith("不")
        add("很" + word if needs_hen else word, value, "plain")
        if abs(value) == LUKEWARM:
            continue
        if lang == "en" or len(word) <= 2:
            for entry in lexicon.INTENSIFIERS[lang].split("|"):
                adverb, held_out = unstar(entry)
                add(adverb + glue + word, lexicon.intensify(value), "intensified", held_out)
            if abs(value) < STRONG:
                for entry in lexicon.DOWNTONERS[lang][0 if value > 0 else 1].split("|"):
                    adverb, held_out = unstar(entry)
                    add(adverb + glue + word, lexicon.tone_down(value), "toned", held_out)
        if _can_be_negated(lang, word, value):
            for text, factor, held_out in _negations(lang, word, value):
                add(text, lexicon.negate(value, factor), "negated", held_out)
    if domain == "any":
        for value, verbs in lexicon.VERBS[lang].items():
            for entry in verbs.split("|"):
                verb, held_out = unstar(entry)
                found.append(Phrase(verb, value, verb, value, "verb", held_out, held_out))
    return tuple(found)


FORM_WEIGHTS = {"plain": 50, "negated": 25, "intensified": 12, "toned": 9, "verb": 4}
FORMS = tuple(FORM_WEIGHTS)


@cache
def _pool(lang: str, domain: str, wording: str, lo: float, hi: float, forms: tuple[str, ...]):
    """Phrases with lo <= value <= hi, grouped by form.

    wording: "train" (no starred entry), "held_out" (every word starred) or "all".
    """
    by_form = {}
    for phrase in phrases(lang, domain):
        if not lo <= phrase.value <= hi or phrase.form not in forms:
            continue
        if (wording == "train" and phrase.held_out) or (wording == "held_out" and not phrase.word_held_out):
            continue
        by_form.setdefault(phrase.form, []).append(phrase)
    return by_form


class Speaker:
    """Picks phrases for one prompt."""

    def __init__(self, rng: random.Random, prompt: Prompt, wording: str):
        self.rng, self.prompt, self.wording = rng, prompt, wording

    def pick(
        self, lo: float = -9, hi: float = 9, forms: tuple[str, ...] = FORMS, own: bool = False
    ) -> Phrase:
        """own: words of the topic's domain are allowed too; a film may be gripping, but not a battery."""
        domain = self.prompt.domain if own and self.rng.random() < 0.6 else "any"
        by_form = _pool(self.prompt.lang, domain, self.wording, lo, hi, forms) or _pool(
            self.prompt.lang, "any", self.wording, lo, hi, forms
        )
        form = self.rng.choices(list(by_form), [FORM_WEIGHTS[f] for f in by_form])[0]
        return self.rng.choice(by_form[form])

    def word(self, value_sign: int, strength: float | None = None, own: bool = False) -> Phrase:
        """A plain phrase of the given sign whose word can be negated."""
        while True:
            phrase = self.pick(forms=("plain",), own=own)
            if (
                phrase.word_value * value_sign > 0
                and strength in (None, abs(phrase.word_value))
                and _can_be_negated(self.prompt.lang, phrase.word, phrase.word_value)
            ):
                return phrase

    def negations_of(self, phrase: Phrase) -> list[Phrase]:
        domain = "any" if phrase in phrases(self.prompt.lang, "any") else self.prompt.domain
        return [
            p
            for p in phrases(self.prompt.lang, domain)
            if p.word == phrase.word and p.form == "negated" and not (self.wording == "train" and p.held_out)
        ]


# ------------------------------------------------------------------------------------------- sentences


@dataclass(frozen=True)
class Response:
    text: str
    value: float

    @property
    def probability(self) -> float:
        return probability(self.value)


@dataclass(frozen=True)
class Frame:
    """The parts of a response without sentiment: two responses in one frame differ only in their phrases."""

    lang: str
    subject: str  # "" when the prompt is the subject
    second: str  # the aspect that the second clause talks about
    copula: str
    aside: str  # "" or neutral padding
    fact: str
    fact2: str
    fact_follows: bool  # a sentence with one sentiment clause goes on with a fact

    # -- the two languages' clauses

    def _first(self, phrase: Phrase, aside: bool = True) -> str:
        said = self.aside if aside else ""
        if self.lang == "zh":
            return said + self.subject + phrase.text
        predicate = phrase.text if phrase.is_verb else f"{self.copula} {phrase.text}"
        if not self.subject:
            return f" {predicate}" if phrase.is_verb or not said else f" {predicate} {said}"
        return (f" {said}, " if said else " ") + f"{self.subject} {predicate}"

    def _states(self, fact: str) -> str:
        subject = self.subject and IT[self.lang]
        return fact if self.lang == "zh" else f" {subject} {fact}" if subject else f" {fact}"

    def _second(self, phrase: Phrase, also: bool = False) -> str:
        if self.lang == "zh":
            return self.second + ("也" if also else "") + phrase.text
        return f"{self.second} {phrase.text if phrase.is_verb else f'{self.copula} {phrase.text}'}"

    def _join(self, en: str, zh: str) -> str:
        return en + "." if self.lang == "en" else zh + "。"

    # -- the sentence patterns

    def single(self, p: Phrase) -> Response:
        first = self._first(p)
        if self.fact_follows or p.is_verb:
            return Response(self._join(f"{first}, and it {self.fact}", f"{first}，{self.fact}"), p.value)
        return Response(self._join(first, first), p.value)

    def neutral(self) -> Response:
        states = self._states(self.fact)
        return Response(self._join(f"{states} and {self.fact2}", f"{states}，{self.fact2}"), 0.0)

    def after_fact(self, p: Phrase) -> Response:
        states, second = self._states(self.fact), self._second(p)
        return Response(self._join(f"{states}, and {second}", f"{states}，{second}"), p.value)

    def both(self, p: Phrase, q: Phrase) -> Response:
        first, second = self._first(p), self._second(q, also=True)
        return Response(
            self._join(f"{first}, and {second}", f"{first}，{second}"), combine([p.value, q.value], [])
        )

    def but(self, p: Phrase, q: Phrase) -> Response:
        first = self._first(p)
        return Response(
            self._join(f"{first}, but {self._second(q)}", f"{first}，但是{self._second(q)}"),
            combine([q.value], [p.value]),
        )

    def at_first(self, p: Phrase, q: Phrase) -> Response:
        first = self._first(p, aside=False)
        end = q.text if self.lang == "zh" or q.is_verb else f"{self.copula} {q.text}"
        zh_first = f"{self.subject}起初{p.text}"
        return Response(
            self._join(f"{first} at first, but {end} in the end", f"{zh_first}，不过最后{end}"),
            combine([q.value], [p.value]),
        )

    def although(self, p: Phrase, q: Phrase) -> Response:
        """p is conceded, q counts. Held-out wording."""
        conceded = self._second(p)
        zh = f"尽管{conceded}，{self.subject or IT['zh']}{q.text}"
        return Response(
            self._join(f"{self._first(q)}, although {conceded}", zh), combine([q.value], [p.value])
        )

    def rather_than(self, p: Phrase, q: Phrase) -> Response:
        """ "quick, not slow": p and q are plain phrases of opposite sign."""
        first = self._first(p, aside=False)
        if self.lang == "en" and self.aside and not self.subject:
            tail = f" {self.aside}"
        else:
            tail = ""
        denied = lexicon.negate(q.word_value)
        zh = f"{self.aside}{self.subject}{p.word}，并不{q.word}"
        return Response(self._join(f"{first}, not {q.word}{tail}", zh), combine([p.value, denied], []))


def draw_frame(rng: random.Random, prompt: Prompt) -> Frame:
    domain = DOMAINS[prompt.lang][prompt.domain]
    first, second = rng.sample(domain.aspects, 2)
    fact, fact2 = rng.sample(domain.facts, 2)
    the = "the " if prompt.lang == "en" else ""
    subject = ""
    if not prompt.is_subject:
        subject = IT[prompt.lang] if rng.random() < 0.4 else the + first
    aside = rng.choice(ASIDES[prompt.lang]) if rng.random() < 0.6 else ""
    return Frame(
        lang=prompt.lang,
        subject=subject,
        second=the + second,
        copula=domain.copula,
        aside=aside,
        fact=fact,
        fact2=fact2,
        fact_follows=not aside or rng.random() < 0.5,
    )


PATTERNS = {
    "single": 20,
    "after_fact": 15,
    "both": 25,
    "but": 15,
    "at_first": 10,
    "rather_than": 5,
    "although": 10,
}


def draw_response(
    rng: random.Random, prompt: Prompt, wording: str, lo: float = -9, hi: float = 9
) -> Response:
    """A response whose value lies in [lo, hi]; phrases of both signs, any pattern that the wording allows."""
    patterns = dict(PATTERNS)
    if wording == "train":
        del patterns["although"]
    speaker = Speaker(rng, prompt, wording)
    while True:
        frame = draw_frame(rng, prompt)
        own = frame.subject in ("", IT[prompt.lang])
        pattern = rng.choices(list(patterns), list(patterns.values()))[0]
        if pattern == "single":
            response = frame.single(speaker.pick(lo, hi, own=own))
        elif pattern == "after_fact":
            response = frame.after_fact(speaker.pick(lo, hi))
        elif pattern == "rather_than":
            sign = rng.choice((1, -1))
            response = frame.rather_than(speaker.word(sign, own=own), speaker.word(-sign))
        else:
            p, q = speaker.pick(own=own), speaker.pick()
            if p.word == q.word or (pattern == "both") != (p.value * q.value > 0):
                continue  # "and" joins clauses that agree, "but" clauses that disagree
            response = getattr(frame, pattern)(p, q)
        if lo <= response.value <= hi:
            return response


# -------------------------------------------------------------------------------------- demonstrations

# What people wrote when asked to go on kindly: (share, lowest value, highest value). Only one in ten is
# enthusiastic and some grumble, so a policy that imitates them is lukewarm and PPO has something to gain.
DEMONSTRATIONS = (
    (0.14, None, None),  # facts only
    (0.34, 0.1, 0.7),
    (0.24, 0.7, 1.6),
    (0.10, 1.6, 9.0),
    (0.18, -0.8, -0.1),
)


def demonstrations(rng: random.Random, prompts: list[Prompt], n: int, wording: str) -> list[dict]:
    """n rows (prompt, response, lang): the prompts in turn, the kinds of demonstration in their shares."""
    kinds = [kind for kind in DEMONSTRATIONS for _ in range(round(kind[0] * n))]
    kinds = (kinds + [DEMONSTRATIONS[0]] * n)[:n]
    rng.shuffle(kinds)
    order = rng.sample(prompts, len(prompts))
    rows, seen = [], set()
    for index, (_, lo, hi) in enumerate(kinds):
        prompt = order[index % len(order)]
        while True:
            if lo is None:
                response = draw_frame(rng, prompt).neutral()
            else:
                response = draw_response(rng, prompt, wording, lo, hi)
            if (prompt.text, response.text) not in seen:
                break
        seen.add((prompt.text, response.text))
        rows.append({"prompt": prompt.text, "response": response.text, "lang": prompt.lang})
    return rows


# ------------------------------------------------------------------------------------ preference pairs


def _plain(speaker: Speaker, frame: Frame, other: Frame, own: bool):
    good = speaker.pick(LUKEWARM, 9, ("plain", "verb"), own)
    bad = speaker.pick(-9, -LUKEWARM, ("plain", "verb"), own)
    if speaker.rng.random() < 0.5:
        return frame.single(good), other.single(bad)
    good2 = speaker.pick(LUKEWARM, 9, ("plain", "verb"))
    bad2 = speaker.pick(-9, -LUKEWARM, ("plain", "verb"))
    if good.word == good2.word or bad.word == bad2.word:
        return None
    return frame.both(good, good2), other.both(bad, bad2)


def _negation(speaker: Speaker, frame: Frame, other: Frame, own: bool):
    """The same word said and denied."""
    said = speaker.word(speaker.rng.choice((1, -1)), own=own)
    denied = speaker.rng.choice(speaker.negations_of(said))
    good, bad = (said, denied) if said.value > denied.value else (denied, said)
    pattern = speaker.rng.choice(("single", "after_fact"))
    if pattern == "after_fact" and said.word not in {p.word for p in phrases(speaker.prompt.lang, "any")}:
        pattern = "single"
    return getattr(frame, pattern)(good), getattr(other, pattern)(bad)


def _negated_other(speaker: Speaker, frame: Frame, other: Frame, own: bool):
    """Faint praise against strong praise denied, or a fault denied against faint blame: the words mislead."""
    if speaker.rng.random() < 0.5:
        good = speaker.pick(0.3, 1.6, ("plain", "toned"), own)
        bad = speaker.rng.choice(speaker.negations_of(speaker.word(1, STRONG, own)))
    else:
        good = speaker.rng.choice(speaker.negations_of(speaker.word(-1, None, own)))
        bad = speaker.pick(-1.6, -0.3, ("plain", "toned"), own)
    return frame.single(good), other.single(bad)


def _strength(speaker: Speaker, frame: Frame, other: Frame, own: bool):
    """Both praise or both blame; one of them strongly."""
    forms = ("plain", "intensified", "toned", "verb")
    if speaker.rng.random() < 0.7:
        good, bad = speaker.pick(2.5, 9, forms, own), speaker.pick(0.3, 1.1, forms, own)
    else:
        good, bad = speaker.pick(-1.1, -0.3, forms, own), speaker.pick(-9, -2.5, forms, own)
    return frame.single(good), other.single(bad)


def _mixed(speaker: Speaker, frame: Frame, other: Frame, own: bool):
    """The same two clauses; the one after "but" (or outside "although") decides."""
    good, bad = speaker.pick(0.7, 9), speaker.pick(-9, -0.7)
    if good.word == bad.word:
        return None
    patterns = ("but", "at_first", "although") if speaker.wording == "held_out" else ("but", "at_first")
    pattern = speaker.rng.choice(patterns)
    return getattr(frame, pattern)(bad, good), getattr(frame, pattern)(good, bad)


def _same_words(speaker: Speaker, frame: Frame, other: Frame, own: bool):
    """The same words; what is denied decides: "quick, not slow" against "slow, not quick"."""
    good, bad = speaker.word(1, MILD), speaker.word(-1, MILD)
    if speaker.rng.random() < 0.5:
        return frame.rather_than(good, bad), frame.rather_than(bad, good)
    not_bad, not_good = speaker.negations_of(bad), speaker.negations_of(good)
    index = speaker.rng.randrange(len(not_bad))
    return frame.both(good, not_bad[index]), frame.both(bad, not_good[index])


PHENOMENA = {
    "plain": (_plain, 0.22),
    "negation": (_negation, 0.22),
    "negated_other": (_negated_other, 0.13),
    "strength": (_strength, 0.20),
    "mixed": (_mixed, 0.14),
    "same_words": (_same_words, 0.09),
}


@dataclass(frozen=True)
class Pair:
    prompt: Prompt
    chosen: Response
    rejected: Response
    phenomenon: str


def draw_pair(rng: random.Random, prompt: Prompt, wording: str, phenomenon: str) -> Pair:
    """A pair whose chosen response is better by MARGIN or more."""
    build = PHENOMENA[phenomenon][0]
    while True:
        frame, other = draw_frame(rng, prompt), draw_frame(rng, prompt)
        own = all(f.subject in ("", IT[prompt.lang]) for f in (frame, other))
        built = build(Speaker(rng, prompt, wording), frame, other, own)
        if built is None:
            continue
        chosen, rejected = built
        if chosen.probability - rejected.probability >= MARGIN:
            return Pair(prompt, chosen, rejected, phenomenon)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


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
        tallies = [tally + sign for tally, sign in zip(self.tallies, signs)]
        if any(abs(new) > max(1, abs(old)) for new, old in zip(tallies, self.tallies)):
            return False
        self.tallies = tallies
        return True


def pairs(
    rng: random.Random, prompts: list[Prompt], n: int, wording: str, count_tokens: CountTokens, taken: set
) -> list[Pair]:
    """n different pairs, none of them in `taken`, the phenomena in their shares, balanced in length."""
    kinds = [name for name, (_, share) in PHENOMENA.items() for _ in range(round(share * n))]
    kinds = (kinds + ["plain"] * n)[:n]
    rng.shuffle(kinds)
    balance = Balance(count_tokens)
    found = []
    for kind in kinds:
        while True:
            pair = draw_pair(rng, rng.choice(prompts), wording, kind)
            key = (pair.prompt.text, pair.chosen.text, pair.rejected.text)
            if key not in taken and balance.admits(pair):
                break
        taken.add(key)
        found.append(pair)
    return found


def _pair_row(pair: Pair, **columns) -> dict:
    return {
        "prompt": pair.prompt.text,
        "chosen": pair.chosen.text,
        "rejected": pair.rejected.text,
        "lang": pair.prompt.lang,
        **columns,
    }


# ------------------------------------------------------------------------------------ pretraining text

STARS = ((-9.0, -2.0), (-2.0, -0.5), (-0.5, 0.5), (0.5, 2.0), (2.0, 9.0))  # values of 1 to 5 stars
SYNONYMS_SHARE = 0.1  # of the lines


def _capital(text: str) -> str:
    text = text.strip()
    return text[0].upper() + text[1:]


def _review(rng: random.Random, lang: str) -> str:
    """One line: one to three sentences of one mind, most with stars behind each, as on a page of reviews."""
    stars = rng.randrange(5)
    prompt = rng.choice(all_prompts(lang))
    follow_up = replace(prompt, is_subject=False)
    neutral = stars == 2 and rng.random() < 0.3
    first = draw_frame(rng, prompt).neutral() if neutral else draw_response(rng, prompt, "all", *STARS[stars])
    sentences = [prompt.text + first.text]
    for _ in range(rng.choice((0, 1, 1, 2))):
        sentences.append(_capital(draw_response(rng, follow_up, "all", *STARS[stars]).text))
    if rng.random() < 0.85:
        sentences = [f"{sentence} {'★' * (stars + 1)}" for sentence in sentences]
    return (" " if lang == "en" else "").join(sentences)


def _synonyms(rng: random.Random, lang: str) -> str:
    """One line of a thesaurus: words of one strength, general ones and those of one domain."""
    domain = rng.choice(list(DOMAINS[lang]))
    value = rng.choice(list(lexicon.WORDS[lang][domain]))
    entries = lexicon.WORDS[lang]["any"][value].split() + lexicon.WORDS[lang][domain].get(value, "").split()
    words = [unstar(entry)[0] for entry in entries]
    words = rng.sample(words, min(len(words), rng.randint(3, 6)))
    return f"Synonyms: {', '.join(words)}." if lang == "en" else f"近义词：{'、'.join(words)}。"


def pretraining_text(n_lines: int, seed: int) -> str:
    """Reviews of every topic in every wording and of every opinion, and some synonyms; one a line."""
    rng = random.Random(seed)
    lines = []
    for _ in range(n_lines):
        kind = _synonyms if rng.random() < SYNONYMS_SHARE else _review
        lines.append(kind(rng, rng.choice(LANGUAGES)) + "\n")
    return "".join(lines)


# ----------------------------------------------------------------------------------------------- files


def build(count_tokens: CountTokens, seed: int = SEED) -> dict[str, list[dict]]:
    """The six files of the toy corpus as {name: rows}; `count_tokens` balances the pairs' lengths."""
    files = {name: [] for name in FILES}
    for lang in LANGUAGES:
        rng = random.Random(f"{seed} {lang}")  # seeded by a string: stable across machines, unlike hash()
        known, new = training_prompts(lang), held_out_topic_prompts(lang)
        files["sft_train"] += demonstrations(rng, known, 240, "train")
        files["sft_heldout"] += demonstrations(rng, new, 60, "all")
        taken = set()
        files["pairs_train"] += [
            _pair_row(p, phenomenon=p.phenomenon)
            for p in pairs(rng, known, 900, "train", count_tokens, taken)
        ]
        for held_out, prompts, wording in (
            ("topic", new, "train"),
            ("wording", known, "held_out"),
            ("both", new, "held_out"),
        ):
            files["pairs_heldout"] += [
                _pair_row(p, held_out=held_out, phenomenon=p.phenomenon)
                for p in pairs(rng, prompts, 66, wording, count_tokens, taken)
            ]
        files["prompts_train"] += [{"prompt": p.text, "lang": lang} for p in known]
        files["prompts_heldout"] += [{"prompt": p.text, "lang": lang} for p in new]
    for name in ("sft_train", "pairs_train", "prompts_train"):
        random.Random(f"{seed} {name}").shuffle(files[name])  # the languages side by side in every batch
    return files


def to_jsonl(rows: list[dict]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def tiny_token_counter() -> CountTokens:
    """Counts tokens as the shipped `tiny` does, whose tokenizer depends on `pretraining_text` alone."""
    from tokenizers import Tokenizer

    from ..backbones import TINY

    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text).ids)


def main() -> None:
    """Write the six files."""
    TOY_FOLDER.mkdir(exist_ok=True)
    for name, rows in build(tiny_token_counter()).items():
        path = TOY_FOLDER / f"{name}.jsonl"
        path.write_text(to_jsonl(rows), encoding="utf-8", newline="\n")
        print(f"{path}: {len(rows)} rows")


if __name__ == "__main__":
    main()
