"""Human feedback: what becomes of the rated snippets, and of a machine that cannot fetch them."""

import hashlib
import io
import subprocess
import sys
import tarfile

import pytest

from rlhf_lab import environment
from rlhf_lab.data import length_only_accuracy, load_data, ratings
from rlhf_lab.errors import LabError

FILMS = "1_1\t1.5\tA ''warm''  film , \n1_2\t-2.0\tDull.\n"
FILM_RATINGS = "1_1\t1.5\t0.5\t[1, 2]\n1_2\t-2.0\t0.0\t[-2, -2, -2]\n"
PRODUCTS = "7\t0.0\tIt is\ta phone\n"
PRODUCT_RATINGS = "7\t0.0\t1.0\t[-1, 1] \n"


def tar(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def small_archive() -> bytes:
    """A source distribution with three snippets, written as the real one is: a mark of order, two characters a line end."""
    texts = {
        "movieReviewSnippets_GroundTruth": FILMS,
        "movieReviewSnippets_anonDataRatings": FILM_RATINGS,
        "amazonReviewSnippets_GroundTruth": PRODUCTS,
        "amazonReviewSnippets_anonDataRatings": PRODUCT_RATINGS,
    }
    inner = tar(
        {
            f"hutto_ICWSM_2014/{name}.txt": text.replace("\n", "\r\n").encode("utf-8-sig")
            for name, text in texts.items()
        }
    )
    return tar({ratings.RATINGS: inner})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def data():
    """The real snippets; the only test of what cannot be had without a network."""
    try:
        return load_data("ratings")
    except LabError as error:
        pytest.skip(str(error))


def test_texts_and_raters_are_joined_by_their_number():
    warm, dull, phone = ratings.read_snippets(small_archive())
    assert (warm.kind, warm.text, warm.ratings, warm.mean) == ("film", 'A "warm" film ,', (1, 2), 1.5)
    assert (dull.kind, dull.ratings) == ("film", (-2, -2, -2))
    assert (phone.kind, phone.text, phone.ratings) == ("product", "It is a phone", (-1, 1))


def test_prompt_and_response_make_the_text():
    snippet = ratings.Snippet("film", "A warm film about bread .", (1,))
    assert snippet.prompt + snippet.response == "A film review: A warm film about bread ."
    assert snippet.prompt.endswith(" A warm")


@pytest.mark.parametrize(
    "chosen, rejected, share",
    [
        ([3, 3], [1, 2], 1.0),
        ([1, 2], [3, 3], 0.0),
        ([1], [1, 1, 1], 0.5),
        ([0, 2], [1, 1], 0.5),
        ([2, 2, 0], [1, 2], (1 + 0.5 + 1 + 0.5) / 6),
    ],
)
def test_the_share_counts_every_pair_of_raters_and_a_tie_half(chosen, rejected, share):
    assert ratings.share_that_prefers(chosen, rejected) == pytest.approx(share)
    assert ratings.share_that_prefers(rejected, chosen) == pytest.approx(1 - share)


def test_nothing_of_a_held_out_snippet_is_trained_on(data):
    def texts(split):
        pairs = getattr(data, f"pairs_{split}")
        demonstrations = getattr(data, f"sft_{split}")
        of_pairs = {
            p + r for column in ("chosen", "rejected") for p, r in zip(pairs["prompt"], pairs[column])
        }
        return of_pairs | {p + r for p, r in zip(demonstrations["prompt"], demonstrations["response"])}

    assert len(texts("train") & texts("heldout")) == 0
    assert not set(data.prompts_heldout["prompt"]) & set(data.prompts_train["prompt"])


def test_the_better_rated_snippet_is_chosen_and_length_does_not_tell(data):
    for pairs in (data.pairs_train, data.pairs_heldout):
        by_margin = {}
        for row in pairs:
            by_margin.setdefault(row["margin"], []).append(row["share"])
        means = [sum(shares) / len(shares) for _, shares in sorted(by_margin.items())]
        assert list(sorted(by_margin)) == ["0.5 to 1", "1 to 2", "2 and more"]
        assert 0.55 < means[0] < means[1] < means[2] < 1.0
        assert 0.45 < length_only_accuracy(pairs) < 0.55
    assert [len(data.pairs_train), len(data.pairs_heldout), len(data.sft_train)] == [2400, 600, 1200]


def test_it_is_the_same_each_time(data):
    again = load_data("ratings")
    assert again.pairs_train.to_list() == data.pairs_train.to_list()
    assert again.prompts_heldout.to_list() == data.prompts_heldout.to_list()


def test_without_an_index_it_is_one_sentence_and_nothing_is_left_behind(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(LabError, match="cannot be fetched with pip now .*fetch-ratings") as caught:
        load_data("ratings")
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


def test_another_file_of_that_name_is_refused(cache):
    cache.mkdir()
    (cache / ratings.ARCHIVE).write_bytes(small_archive())
    with pytest.raises(LabError, match="is not the .* that this course knows"):
        load_data("ratings")


def test_what_is_in_the_cache_is_not_fetched_again(cache, monkeypatch):
    cache.mkdir()
    (cache / ratings.ARCHIVE).write_bytes(small_archive())
    monkeypatch.setattr(ratings, "SHA256", hashlib.sha256(small_archive()).hexdigest())
    monkeypatch.setattr(ratings.subprocess, "run", lambda *_, **__: pytest.fail("pip was called"))
    ratings.fetch()


def test_half_an_archive_in_the_cache_is_said_when_it_is_fetched(cache):
    cache.mkdir()
    (cache / ratings.ARCHIVE).write_bytes(small_archive()[:100])
    with pytest.raises(LabError, match="its SHA-256 differs.: delete it"):
        ratings.fetch()


def test_a_cache_that_cannot_be_used_is_one_sentence(cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(LabError, match="the cache .* cannot be used .*RLHF_LAB_CACHE"):
        ratings.fetch()


def test_set_up_goes_on_without_it(cache, monkeypatch, capfd):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(environment, "venv_python", lambda: sys.executable)
    environment._fetch_ratings()
    assert "cannot be fetched with pip now" in capfd.readouterr().err


def test_the_command_says_what_is_in_it(data):
    command = [sys.executable, "-m", "rlhf_lab", "data", "ratings"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.startswith("ratings: sft_train 1200") and "by length alone" in told
