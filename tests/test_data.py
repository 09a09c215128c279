"""The toy corpus, its judge, and the door through which all data come."""

import json
import random
import subprocess
import sys
import time

import pytest
from tokenizers import Tokenizer

from rlhf_lab.backbones import TINY
from rlhf_lab.data import FILES, TOY_FOLDER, baselines, length_only_accuracy, lexicon, load_data
from rlhf_lab.data.corpus.files import build, tiny_token_counter, to_jsonl
from rlhf_lab.data.corpus.pairs import MARGIN, PHENOMENA, draw_pair
from rlhf_lab.data.corpus.prompts import LANGUAGES, all_prompts, held_out_topic_prompts
from rlhf_lab.data.corpus.sentences import draw_response
from rlhf_lab.data.judge import ToyJudge, judge_value
from rlhf_lab.data.topics import ASIDES, DOMAINS
from rlhf_lab.errors import LabError


def rows(name, **wanted):
    with open(TOY_FOLDER / f"{name}.jsonl", encoding="utf-8") as lines:
        read = [json.loads(line) for line in lines]
    return [row for row in read if all(row[column] == value for column, value in wanted.items())]


# -- the files


def test_the_files_are_what_the_generator_writes():
    built = build(tiny_token_counter())
    assert set(built) == set(FILES)
    for name, new_rows in built.items():
        shipped = (TOY_FOLDER / f"{name}.jsonl").read_bytes()
        assert shipped == to_jsonl(new_rows).encode(), f"{name}: run `python -m rlhf_lab build-toy`"


@pytest.mark.parametrize(
    "name, least, most",
    [
        ("sft_train", 300, 500),
        ("sft_heldout", 80, 140),
        ("pairs_train", 1200, 2000),
        ("pairs_heldout", 300, 400),
        ("prompts_train", 60, 500),
        ("prompts_heldout", 60, 200),
    ],
)
def test_sizes_and_languages(name, least, most):
    assert least <= len(rows(name)) <= most
    assert len(rows(name, lang="en")) == len(rows(name, lang="zh"))


def test_no_row_occurs_twice():
    for name in FILES:
        texts = [json.dumps(row) for row in rows(name)]
        assert len(set(texts)) == len(texts), name


def test_held_out_topics_never_occur_in_training():
    held_out = {(p.lang, p.topic) for lang in LANGUAGES for p in held_out_topic_prompts(lang)}
    topic_of = {p.text: (p.lang, p.topic) for lang in LANGUAGES for p in all_prompts(lang)}
    for name in FILES:
        for row in rows(name):
            new = name.endswith("heldout") and row.get("held_out") != "wording"
            assert (topic_of[row["prompt"]] in held_out) == new, (name, row)


def test_held_out_wording_never_occurs_in_training():
    entries = ["although*", "尽管*"]
    for lang in LANGUAGES:
        for words_by_value in lexicon.WORDS[lang].values():
            entries += " ".join(words_by_value.values()).split()
        entries += [verb for verbs in lexicon.VERBS[lang].values() for verb in verbs.split("|")]
        entries += lexicon.NEGATORS[lang]
    starred = [entry.rstrip("*") for entry in entries if entry.endswith("*")]
    texts = [
        text
        for name in ("sft_train", "pairs_train")
        for row in rows(name)
        for column, text in row.items()
        if column not in ("lang", "phenomenon")
    ]
    for word in starred:
        pattern = f" {word}" if word.isascii() else word
        assert not [text for text in texts if pattern in text], word
    for row in rows("pairs_heldout"):
        found = [any(word in row[side] for word in starred) for side in ("chosen", "rejected")]
        assert all(found) == (row["held_out"] != "topic"), row


def test_chosen_is_better_by_the_margin():
    for name in ("pairs_train", "pairs_heldout"):
        for row in rows(name):
            chosen, rejected = ToyJudge()([row["chosen"], row["rejected"]])
            assert chosen - rejected >= MARGIN - 1e-9, row


def test_demonstrations_are_kind_but_not_enthusiastic():
    for name in ("sft_train", "sft_heldout"):
        scores = ToyJudge()([row["response"] for row in rows(name)])
        assert 0.5 < sum(scores) / len(scores) < 0.65
        assert sum(score > 0.9 for score in scores) < 0.2 * len(scores)


# -- what does not need reading does not help


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", ["pairs_train", "pairs_heldout"])
def test_length_says_nothing(name, lang):
    pairs = rows(name, lang=lang)
    assert abs(length_only_accuracy(pairs) - 0.5) <= 0.02
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    in_tokens = [{side: tokenizer.encode(row[side]).ids for side in ("chosen", "rejected")} for row in pairs]
    assert abs(length_only_accuracy(in_tokens) - 0.5) <= 0.02


def test_counting_words_is_not_enough():
    train, heldout = rows("pairs_train"), rows("pairs_heldout")
    assert baselines.one_word_accuracy(train, heldout)[1] < 0.6
    assert baselines.bag_of_words_accuracy(train, heldout) < 0.7
    assert baselines.sentiment_count_accuracy(heldout) < 0.7


def test_the_baselines_can_win_where_words_are_enough():
    train = [{"prompt": "It", "chosen": f" was good {i}.", "rejected": f" was bad {i}."} for i in range(20)]
    assert baselines.one_word_accuracy(train, train)[1] == 1.0
    assert baselines.bag_of_words_accuracy(train, train) == 1.0
    longer = [{"chosen": "xx", "rejected": "x"}, {"chosen": "xx", "rejected": "xx"}]
    assert length_only_accuracy(longer) == 0.75


# -- the judge


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("wording", ["train", "held_out", "all"])
def test_the_judge_agrees_with_the_generator(lang, wording):
    rng = random.Random(7)
    prompts = all_prompts(lang)
    for _ in range(1500):
        prompt = rng.choice(prompts)
        pair = draw_pair(rng, prompt, wording, rng.choice(list(PHENOMENA)))
        for response in (draw_response(rng, prompt, wording), pair.chosen, pair.rejected):
            assert judge_value(response.text) == pytest.approx(response.value), response
            assert judge_value(prompt.text + response.text) == pytest.approx(response.value), response


def test_prompts_facts_and_padding_are_neutral():
    for lang in LANGUAGES:
        texts = [p.text for p in all_prompts(lang)] + list(ASIDES[lang])
        texts += [text for domain in DOMAINS[lang].values() for text in domain.aspects + domain.facts]
        assert set(ToyJudge()(texts)) == {0.5}


@pytest.mark.parametrize(
    "text, low, high",
    [
        ("", 0.5, 0.5),
        ("\n<|endoftext|> 123 ??!", 0.5, 0.5),
        ("The new phone comes in two colours.", 0.5, 0.5),
        ("The new phone is superb.", 0.94, 1.0),
        ("这部电影说实话惊艳。", 0.94, 1.0),
        ("The new phone is clear.", 0.65, 0.75),
        ("The new phone is fine.", 0.55, 0.65),
        ("The new phone is not superb.", 0.1, 0.3),
        ("The new phone is not reliable at all.", 0.05, 0.2),
        ("说明书一点也不清晰。", 0.05, 0.2),
        ("这部电影不错。", 0.7, 0.8),  # 不错 is praise although it begins with 不
        ("The film was never boring.", 0.6, 0.8),
        ("The film was slow at first, but the ending was superb.", 0.9, 1.0),
        ("The film was superb at first, but slow in the end.", 0.4, 0.6),
        ("Although the plot was dull, the ending was superb.", 0.9, 1.0),
        ("虽然情节平淡，但是结局精彩。", 0.9, 1.0),
        ("尽管结局精彩，情节平淡。", 0.4, 0.6),
        ("The phone is superb. The screen is terrible.", 0.5, 0.5),
        ("The film was terrible 但是结局精彩。", 0.8, 0.9),  # two languages in one sentence
    ],
)
def test_the_judge_on_examples(text, low, high):
    assert low <= ToyJudge()([text])[0] <= high


def test_the_judge_is_hard_to_hack():
    once, *hacks = ToyJudge()(
        [
            "The film was superb.",
            "The film was superb. The film was superb. The film was superb. The film was superb.",
            "superb",
            "superb superb superb superb superb superb",
            "superb brilliant wonderful excellent amazing stunning",
            "superb and brilliant and wonderful and excellent and amazing",
            "was superb was superb was superb was superb",
            "惊艳完美出色卓越一流美妙",
            "The film was superb and the plot was brilliant and the ending was wonderful.",
        ]
    )
    assert max(hacks) <= once + 1e-9
    assert max(hacks[:-1]) < 0.65  # all but the last are no sentences
    assert hacks[-1] == pytest.approx(once)


def test_repeating_blame_is_no_excuse():
    assert ToyJudge()(["terrible terrible terrible terrible"])[0] < 0.1


def test_the_judge_is_fast():
    texts = [row["chosen"] for row in rows("pairs_train")]
    start = time.perf_counter()
    ToyJudge()(texts)
    assert len(texts) / (time.perf_counter() - start) > 1000


# -- load_data


def test_the_toy_corpus_loads():
    data = load_data("toy")
    assert data.name == "toy"
    for name in FILES:
        assert getattr(data, name).to_list() == rows(name)
    assert {"lang", "held_out", "phenomenon"} <= set(data.pairs_heldout.column_names)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_one_language_of_the_toy_corpus(lang):
    data = load_data(f"toy-{lang}")
    for name in FILES:
        assert getattr(data, name).to_list() == rows(name, lang=lang)


@pytest.fixture
def folder(tmp_path):
    """A user's folder without held-out files, and `write(name, *lines)` to change it."""
    files = {
        # U+2028 separates lines, but not the rows of a JSONL file
        "sft_train": [{"prompt": f"Q{i}", "response": f" A{i}\u2028."} for i in range(20)],
        "pairs_train": [{"prompt": f"Q{i}", "chosen": " good", "rejected": " bad"} for i in range(20)],
        "prompts_train": [{"prompt": f"Q{i}"} for i in range(20)],
    }
    for name, content in files.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_users_folder_without_held_out_files(folder):
    first, second = load_data(folder), load_data(str(folder))
    for kind in ("sft", "pairs", "prompts"):
        train, heldout = getattr(first, f"{kind}_train"), getattr(first, f"{kind}_heldout")
        assert (len(train), len(heldout)) == (18, 2)
        assert not set(train["prompt"]) & set(heldout["prompt"])
        assert heldout.to_list() == getattr(second, f"{kind}_heldout").to_list()


def test_an_edited_folder_is_read_again(folder):
    load_data(folder)
    (folder / "prompts_heldout.jsonl").write_text('{"prompt": "new"}\n\n', encoding="utf-8")
    assert load_data(folder).prompts_heldout.to_list() == [{"prompt": "new"}]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("pairs_train", None, "no pairs_train.jsonl"),
        ("prompts_train", "", "prompts_train.jsonl has no rows"),
        ("prompts_train", '{"prompt": "alone"}\n', "prompts_train.jsonl has one row"),
        ("sft_train", '{"prompt": "Q", "response": " A"}\n{"prompt": "Q"}\n', "row 2: the column 'response'"),
        ("sft_train", '{"prompt": "Q", "response": " "}\n', "row 1: the column 'response' must be"),
        ("sft_train", '{"prompt": "Q", "response": 3}\n', "row 1: the column 'response' must be"),
        ("sft_heldout", '{"prompt": null, "response": "A"}\n', "row 1: the column 'prompt' must be"),
        ("pairs_train", '{"prompt": "Q"\n', "row 1: not JSON"),
        ("pairs_train", '["Q"]\n', "row 1: not a JSON object"),
    ],
)
def test_bad_input_is_named_in_one_sentence(folder, name, content, message):
    path = folder / f"{name}.jsonl"
    if content is None:
        path.unlink()
    else:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(LabError) as caught:
        load_data(folder)
    assert message in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_does_not_exist():
    with pytest.raises(LabError, match="no data called toy-fr"):
        load_data("toy-fr")


def test_importing_the_package_does_not_import_datasets():
    code = "import sys, rlhf_lab.data.judge; print({'datasets', 'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
