"""Sets of the hub, read from files in the hub's own format that the tests write: parsing, counting, a whole run."""

import gzip
import json
import os
import shutil
from collections import Counter

import datasets
import pytest

from rlhf_lab.backbones import TINY, load_tokenizer
from rlhf_lab.cli import main
from rlhf_lab.data import baselines, dialogues, load_data
from rlhf_lab.data.dialogues import EMPTY, GO_ON, NO_TURN, SAME, pairs_of
from rlhf_lab.errors import LabError
from rlhf_lab.runs import read_json
from rlhf_lab.settings import Settings

COMMIT = 40 * "b"  # any name of a snapshot does

OPENING = "\n\nHuman: How was the film?\n\nAssistant:"
LONGER = OPENING + " It was slow.\n\nHuman: And the ending?\n\nAssistant:"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """The library keeps a copy of what it has read: not in the home folder of who runs the tests."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


# -- two dialogues become a prompt and two answers


def only_pair(chosen, rejected):
    (pair,), dropped = pairs_of([(chosen, rejected)])
    assert not dropped
    return pair["prompt"], pair["chosen"], pair["rejected"]


def test_the_prompt_ends_behind_the_last_shared_turn_of_the_assistant():
    assert only_pair(OPENING + " Good.", OPENING + " Bad.") == (OPENING, " Good.", " Bad.")
    assert only_pair(LONGER + " Good.", LONGER + " Bad.") == (LONGER, " Good.", " Bad.")


def test_answers_that_begin_alike_are_left_whole():
    assert only_pair(OPENING + " It was good.", OPENING + " It was") == (OPENING, " It was good.", " It was")


def test_white_space_becomes_the_course_s_one_leading_space():
    assert only_pair(OPENING + "Good.", OPENING + "  Bad. \n\n") == (OPENING, " Good.", " Bad.")
    assert only_pair(OPENING + " a\n\n b\n", OPENING + " c") == (OPENING, " a\n\n b", " c")


def test_a_speaker_s_name_inside_an_answer_is_text():
    answer = " They print Human: and Assistant: before a line.\nHuman: like this"
    assert only_pair(OPENING + answer, OPENING + " Bad.") == (OPENING, answer, " Bad.")


@pytest.mark.parametrize(
    "chosen, rejected, reason",
    [
        (OPENING + " Good.\n\nHuman: Why?\n\nAssistant: So.", OPENING + " Bad.\n\nHuman: Why?\n\nAssistant: So.", GO_ON),
        (OPENING + " Good.", OPENING + " Bad.\n\nHuman: Why?\n\nAssistant: Because.", GO_ON),
        (OPENING + " Good.\n\nHuman: Thanks", OPENING + " Good.\n\nHuman: Thank you", GO_ON),
        (OPENING + " Good.", OPENING + " Bad.\n\nAssistant: Or not.", GO_ON),
        (OPENING + " Good.", OPENING, EMPTY),
        (OPENING + " \n", OPENING + " Bad.", EMPTY),
        (OPENING + " Good.", OPENING + " Good.", SAME),
        (OPENING + " Good.", OPENING + " Good. \n", SAME),
        ("\n\nHuman: How was the film?", "\n\nHuman: How was it?", NO_TURN),
        ("", OPENING + " Bad.", NO_TURN),
        ("\n\nHuman: A\n\nAssistant: Good.", "\n\nHuman: B\n\nAssistant: Bad.", NO_TURN),
        ("How was it? Assistant: Good.", "How was it? Assistant: Bad.", NO_TURN),
    ],
)  # fmt: skip
def test_a_row_without_one_prompt_and_two_answers_is_dropped_with_its_reason(chosen, rejected, reason):
    assert pairs_of([(chosen, rejected)]) == ([], Counter({reason: 1}))


# -- files in the hub's own formats

ODD = [
    {"chosen": OPENING + " Good.", "rejected": OPENING + " Good."},
    {"chosen": OPENING + " Good.", "rejected": OPENING + " "},
    {"chosen": OPENING + " Good.\n\nHuman: Why?", "rejected": OPENING + " Bad.\n\nHuman: Why?"},
    {"chosen": "", "rejected": OPENING + " Bad."},
]


def whole(n, opening=OPENING):
    return [{"chosen": f"{opening} Good {i}.", "rejected": f"{opening} Bad {i}."} for i in range(n)]


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "wt", encoding="utf-8") as file:
        file.writelines(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def hh(tmp_path):
    """A folder like that of Anthropic/hh-rlhf: gzipped JSON lines in folders, and transcripts of another kind."""
    folder = tmp_path / "hh"
    write_jsonl(folder / "harmless-base" / "train.jsonl.gz", whole(20) + ODD)
    write_jsonl(folder / "helpful-base" / "train.jsonl.gz", whole(16, LONGER))
    write_jsonl(
        folder / "harmless-base" / "test.jsonl.gz", whole(3, OPENING.replace("film", "book")) + ODD[:1]
    )
    write_jsonl(folder / "helpful-base" / "test.jsonl.gz", whole(2, LONGER.replace("film", "book")))
    write_jsonl(folder / "red-team-attempts" / "red_team_attempts.jsonl.gz", [{"transcript": "no pair"}])
    return folder


@pytest.fixture
def rm_static(tmp_path):
    """A folder like that of Dahoas/rm-static: parquet, the prompt apart, `response` a copy of `chosen`."""
    folder = tmp_path / "rm"
    (folder / "data").mkdir(parents=True)
    for split, n in (("train", 12), ("test", 4)):
        rows = [{"prompt": LONGER, "response": f" Good {i}.", "chosen": f" Good {i}.", "rejected": f" {split} {i}."}
                for i in range(n)]  # fmt: skip
        rows.append({"prompt": OPENING, "response": "", "chosen": "", "rejected": " Bad."})
        path = folder / "data" / f"{split}-00000-of-00001-0123456789abcdef.parquet"
        datasets.Dataset.from_list(rows).to_parquet(path)
    return folder


def test_hh_rlhf_is_read_from_gzipped_json_lines_and_counted(hh, capsys):
    data = load_data(f"hh-rlhf:{hh}")
    assert data.name == f"hh-rlhf:{hh}"
    assert len(data.pairs_train) == 36 and len(data.pairs_heldout) == 5
    assert data.pairs_train[0] == {"prompt": OPENING, "chosen": " Good 0.", "rejected": " Bad 0."}
    assert data.sft_train[0] == {"prompt": OPENING, "response": " Good 0."}
    assert data.prompts_train.to_list() == [{"prompt": OPENING}, {"prompt": LONGER}]
    assert {"film", "book"} == {
        word
        for rows in (data.pairs_train, data.pairs_heldout)
        for word in ("film", "book")
        if word in rows[0]["prompt"]
    }
    train, test = capsys.readouterr().out.splitlines()
    assert train.endswith(
        "train: 40 of 40 dialogues drawn, 36 pairs, dropped: 1 that go on behind the answer, 1 with an empty answer, "
        "1 with the same answer twice, 1 without a shared turn of the assistant"
    )
    assert test.endswith("test: 6 of 6 dialogues drawn, 5 pairs, dropped: 1 with the same answer twice")


def test_held_out_rows_are_the_hub_s_test_files(hh):
    data = load_data(f"hh-rlhf:{hh}")
    for kind in ("sft", "pairs", "prompts"):
        assert all("film" in prompt for prompt in getattr(data, f"{kind}_train")["prompt"])
        assert all("book" in prompt for prompt in getattr(data, f"{kind}_heldout")["prompt"])


def test_rm_static_is_read_from_parquet(rm_static, capsys):
    data = load_data(f"Dahoas/rm-static:{rm_static}")
    assert data.pairs_train.to_list() == [
        {"prompt": LONGER, "chosen": f" Good {i}.", "rejected": f" train {i}."} for i in range(12)
    ]
    assert data.pairs_heldout["rejected"][:] == [f" test {i}." for i in range(4)]
    assert "12 pairs, dropped: 1 with an empty answer" in capsys.readouterr().out


def test_one_of_the_folders_is_enough(hh):
    assert len(load_data(f"hh-rlhf:{hh / 'helpful-base'}").pairs_train) == 16


def test_files_that_were_unzipped_are_read(hh):
    packed = hh / "helpful-base" / "train.jsonl.gz"
    (hh / "helpful-base" / "train.jsonl").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert len(load_data(f"hh-rlhf:{hh}").pairs_train) == 36


def test_what_a_download_leaves_beside_the_files_is_not_read(hh):
    """As `hf download --local-dir` does: locks and notes in a hidden folder; and an unfinished part, and a folder."""
    before = load_data(f"hh-rlhf:{hh}").pairs_train.to_list()
    kept = hh / ".cache" / "huggingface" / "download"
    kept.mkdir(parents=True)
    for name in ("train.jsonl.gz.lock", "train.jsonl.gz.metadata", "train.jsonl.gz"):
        (kept / name).touch()
    (hh / "train.jsonl.part").write_text("{")
    (hh / "train.jsonl.d").mkdir()
    assert load_data(f"hh-rlhf:{hh}").pairs_train.to_list() == before


def test_the_same_rows_zipped_and_unzipped_are_not_counted_twice(hh):
    zipped = next(hh.rglob("train.jsonl.gz"))
    zipped.with_suffix("").write_bytes(gzip.decompress(zipped.read_bytes()))
    with pytest.raises(LabError, match="train.jsonl lies beside train.jsonl.gz"):
        load_data(f"hh-rlhf:{hh}")


def test_a_colon_without_a_folder_is_one_sentence():
    with pytest.raises(LabError, match="hh-rlhf: names no folder"):
        load_data("hh-rlhf:")


def test_the_same_rows_are_drawn_and_a_smaller_draw_is_part_of_a_larger(hh):
    write_jsonl(hh / "harmless-base" / "train.jsonl.gz", whole(200))
    first, again, larger = (
        load_data(f"hh-rlhf:{hh / 'harmless-base'}", rows=rows).pairs_train["chosen"][:]
        for rows in (20, 20, 40)
    )
    assert first == again and len(first) == 20 and set(first) < set(larger)
    assert first != [f" Good {i}." for i in range(20)]


def test_a_tenth_as_many_are_held_out(hh):
    data = load_data(f"hh-rlhf:{hh / 'helpful-base'}", rows=10)
    assert (len(data.pairs_train), len(data.pairs_heldout)) == (10, 1)


def test_an_edited_file_is_read_again(hh):
    load_data(f"hh-rlhf:{hh}")
    write_jsonl(hh / "helpful-base" / "train.jsonl.gz", whole(5))
    assert len(load_data(f"hh-rlhf:{hh}").pairs_train) == 25


# -- what is wrong is named


@pytest.mark.parametrize(
    "row, sentence",
    [
        ('{"chosen": "half', "row 3: not JSON"),
        ('["a", "b"]\n', "row 3: not a JSON object"),
        ({"chosen": OPENING}, "row 3: the column 'rejected' is missing"),
        ({"chosen": OPENING, "rejected": 3}, "row 3: the column 'rejected' must be a text"),
        ({"chosen": None, "rejected": OPENING}, "row 3: the column 'chosen' must be a text"),
        ({"chosen": "\ud800", "rejected": OPENING}, "row 3: the column 'chosen' holds half a character"),
    ],
)
def test_a_broken_row_is_named_with_its_file(hh, row, sentence):
    path = hh / "helpful-base" / "test.jsonl.gz"
    write_jsonl(path, [*whole(2), row])
    with pytest.raises(LabError) as refused:
        load_data(f"hh-rlhf:{hh}")
    assert f"{path}, {sentence}" in str(refused.value) and "\n" not in str(refused.value)


def test_a_parquet_row_that_is_no_text_is_named_with_its_file(rm_static):
    (path,) = (rm_static / "data").glob("train-*")
    rows = [{"prompt": OPENING, "chosen": " a", "rejected": rejected} for rejected in (" b", None)]
    datasets.Dataset.from_list(rows).to_parquet(path)
    with pytest.raises(LabError, match=rf"{path}, row 2: the column 'rejected' must be a text"):
        load_data(f"rm-static:{rm_static}")
    datasets.Dataset.from_list(rows).remove_columns("rejected").to_parquet(path)
    with pytest.raises(LabError, match=rf"{path}: the column 'rejected' is missing"):
        load_data(f"rm-static:{rm_static}")


@pytest.mark.parametrize(
    "content",
    [b"not gzipped", gzip.compress(b"x" * 99)[:-20], gzip.compress(b"")],
    ids=["plain", "cut", "empty"],
)
def test_a_damaged_archive_is_one_sentence(hh, content):
    path = hh / "helpful-base" / "train.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(LabError) as refused:
        load_data(f"hh-rlhf:{hh}")
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_damaged_parquet_file_is_one_sentence(rm_static):
    (path,) = (rm_static / "data").glob("test-*")
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(LabError, match=f"{path} cannot be read as parquet"):
        load_data(f"rm-static:{rm_static}")


def test_a_folder_without_the_files_is_one_sentence(hh, tmp_path):
    with pytest.raises(LabError, match="there is no data folder .*nowhere"):
        load_data(f"hh-rlhf:{tmp_path / 'nowhere'}")
    with pytest.raises(LabError, match=r"holds no train\*.parquet, at any depth"):
        load_data(f"rm-static:{hh}")
    shutil.rmtree(hh / "helpful-base")
    (hh / "harmless-base" / "test.jsonl.gz").unlink()
    with pytest.raises(LabError, match=r"holds no test.jsonl\*, at any depth"):
        load_data(f"hh-rlhf:{hh}")


def test_a_set_of_which_nothing_can_be_used_says_why(hh):
    write_jsonl(hh / "only" / "train.jsonl", ODD[:1])
    write_jsonl(hh / "only" / "test.jsonl", whole(1))
    with pytest.raises(LabError, match="no dialogue can be used .*dropped: 1 with the same answer twice"):
        load_data(f"hh-rlhf:{hh / 'only'}")
    with pytest.raises(LabError, match="at least one dialogue has to be drawn"):
        load_data(f"hh-rlhf:{hh}", rows=0)


# -- the hub


@pytest.mark.parametrize("name", ["hh-rlhf", "Anthropic/hh-rlhf", "rm-static", "Dahoas/rm-static"])
def test_without_a_hub_one_sentence_says_what_to_do(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert main(["data", name]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "is not on this machine and the hub cannot be reached" in sentence
    assert f"--data {name.partition('/')[2] or name}:FOLDER, or use --data ratings or toy" in sentence


def test_what_was_downloaded_before_is_found_without_a_network(hh, monkeypatch, tmp_path):
    """The hub's cache: files under the name of their hash, and a snapshot of links to them."""
    repository = tmp_path / "hub" / "datasets--Anthropic--hh-rlhf"
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for number, path in enumerate(sorted(hh.rglob("*.gz"))):
        link = repository / "snapshots" / COMMIT / path.relative_to(hh)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, repository / "blobs" / str(number))
        link.symlink_to(os.path.relpath(repository / "blobs" / str(number), link.parent))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    data = load_data("hh-rlhf")
    assert data.name == "hh-rlhf"
    assert data.pairs_train.to_list() == load_data(f"hh-rlhf:{hh}").pairs_train.to_list()


@pytest.mark.parametrize("name, found", [("hh-rlhf", ["a/test.jsonl.gz", "a/train.jsonl.gz"]),
                                         ("rm-static", ["data/test-0.parquet", "data/train-0.parquet"])])  # fmt: skip
def test_only_the_files_that_are_read_are_downloaded(name, found, monkeypatch, tmp_path):
    from huggingface_hub.utils import filter_repo_objects

    wanted = []

    def download(repository, *, repo_type, allow_patterns):
        everything = ["README.md", "red/red_team_attempts.jsonl.gz", "a/train.jsonl.gz", "a/test.jsonl.gz",
                      "data/train-0.parquet", "data/test-0.parquet"]  # fmt: skip
        assert (repository, repo_type) == (dialogues.HUB_SETS[name].repository, "dataset")
        wanted.extend(filter_repo_objects(everything, allow_patterns=allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(LabError, match="holds no train"):
        load_data(name)
    assert sorted(wanted) == found


# -- a run

WORDS = [("film", "slow"), ("book", "dull"), ("phone", "clear"), ("garden", "lovely"), ("hotel", "quiet")]
LONG_PROMPT = "\n\nHuman: " + "The film was slow and the book was dull. " * 30 + "\n\nAssistant:"
LONG_ANSWER = " The film was slow and the plot was dull." * 30


def sample(n):
    """Short dialogues of one and of two turns, one too long to read, one whose answers differ too late to be seen."""
    rows = []
    for i in range(n):
        thing, word = WORDS[i % len(WORDS)]
        prompt = f"\n\nHuman: The {thing}?\n\nAssistant:"
        if i % 2:
            prompt += f" It was {word}.\n\nHuman: And the {i}?\n\nAssistant:"
        rows.append({"chosen": f"{prompt} It was good.", "rejected": f"{prompt} It was bad, {i}."})
    rows.append({"chosen": LONG_PROMPT + " Good.", "rejected": LONG_PROMPT + " Bad."})
    late = "\n\nHuman: The film?\n\nAssistant:" + LONG_ANSWER
    return [*rows, {"chosen": late + " Good.", "rejected": late + " Bad."}]


def test_the_memory_is_computed_from_the_rows_that_a_run_reads(tmp_path, capsys):
    rows = [*whole(8), {"chosen": LONG_PROMPT + " Good.", "rejected": LONG_PROMPT + " Bad."}]
    for split in ("train", "test"):
        write_jsonl(tmp_path / "set" / f"{split}.jsonl", rows)
    options = ["--data", f"hh-rlhf:{tmp_path / 'set'}", "--max-len", "64", "--new-tokens", "16"]
    assert main(["memory", *options, "--profile", "8gb"]) == 0
    title = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("computed memory"))
    assert int(title.split()[-1]) <= 64 - 16


def test_a_run_of_all_stages_on_short_and_long_dialogues(tmp_path, capsys):
    write_jsonl(tmp_path / "hh" / "helpful-base" / "train.jsonl.gz", sample(24))
    write_jsonl(tmp_path / "hh" / "helpful-base" / "test.jsonl.gz", sample(8))
    run = tmp_path / "run"
    options = "--max-len 96 --new-tokens 8 --sft-epochs 1 --sft-batch 8 --rm-epochs 1 --rm-batch 8 --batch 4 --steps 2"
    assert main(["run", "--backbone", "tiny", "--data", f"hh-rlhf:{tmp_path / 'hh'}", "--run", str(run),
                 *options.split()]) in (0, 2)  # fmt: skip
    printed = capsys.readouterr().out
    assert (
        "prompts of at most 88 tokens: sft_train 25 of 26, sft_heldout 9 of 10, pairs_train 25 of 26"
        in printed
    )
    assert "of 7 points passed" in printed
    reward_model = read_json(run / "reward_model" / "figures.json")
    assert (reward_model["dropped"], reward_model["dropped_heldout"]) == (1, 1)
    assert reward_model["n_heldout"] == 8
    assert set(read_json(run / "ppo" / "figures.json")["invariants"].values()) == {"held"}


def test_a_row_too_short_for_any_prompt_is_one_sentence(hh):
    data, tokenizer = load_data(f"hh-rlhf:{hh}"), load_tokenizer(TINY)
    with pytest.raises(
        LabError, match="none of the 36 prompts has at most 4 tokens.*give a larger --max-len"
    ):
        dialogues.fitting(data, tokenizer, Settings(max_len=12, new_tokens=8))


def test_the_data_command_counts_what_was_dropped_and_prints_the_baselines(hh, capsys):
    assert not main(["data", f"hh-rlhf:{hh}", "--rows", "30"])
    printed = capsys.readouterr().out
    assert "30 of 40 dialogues drawn" in printed and "dropped: " in printed
    assert "held-out accuracy by length alone" in printed


def test_the_bag_of_words_knows_the_words_of_the_most_pairs(monkeypatch):
    pairs = [{"chosen": f" good word{i % 7}", "rejected": " bad"} for i in range(20)]
    pairs = [
        {side: text.translate(str.maketrans("0123456", "abcdefg")) for side, text in p.items()} for p in pairs
    ]
    monkeypatch.setattr(baselines, "MOST_WORDS", 2)  # "good" and "bad"
    rare = [{"chosen": " worda", "rejected": " x"}]
    assert baselines.bag_of_words_accuracy(pairs, pairs) == 1.0
    assert baselines.bag_of_words_accuracy(pairs, rare) == 0.5


def test_pairs_that_differ_in_no_word_leave_every_baseline_at_half():
    pairs = [{"chosen": " 1", "rejected": " 2"}]
    assert baselines.one_word_accuracy(pairs, pairs)[1] == 0.5
    assert baselines.bag_of_words_accuracy(pairs, pairs) == 0.5
