"""The seeded generator of the toy corpus: `python -m rlhf_lab build-toy` writes the files under `data/toy/`.

A response is one sentence about the prompt's topic, made of clauses whose sentiment values are known, so
every sentence carries its ground truth: a value in log-odds (see `data/lexicon.py`). Five things keep it from
being solved by counting words: negation ("not reliable at all", "never boring"), mild against strong, adverbs
of degree, sentences whose two clauses disagree ("slow at first, but superb in the end"), and neutral facts.

Held out are topics (the last two of every domain), prompt wordings (the last of each kind), and wording: the
starred entries of the lexicon and the "although" sentence. The pretraining text of the backbone `tiny` uses
everything.

Only `random.Random(seed)` decides, so the same seed gives the same files on every machine. The order in which
the random numbers are drawn is therefore part of the format: who reorders two draws writes another corpus.

From the small to the large:

| module | holds |
|---|---|
| `prompts` | every topic in every wording |
| `phrases` | every way of saying a sentiment, with its value: "not clear at all" |
| `speaker` | picks phrases for one prompt |
| `frames` | the parts of a sentence without sentiment, and the two languages' clauses |
| `sentences` | the sentence patterns, with the value of each |
| `shares` | how many of each kind |
| `demonstrations`, `pairs`, `pretraining` | the three kinds of text made of them |
| `files` | the six JSONL files |
"""
