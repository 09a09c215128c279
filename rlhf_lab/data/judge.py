"""The toy corpus's own ground truth: reads any text with the corpus's lexicon and says how positive it is.

    ToyJudge()([" is not reliable at all.", "屏幕惊艳。"])  ->  [0.14, 0.95]

The rules, in the order in which they apply:

1. A text is cut into units: English words, Chinese lexicon entries (longest match from the left), other
   Chinese characters one by one, punctuation. Upper and lower case are the same.
2. Punctuation and "and" end a clause. Inside a clause, a degree adverb acts on the sentiment word right after
   it and a negator on the next sentiment word, with at most two other units between; "at all" after a denied
   word sharpens it.
3. Each sentiment phrase (a word, said or denied) counts once in a text, however often it is repeated.
4. Clauses before "but" in a sentence, and a clause under "although", are background. A sentence is worth the
   mean of its other clauses plus 0.4 of the mean of the background (`lexicon.combine`). A text is worth the
   mean of its sentences that say anything. Nothing said is worth 0, probability 0.5.
5. Praise must come in sentences. When sentiment words make up more than 75 % of the text (a salad of praise),
   or fewer than 60 % of its neighbouring pairs of units are different (a stuck record), a positive value is
   divided by 10. Blame is not excused.

Since values are means, no pile of praise scores above its best single sentence.
"""

import re

from . import lexicon

_UNIT = re.compile(r"[a-z]+(?:['-][a-z]+)*|[\u4e00-\u9fff]+|[.!?。！？]|[,;:，；：、]|\d+")
_LONGEST_ZH = 8
_LONGEST_EN = 4  # words
_REACH = 2  # units that may stand between a negator and its word
_SALAD, _STUCK, _FINE = 0.75, 0.6, 0.1


def _read_lexicon() -> dict[str, tuple[str, float]]:
    """Entry -> (kind, number) for all wording of both languages."""
    table = {}
    for lang, domains in lexicon.WORDS.items():
        for words_by_value in domains.values():
            for value, words in words_by_value.items():
                for entry in words.split():
                    table[lexicon.unstar(entry)[0]] = ("word", value)
        for value, verbs in lexicon.VERBS[lang].items():
            for entry in verbs.split("|"):
                table[lexicon.unstar(entry)[0]] = ("predicate", value)
        for entry, factor in lexicon.NEGATORS[lang].items():
            table[lexicon.unstar(entry)[0]] = ("negator", factor)
        for entry in lexicon.INTENSIFIERS[lang].split("|"):
            table[lexicon.unstar(entry)[0]] = ("intensifier", 0.0)
        for list_of_adverbs in lexicon.DOWNTONERS[lang]:
            for entry in list_of_adverbs.split("|"):
                table[lexicon.unstar(entry)[0]] = ("downtoner", 0.0)
        for entry in lexicon.BUT[lang]:
            table[entry] = ("but", 0.0)
        for entry in lexicon.ALTHOUGH[lang]:
            table[entry] = ("although", 0.0)
    table[lexicon.AT_ALL] = ("at_all", 0.0)
    table["and"] = ("clause_end", 0.0)
    table.update(dict.fromkeys(",;:，；：、", ("clause_end", 0.0)))
    table.update(dict.fromkeys(".!?。！？", ("sentence_end", 0.0)))
    return table


_TABLE = _read_lexicon()
_OTHER = ("other", 0.0)


def _units(text: str) -> list[tuple[str, str, float]]:
    """(text, kind, number) for every unit."""
    raw = _UNIT.findall(text.lower())
    units, at = [], 0
    while at < len(raw):
        piece = raw[at]
        if "\u4e00" <= piece[0] <= "\u9fff":
            start = 0
            while start < len(piece):
                for length in range(min(_LONGEST_ZH, len(piece) - start), 0, -1):
                    entry = piece[start : start + length]
                    if entry in _TABLE or length == 1:
                        units.append((entry, *_TABLE.get(entry, _OTHER)))
                        start += length
                        break
            at += 1
            continue
        for length in range(min(_LONGEST_EN, len(raw) - at), 0, -1):
            entry = " ".join(raw[at : at + length])
            if entry in _TABLE or length == 1:
                units.append((entry, *_TABLE.get(entry, _OTHER)))
                at += length
                break
    return units


class _Reader:
    """Walks through the units of one text and collects the values of its sentences."""

    def __init__(self):
        self.sentences = []
        self.said = set()
        self._start_sentence()

    def _start_sentence(self):
        self.background, self.main = [], []
        self._start_clause()

    def _start_clause(self):
        self.clause, self.conceded = [], False
        self._forget()

    def _forget(self):
        self.negator, self.distance, self.adverb, self.last_denied = None, 0, None, None

    def _end_clause(self):
        if self.clause:
            value = sum(self.clause) / len(self.clause)
            (self.background if self.conceded else self.main).append(value)
        self._start_clause()

    def _end_sentence(self):
        self._end_clause()
        if self.main or self.background:
            self.sentences.append(lexicon.combine(self.main, self.background))
        self._start_sentence()

    def _take_word(self, word: str, value: float):
        denied = self.negator is not None
        if denied:
            value = lexicon.negate(value, self.negator)
        elif self.adverb == "intensifier":
            value = lexicon.intensify(value)
        elif self.adverb == "downtoner":
            value = lexicon.tone_down(value)
        self._forget()
        if (word, denied) in self.said:
            return
        self.said.add((word, denied))
        self.clause.append(value)
        self.last_denied = value if denied else None

    def read(self, units) -> float:
        for text, kind, number in units:
            if kind in ("word", "predicate"):
                self._take_word(text, number)
            elif kind == "negator":
                self._forget()
                self.negator = number
            elif kind in ("intensifier", "downtoner"):
                self.adverb = kind
            elif kind == "at_all":
                if self.last_denied is not None:
                    self.clause[-1] = self.last_denied * lexicon.AT_ALL_FACTOR
                    self.last_denied = None
            elif kind == "clause_end":
                self._end_clause()
            elif kind == "sentence_end":
                self._end_sentence()
            elif kind == "but":
                self._end_clause()
                self.background, self.main = self.background + self.main, []
            elif kind == "although":
                self._end_clause()
                self.conceded = True
            else:
                self.adverb, self.last_denied = None, None
                self.distance += 1
                if self.distance > _REACH:
                    self.negator = None
        self._end_sentence()
        return sum(self.sentences) / len(self.sentences) if self.sentences else 0.0


def _is_degenerate(units) -> bool:
    """A salad of sentiment words, or the same few units over and over."""
    units = [(text, kind) for text, kind, _ in units if not kind.endswith("_end")]
    length = [len(text) if "\u4e00" <= text[0] <= "\u9fff" else 1 for text, _ in units]
    sentiment = sum(n for n, (_, kind) in zip(length, units) if kind == "word")
    neighbours = list(zip(units, units[1:]))
    return sentiment > _SALAD * sum(length) or (
        len(neighbours) >= 5 and len(set(neighbours)) < _STUCK * len(neighbours)
    )


def judge_value(text: str) -> float:
    """The value of a text in log-odds of being positive."""
    units = _units(text)
    value = _Reader().read(units)
    return value * _FINE if value > 0 and _is_degenerate(units) else value


def polarity_count(text: str) -> int:
    """Positive minus negative words, blind to negation, degree and order: what the judge is not."""
    values = [number for _, kind, number in _units(text) if kind in ("word", "predicate")]
    return sum(1 if value > 0 else -1 for value in values)


class ToyJudge:
    """A text scorer: list of texts -> list of probabilities of being positive, by the rules above."""

    def __call__(self, texts: list[str]) -> list[float]:
        return [lexicon.probability(judge_value(text)) for text in texts]
