"""Cases of the exercises in `sft.py`."""

import torch
from torch import Tensor

from ..taught_code import TaughtCode
from .case import WrongReturn, case, entries, in_words, numbers, raised, tensor
from .models import micro_tokenizer, special_tokenizer
from .training import (
    Loader,
    WatchedModel,
    changed,
    counted,
    gradient_changes,
    kinds_of_optimiser,
    learning_rates,
    norms,
    number_of_optimisers,
    recorded_steps,
    small_norms,
    weights_held,
)

COLUMNS = ("input_ids", "labels", "attention_mask")

# --- 1.1 build_sft_example ------------------------------------------------------------------------

EOS, PAD = 0, 9


def _example(
    code: TaughtCode, prompt_ids, response_ids, pad_id: int = PAD, max_len: int = 9
) -> dict[str, list]:
    """The three lists, the attention mask as numbers."""
    returned = code.sft.build_sft_example(list(prompt_ids), list(response_ids), EOS, pad_id, max_len)
    columns = {name: entries("build_sft_example", returned, *COLUMNS)[name] for name in COLUMNS}
    for name, column in columns.items():
        if not isinstance(column, list):
            raise WrongReturn(f"build_sft_example returned {in_words(column)} as {name!r}, expected a list")
    columns["attention_mask"] = [int(x) if isinstance(x, bool) else x for x in columns["attention_mask"]]
    return columns


def _places(example: dict[str, list], name: str, start: int, stop: int) -> dict:
    """A stretch of one list, each place under its own name."""
    return {f"{name}[{i}]": x for i, x in enumerate(example[name]) if start <= i < stop}


def _short_example(code: TaughtCode) -> dict[str, list]:
    """Two tokens of prompt, three of response, EOS, three of padding."""
    return _example(code, [5, 6], [7, 8, 4])


@case("build_sft_example", "three lists of max_len tokens", "2 + 3 tokens, max_len 9")
def example_lengths(code: TaughtCode):
    return {f"the length of {name}": len(column) for name, column in _short_example(code).items()}


@case(
    "build_sft_example",
    "the row begins with prompt and response",
    "prompt [5, 6], response [7, 8, 4]",
    mistake="Your row does not begin with the prompt, followed by the response. Is each token there once, and is the "
    "padding on the right?",
)
def example_text(code: TaughtCode):
    return _places(_short_example(code), "input_ids", 0, 5)


@case(
    "build_sft_example",
    "EOS follows the response",
    "EOS is 0",
    mistake="There is no EOS right behind the response: a model that learns from such rows never stops.",
)
def example_eos(code: TaughtCode):
    return _places(_short_example(code), "input_ids", 5, 6)


@case(
    "build_sft_example",
    "padding fills the rest",
    "the pad token is 9",
    mistake="What stands behind the EOS is not the pad token that your function was handed.",
)
def example_padding(code: TaughtCode):
    return _places(_short_example(code), "input_ids", 6, 9)


@case(
    "build_sft_example",
    "no label on the prompt",
    "the prompt has 2 tokens",
    mistake="A position of the prompt has a label. Its own token, and the model would learn to imitate the question; the "
    "next one, and the labels were shifted here, which is the work of the loss. Which number tells the "
    "loss to look away, and for how many places?",
)
def example_prompt_labels(code: TaughtCode):
    return _places(_short_example(code), "labels", 0, 2)


@case(
    "build_sft_example",
    "each response token is its own label",
    "labels are not shifted here; the loss does that",
    mistake="The labels of the response are not its tokens, each at its own place: one is hidden, or they are shifted.",
)
def example_response_labels(code: TaughtCode):
    return _places(_short_example(code), "labels", 2, 5)


@case(
    "build_sft_example",
    "EOS has a label",
    "EOS is a token to learn",
    mistake="The EOS has no label, so nothing teaches the model to stop.",
)
def example_eos_label(code: TaughtCode):
    return _places(_short_example(code), "labels", 5, 6)


@case(
    "build_sft_example",
    "no label on the padding",
    "three pad tokens",
    mistake="A pad token has a label: the model would learn to write padding.",
)
def example_padding_labels(code: TaughtCode):
    return _places(_short_example(code), "labels", 6, 9)


@case(
    "build_sft_example",
    "the attention mask is 1 on what is real",
    "prompt, response and EOS are real",
    mistake="Your attention mask is not 1 on prompt, response and EOS and 0 behind them.",
)
def example_mask(code: TaughtCode):
    return {"attention_mask": _short_example(code)["attention_mask"]}


@case(
    "build_sft_example",
    "labels, where padding is EOS",
    "pad_id == eos_id, as with GPT-2",
    mistake="Your labels go wrong where the pad token is the EOS token. Padding cannot be told from EOS by its id: "
    "count tokens instead.",
)
def example_labels_pad_is_eos(code: TaughtCode):
    return {"labels": _example(code, [5, 6], [7, 8, 4], pad_id=EOS)["labels"]}


@case(
    "build_sft_example",
    "attention mask, where padding is EOS",
    "pad_id == eos_id, as with GPT-2",
    mistake="Your attention mask goes wrong where the pad token is the EOS token: the EOS that ends the response is a "
    "real token. Padding cannot be told from EOS by its id: count tokens instead.",
)
def example_mask_pad_is_eos(code: TaughtCode):
    return {"attention_mask": _example(code, [5, 6], [7, 8, 4], pad_id=EOS)["attention_mask"]}


@case(
    "build_sft_example",
    "EOS and pad inside the texts",
    "prompt [5, 0, 9], response [0, 9, 7]",
    mistake="An EOS or pad id inside prompt or response misleads you: only the lengths of the two lists tell what "
    "each place is.",
)
def example_special_inside(code: TaughtCode):
    return _example(code, [5, EOS, PAD], [EOS, PAD, 7])


@case(
    "build_sft_example",
    "a response that ends in EOS",
    "prompt [5, 6], response [7, 8, 0]",
    mistake="You put no EOS behind a response that ends in one already: it is put there whatever the response holds.",
)
def example_ends_in_eos(code: TaughtCode):
    return _example(code, [5, 6], [7, 8, EOS])


@case(
    "build_sft_example",
    "a prompt token that comes back in the response",
    "prompt [5, 6, 7], response [6, 7, 5]",
    mistake="You look for tokens of the prompt by their ids, and find the same ids in the response.",
)
def example_repeated(code: TaughtCode):
    return _example(code, [5, 6, 7], [6, 7, 5])


@case(
    "build_sft_example",
    "what is too long is cut on the right",
    "2 + 6 tokens, max_len 5",
    mistake="A long row is not cut to its first max_len tokens. The prompt has to stay whole, and the response loses "
    "its end.",
)
def example_cut(code: TaughtCode):
    example = _example(code, [5, 6], [7, 8, 4, 3, 2, 1], max_len=5)
    lengths = {f"the length of {name}": len(column) for name, column in example.items()}
    return lengths | _places(example, "input_ids", 0, 4) | _places(example, "labels", 0, 4)


@case(
    "build_sft_example",
    "a cut response gets no EOS",
    "2 + 6 tokens, max_len 5",
    mistake="The last place of a cut row is not the response's own token: an EOS there would teach the model to stop "
    "in mid-sentence.",
)
def example_cut_end(code: TaughtCode):
    return _example(code, [5, 6], [7, 8, 4, 3, 2, 1], max_len=5)


@case(
    "build_sft_example",
    "the response fits, its EOS does not",
    "2 + 3 tokens, max_len 5",
    mistake="Where prompt and response fill the row, no room is left for an EOS: the response stays whole and the EOS "
    "is what is cut.",
)
def example_no_room_for_eos(code: TaughtCode):
    return _example(code, [5, 6], [7, 8, 4], max_len=5)


@case(
    "build_sft_example",
    "prompt, response and EOS fit exactly",
    "2 + 3 tokens, max_len 6",
    mistake="You cut too early: with its EOS this row is just max_len long, and nothing has to go.",
)
def example_exact(code: TaughtCode):
    return _example(code, [5, 6], [7, 8, 4], max_len=6)


@case(
    "build_sft_example",
    "room for one response token is enough",
    "4 + 3 tokens, max_len 5",
    mistake="You refuse or change a row that has room for one token of the response. When is none left to learn from?",
)
def example_one_token(code: TaughtCode):
    labels: list = []
    error = raised(lambda: labels.extend(_example(code, [5, 6, 7, 8], [4, 3, 2], max_len=5)["labels"]))
    return {"raised": error, "labels": labels}


@case(
    "build_sft_example",
    "a prompt longer than the row is an error",
    "7 + 3 tokens, max_len 5",
    mistake="A prompt that is longer than the row has to be a ValueError: a row without labels teaches nothing.",
)
def example_no_room(code: TaughtCode):
    return {"raised": raised(lambda: _example(code, [5, 6, 7, 8, 4, 3, 2], [7, 8, 4], max_len=5))}


@case(
    "build_sft_example",
    "a prompt that fills the row is an error",
    "5 + 3 tokens, max_len 5",
    mistake="A prompt of exactly max_len tokens leaves no token to learn from either, and has to be a ValueError.",
)
def example_no_room_exact(code: TaughtCode):
    return {"raised": raised(lambda: _example(code, [5, 6, 7, 8, 4], [7, 8, 4], max_len=5))}


@case(
    "build_sft_example",
    "the error names both lengths",
    "a prompt of 23 tokens, max_len 17",
    mistake="Whoever reads the error wants to know how long the prompt is and how long the row: name both.",
)
def example_error_text(code: TaughtCode):
    return {"raised": raised(lambda: _example(code, [1] * 23, [7, 8, 4], max_len=17), "23", "17")}


@case(
    "build_sft_example",
    "an empty prompt, an empty response",
    "0 + 3 and 2 + 0 tokens",
    mistake="An empty prompt or an empty response is laid out like any other: the EOS is there to learn.",
)
def example_empty(code: TaughtCode):
    return {"no prompt": _example(code, [], [7, 8, 4]), "no response": _example(code, [5, 6], [])}


@case(
    "build_sft_example",
    "the arguments stay as they were",
    "the two lists, before and after",
    mistake="Your function changes the lists that it is handed. `+=`, append and extend do that; `+` makes a new list.",
)
def example_arguments(code: TaughtCode):
    prompt_ids, response_ids = [5, 6], [7, 8, 4]
    code.sft.build_sft_example(prompt_ids, response_ids, EOS, PAD, 9)
    return {"prompt_ids afterwards": prompt_ids, "response_ids afterwards": response_ids}


# --- 1.2 SFTDataset -------------------------------------------------------------------------------

DEMONSTRATIONS = [
    {"prompt": "the soup", "response": " was warm"},
    {"prompt": "今天的天气", "response": "很好"},
    {"prompt": "The room", "response": " is warm and the food is good, very good"},
]


def fresh_rows(rows: list[dict]) -> list[dict]:
    """Copies, so that code which writes into its rows harms nobody else."""
    return [dict(row) for row in rows]


def item_of(name: str, dataset, index: int, *columns: str) -> dict[str, Tensor]:
    """An item of a data set, with these columns."""
    item = entries(f"{name}[{index}]", dataset[index], *columns)
    return {column: tensor(f"{name}[{index}][{column!r}]", item[column]) for column in columns}


def _item(code: TaughtCode, row: dict, tokenizer, max_len: int = 12) -> dict[str, Tensor]:
    return item_of("SFTDataset", code.sft.SFTDataset(fresh_rows([row]), tokenizer, max_len), 0, *COLUMNS)


def exclamation_tokenizer():
    """A tokenizer whose pad token is not its EOS."""
    tokenizer = micro_tokenizer()
    tokenizer.pad_token = "!"
    return tokenizer


def pad_zero_tokenizer():
    """A tokenizer whose pad token has id 0; its EOS is another token."""
    tokenizer = micro_tokenizer()
    tokenizer.eos_token = "!"
    return tokenizer


def ended(dataset) -> str:
    """What an index behind the last item of a data set raises."""
    return raised(lambda: dataset[len(dataset)])


@case("SFTDataset", "as many items as rows", "3 demonstrations")
def dataset_length(code: TaughtCode):
    return {"len(dataset)": len(code.sft.SFTDataset(fresh_rows(DEMONSTRATIONS), micro_tokenizer(), 12))}


@case(
    "SFTDataset",
    "an item is three long tensors",
    "max_len 12",
    mistake="Each of the three columns has to be one tensor [max_len] of int64 (`torch.long`).",
)
def dataset_kinds(code: TaughtCode):
    item = entries(
        "SFTDataset[0]", code.sft.SFTDataset(fresh_rows(DEMONSTRATIONS), micro_tokenizer(), 12)[0], *COLUMNS
    )
    return {name: in_words(item[name]) for name in COLUMNS}


@case(
    "SFTDataset",
    "the row begins with the prompt",
    "'the soup', 3 tokens",
    mistake="The row does not begin with the tokens of the prompt.",
)
def dataset_prompt(code: TaughtCode):
    return {"input_ids[:3]": _item(code, DEMONSTRATIONS[0], micro_tokenizer())["input_ids"][:3]}


@case(
    "SFTDataset",
    "the response and its EOS follow",
    "' was warm', 5 tokens",
    mistake="Behind the prompt do not stand the tokens of the response and one EOS. Do you change the text before you "
    "tokenise it, or add an EOS that 1.1 adds already?",
)
def dataset_response(code: TaughtCode):
    item = _item(code, DEMONSTRATIONS[0], micro_tokenizer())
    return {"input_ids": item["input_ids"], "attention_mask": item["attention_mask"]}


@case(
    "SFTDataset",
    "labels on the response alone",
    "'the soup', 3 tokens, has none",
    mistake="The labels are not those of exercise 1.1: -100 on prompt and padding, the tokens of the response and its "
    "EOS between them.",
)
def dataset_labels(code: TaughtCode):
    return {"labels": _item(code, DEMONSTRATIONS[0], micro_tokenizer())["labels"]}


@case(
    "SFTDataset",
    "each index has its own row",
    "rows 1 and 2; row 2 is cut at 12 tokens",
    mistake="Item 0 is right and another is not. Which row does an index stand for?",
)
def dataset_rows(code: TaughtCode):
    dataset = code.sft.SFTDataset(fresh_rows(DEMONSTRATIONS), micro_tokenizer(), 12)
    return {f"item {i}": item_of("SFTDataset", dataset, i, *COLUMNS) for i in (1, 2)}


@case(
    "SFTDataset",
    "an index behind the end is an error",
    "3 demonstrations, index 3",
    mistake="An index behind the last row has to be an IndexError: without it `for row in dataset` never ends.",
)
def dataset_end(code: TaughtCode):
    return {"raised": ended(code.sft.SFTDataset(fresh_rows(DEMONSTRATIONS), micro_tokenizer(), 12))}


@case(
    "SFTDataset",
    "max_len is the length of a row",
    "max_len 9 and 20",
    mistake="The rows do not have the length that was asked for.",
)
def dataset_max_len(code: TaughtCode):
    rows = {n: _item(code, DEMONSTRATIONS[0], micro_tokenizer(), n) for n in (9, 20)}
    return {
        f"the length of {name}, max_len {n}": len(row[name]) for n, row in rows.items() for name in COLUMNS
    }


@case(
    "SFTDataset",
    "a tokenizer without a pad token gets one",
    "as GPT-2's comes",
    mistake="After your data set is made from a tokenizer without a pad token, its pad token has to be its EOS token.",
)
def dataset_no_pad(code: TaughtCode):
    tokenizer = micro_tokenizer(pad=False)
    item = _item(code, DEMONSTRATIONS[0], tokenizer)
    return {"tokenizer.pad_token": tokenizer.pad_token, "input_ids": item["input_ids"]}


@case(
    "SFTDataset",
    "a pad token that is there stays",
    "the tokenizer pads with '!'",
    mistake="This tokenizer has a pad token of its own, and you replace it. When is there something to set?",
)
def dataset_own_pad(code: TaughtCode):
    tokenizer = exclamation_tokenizer()
    _item(code, DEMONSTRATIONS[0], tokenizer)
    return {"tokenizer.pad_token": tokenizer.pad_token}


@case(
    "SFTDataset",
    "a pad token whose id is 0 stays",
    "the tokenizer pads with '<|endoftext|>' (0), EOS is '!' (1)",
    mistake="Id 0 is a pad token like any other, and you replace it. How do you tell that there is none?",
)
def dataset_pad_zero(code: TaughtCode):
    tokenizer = pad_zero_tokenizer()
    _item(code, DEMONSTRATIONS[0], tokenizer)
    return {"tokenizer.pad_token": tokenizer.pad_token}


@case(
    "SFTDataset",
    "EOS ends the text, the pad token fills the row",
    "the tokenizer pads with '!' (1), EOS is 0",
    mistake="EOS and pad token are not where they belong. In which order does 1.1 take them?",
)
def dataset_eos_and_pad(code: TaughtCode):
    return _item(code, DEMONSTRATIONS[0], exclamation_tokenizer())


@case(
    "SFTDataset",
    "no special tokens",
    "a tokenizer that adds EOS before and after a text",
    mistake="The tokenizer adds special tokens to prompt or response. It has to be told not to.",
)
def dataset_special_tokens(code: TaughtCode):
    return _item(code, DEMONSTRATIONS[0], special_tokenizer())


@case(
    "SFTDataset",
    "spaces and line ends belong to the text",
    "'the soup ' and 'was warm\\n'",
    mistake="A space or a line end at the border of a text is lost or added. It is a token like others.",
)
def dataset_spaces(code: TaughtCode):
    return _item(code, {"prompt": "the soup ", "response": "was warm\n"}, micro_tokenizer())


@case(
    "SFTDataset",
    "prompt and response are tokenised apart",
    "'The weat' and 'her is fine': together they would be other tokens",
    mistake="You tokenise prompt and response as one text: then a token can reach across the border, and no label "
    "stands where it should.",
)
def dataset_apart(code: TaughtCode):
    return _item(code, {"prompt": "The weat", "response": "her is fine"}, micro_tokenizer())


@case(
    "SFTDataset",
    "an EOS inside the prompt",
    "'the soup <|endoftext|> and'",
    mistake="An EOS inside the prompt misleads you: where the response begins is told by the number of prompt tokens.",
)
def dataset_eos_inside(code: TaughtCode):
    return _item(
        code, {"prompt": "the soup <|endoftext|> and", "response": " was warm"}, micro_tokenizer(), 16
    )


@case(
    "SFTDataset",
    "padding is on the right",
    "a tokenizer that pads on the left",
    mistake="Padding follows the tokenizer's own side. In training it is on the right, whatever the tokenizer does.",
)
def dataset_left_tokenizer(code: TaughtCode):
    tokenizer = micro_tokenizer()
    tokenizer.padding_side = "left"
    return _item(code, DEMONSTRATIONS[0], tokenizer)


@case(
    "SFTDataset",
    "the data stay as they were",
    "the rows, before and after",
    mistake="Your data set changes the rows that it is handed.",
)
def dataset_arguments(code: TaughtCode):
    data = fresh_rows(DEMONSTRATIONS)
    item_of("SFTDataset", code.sft.SFTDataset(data, micro_tokenizer(), 12), 0, *COLUMNS)
    return {"the data changed": data != DEMONSTRATIONS}


# --- 1.3 masked_ce_loss ---------------------------------------------------------------------------

VOCAB = 7


def _loss(code: TaughtCode, logits: Tensor, labels: list[list[int]]) -> Tensor:
    return tensor("masked_ce_loss", code.sft.masked_ce_loss(logits, torch.tensor(labels)), [])


@case("masked_ce_loss", "one number for a batch", "logits [2, 5, 7]")
def loss_shape(code: TaughtCode):
    loss = code.sft.masked_ce_loss(numbers(10, 2, 5, VOCAB), torch.tensor([[-100, 1, 2, 3, 4]] * 2))
    return {"the shape of the loss": list(tensor("masked_ce_loss", loss).shape)}


@case(
    "masked_ce_loss",
    "the loss can be learnt from",
    "logits that carry a gradient",
    mistake="The loss carries no gradient, so backward has nothing to go through. Which step cuts it off: detach, "
    "no_grad, item?",
)
def loss_learns(code: TaughtCode):
    logits = numbers(10, 2, 5, VOCAB).requires_grad_()
    return {"the loss carries a gradient": _loss(code, logits, [[-100, 1, 2, 3, 4]] * 2).requires_grad}


@case(
    "masked_ce_loss",
    "logits[:, t] speaks about token t + 1",
    "a model that is sure of each next token: loss 0",
    mistake="Logits and labels are not lined up. Which token does the model guess at position t?",
)
def loss_alignment(code: TaughtCode):
    labels = [[-100, 3, 1, 6, 2]]
    logits = torch.zeros(1, 5, VOCAB)
    for t, next_label in enumerate(labels[0][1:]):
        logits[0, t, next_label] = 50.0
    return {"the loss": _loss(code, logits, labels)}


@case(
    "masked_ce_loss",
    "in nats, and positive",
    "one label, all 7 logits equal",
    mistake="A model that finds all 7 tokens equally likely has a loss of ln 7 for one label. Yours has another sign, "
    "another unit, or is divided by something.",
)
def loss_uniform(code: TaughtCode):
    return {"the loss": _loss(code, torch.full((1, 5, VOCAB), 2.0), [[-100, -100, 4, -100, -100]])}


@case(
    "masked_ce_loss",
    "cross-entropy of one label",
    "one label, logits of all sizes",
    mistake="For a single label the loss is not the cross-entropy of these logits. Is every -100 left out, and not read "
    "as a class? Is there exactly one softmax, over the vocabulary?",
)
def loss_one_label(code: TaughtCode):
    return {"the loss": _loss(code, numbers(11, 1, 5, VOCAB, std=2.0), [[-100, -100, 4, -100, -100]])}


@case(
    "masked_ce_loss",
    "the mean over the labels",
    "one row, 4 labels, none ignored but the first",
    mistake="With one label the loss is right, with four it is not: their losses have to be averaged, all of them.",
)
def loss_mean(code: TaughtCode):
    return {"the loss": _loss(code, numbers(12, 1, 5, VOCAB, std=2.0), [[-100, 4, 1, 5, 2]])}


@case(
    "masked_ce_loss",
    "where the label is -100, logits do not matter",
    "the same twice, with other logits at ignored places",
    mistake="The loss changes with logits whose label is -100. Those places must not enter the sum.",
)
def loss_ignored_logits(code: TaughtCode):
    labels = [[-100, -100, -100, 4, 1, 5, -100, -100]]
    logits, others = numbers(13, 1, 8, VOCAB), numbers(14, 1, 8, VOCAB, std=30.0)
    counts = torch.tensor([0, 0, 1, 1, 1, 0, 0, 0]).bool().view(1, 8, 1)
    changed = logits.where(counts, others)
    return {"the loss changes by": _loss(code, changed, labels) - _loss(code, logits, labels)}


@case(
    "masked_ce_loss",
    "-100 is not counted",
    "3 labels among 8 places",
    mistake="Ignored labels count in the average: you divide by more (or fewer) places than have a label.",
)
def loss_count(code: TaughtCode):
    return {"the loss": _loss(code, numbers(13, 1, 8, VOCAB), [[-100, -100, -100, 4, 1, 5, -100, -100]])}


@case(
    "masked_ce_loss",
    "token 0 is a token like others",
    "labels [0, 4, 0]",
    mistake="A label 0 does not count with you. It is a token like others (in this course it is the EOS); only -100 is "
    "ignored.",
)
def loss_token_zero(code: TaughtCode):
    return {"the loss": _loss(code, numbers(15, 1, 5, VOCAB), [[-100, 0, 4, 0, -100]])}


@case(
    "masked_ce_loss",
    "a label at position 0 is predicted by nothing",
    "a label at each place",
    mistake="The label at position 0 enters your loss or its count, and no logits come before it.",
)
def loss_first_label(code: TaughtCode):
    return {"the loss": _loss(code, numbers(16, 1, 5, VOCAB), [[6, 4, 1, 5, 2]])}


@case(
    "masked_ce_loss",
    "one mean over the whole batch",
    "rows with 5, 1 and 2 labels",
    mistake="Each label of the batch has the same weight, whichever row it stands in: you average row by row.",
)
def loss_ragged(code: TaughtCode):
    labels = [[-100, 1, 2, 3, 4, 0], [-100, -100, -100, -100, 6, -100], [-100, -100, 2, 1, -100, -100]]
    return {"the loss": _loss(code, numbers(17, 3, 6, VOCAB, std=2.0), labels)}


@case(
    "masked_ce_loss",
    "a row without labels",
    "rows with 3 and 0 labels",
    mistake="A row in which every label is -100 changes the loss of the others. It has to count for nothing.",
)
def loss_empty_row(code: TaughtCode):
    labels = [[-100, 1, 2, 3, -100], [-100] * 5]
    return {"the loss": _loss(code, numbers(18, 2, 5, VOCAB), labels)}


@case(
    "masked_ce_loss",
    "a constant in all logits changes nothing",
    "1000 is added to each logit",
    mistake="Large logits break your loss: exp of a large number is infinite. Which function of torch takes logarithm and "
    "softmax in one step?",
)
def loss_offset(code: TaughtCode):
    logits = 1000 + 2 * torch.arange(5 * VOCAB).view(1, 5, VOCAB).float().sin().round()
    return {"the loss": _loss(code, logits, [[-100, 4, 1, 5, 2]])}


@case(
    "masked_ce_loss",
    "extreme logits",
    "a wrong token is ahead by 1000",
    mistake="Where the right token is very unlikely, your loss is not what it should be: a probability that is rounded "
    "to 0 has no logarithm. Which function of torch takes logarithm and softmax in one step?",
)
def loss_extreme(code: TaughtCode):
    logits = torch.zeros(1, 4, VOCAB)
    logits[..., 2] = 1000.0
    logits.requires_grad_()
    loss = _loss(code, logits, [[-100, 1, 3, 2]])
    loss.backward()
    return {"the loss": loss, "a gradient is NaN": bool(logits.grad.isnan().any())}


@case(
    "masked_ce_loss",
    "no label at all: 0, not NaN",
    "every label is -100",
    mistake="A batch without labels has a loss of its own: 0, as a tensor. Do you divide 0 by 0?",
)
def loss_no_labels(code: TaughtCode):
    return {"the loss": _loss(code, numbers(19, 2, 5, VOCAB), [[-100] * 5] * 2)}


@case(
    "masked_ce_loss",
    "no label at all: no NaN in the gradient",
    "every label is -100",
    mistake="The loss of a batch without labels is 0, but its gradient is NaN: a division by 0 is still in there, and "
    "backward goes through it.",
)
def loss_no_labels_gradient(code: TaughtCode):
    logits = numbers(19, 2, 5, VOCAB).requires_grad_()
    loss = _loss(code, logits, [[-100] * 5] * 2)
    if loss.requires_grad:
        loss.backward()
    gradient = torch.zeros(()) if logits.grad is None else logits.grad
    return {"a gradient is NaN": bool(gradient.isnan().any())}


@case(
    "masked_ce_loss",
    "no label at all: backward still works",
    "every label is -100, logits that carry a gradient",
    mistake="The loss of a batch without labels is a constant 0 that has lost its logits: `loss.backward()` stops with an "
    "error, and with it the training loop. Which 0 still hangs on the logits?",
)
def loss_no_labels_backward(code: TaughtCode):
    loss = _loss(code, numbers(19, 2, 5, VOCAB).requires_grad_(), [[-100] * 5] * 2)
    return {"the loss carries a gradient": loss.requires_grad}


@case(
    "masked_ce_loss",
    "the gradient",
    "of the logits, row 1 has one label",
    mistake="The loss is right and its gradient is not: a part of it is cut off (detach, no_grad, item).",
)
def loss_gradient(code: TaughtCode):
    logits = numbers(20, 2, 3, 4).requires_grad_()
    _loss(code, logits, [[-100, 1, 2], [-100, 3, -100]]).backward()
    return {"the gradient of logits": logits.grad}


@case(
    "masked_ce_loss",
    "the arguments stay as they were",
    "logits and labels, before and after",
    mistake="Your function changes the logits or the labels that it is handed: the next one who reads them gets "
    "other numbers.",
)
def loss_arguments(code: TaughtCode):
    logits, labels = numbers(21, 2, 5, VOCAB), torch.tensor([[-100, 1, 2, 3, -100], [-100, -100, 4, 0, -100]])
    before = logits.clone(), labels.clone()
    code.sft.masked_ce_loss(logits, labels)
    return {
        "logits changed": not torch.equal(logits, before[0]),
        "labels changed": not torch.equal(labels, before[1]),
    }


# --- 1.4 train_sft --------------------------------------------------------------------------------


class WatchedLM(WatchedModel):
    """A language model over nine tokens, called as those of transformers are."""

    def __init__(self, scale: float = 1.0):
        super().__init__(n_out=9, scale=scale, bias=True)

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None, **options):
        from transformers.modeling_outputs import CausalLMOutput

        logits = self.read(input_ids, attention_mask)
        if labels is None:
            return CausalLMOutput(logits=logits)
        predictions, targets = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        return CausalLMOutput(torch.nn.functional.cross_entropy(predictions, targets), logits)


def _batch(*rows: tuple[list[int], list[int]], width: int = 6) -> dict[str, Tensor]:
    """A batch of `(prompt, response)` rows, padded on the right with token 8."""
    batch = {name: [] for name in COLUMNS}
    for prompt, response in rows:
        n_pad = width - len(prompt) - len(response)
        batch["input_ids"].append(prompt + response + [8] * n_pad)
        batch["labels"].append([-100] * len(prompt) + response + [-100] * n_pad)
        batch["attention_mask"].append([1] * (width - n_pad) + [0] * n_pad)
    return {name: torch.tensor(column) for name, column in batch.items()}


def _batches() -> list[dict[str, Tensor]]:
    """Three batches of ragged rows."""
    return [
        _batch(([5, 6], [7, 1, 0]), ([1], [2, 3, 4, 0])),
        _batch(([4, 4, 1], [3, 0]), ([2, 7], [5, 0])),
        _batch(([6], [6, 0]), ([3, 5, 2], [1, 4, 0])),
    ]


def _train(code: TaughtCode, model, batches, n_epochs: int = 1, lr: float = 0.0) -> list:
    losses = code.sft.train_sft(model, batches, n_epochs=n_epochs, lr=lr, device="cpu")
    if not isinstance(losses, list):
        raise WrongReturn(f"train_sft returned {in_words(losses)}, expected a list of numbers")
    return losses


@case("train_sft", "it returns a list of numbers", "3 batches, 2 epochs, a model of 81 numbers")
def train_kinds(code: TaughtCode):
    losses = _train(code, WatchedLM(), _batches(), n_epochs=2, lr=0.01)
    kinds = [loss if isinstance(loss, str) else "a number" for loss in map(counted, losses)]
    return {"what stands in the list": sorted(set(kinds))}


@case(
    "train_sft",
    "one step a batch, in each epoch",
    "3 batches, 2 epochs",
    mistake="The optimiser does not step once for each batch of each epoch. Which of the two loops does the step "
    "stand in?",
)
def train_steps(code: TaughtCode):
    with recorded_steps() as steps:
        _train(code, WatchedLM(), _batches(), n_epochs=2, lr=0.01)
    return {"steps of the optimiser": len(steps)}


@case(
    "train_sft",
    "one loss a step",
    "3 batches, 2 epochs",
    mistake="You do not return one loss for each step. Which of the two loops does the append stand in?",
)
def train_count(code: TaughtCode):
    return {"the number of losses": len(_train(code, WatchedLM(), _batches(), n_epochs=2, lr=0.01))}


@case(
    "train_sft",
    "the weights move",
    "3 batches, 2 epochs, lr 0.01",
    mistake="The weights of the model that you are handed are the same after training. Does the gradient reach the "
    "optimiser, and is it that model that you train?",
)
def train_moves(code: TaughtCode):
    model = WatchedLM()
    before = model.all_weights()
    _train(code, model, _batches(), n_epochs=2, lr=0.01)
    return {"the weights moved": not torch.equal(before, model.all_weights())}


@case(
    "train_sft",
    "the loss of each batch",
    "learning rate 0, 3 batches",
    mistake="With a learning rate of 0 each number has to be the loss (exercise 1.3) of its own batch, unscaled.",
)
def train_losses(code: TaughtCode):
    return {"losses": [counted(loss) for loss in _train(code, WatchedLM(), _batches())]}


@case(
    "train_sft",
    "the optimiser is AdamW",
    "what takes the steps",
    mistake="The docstring asks for AdamW, and another optimiser takes the steps.",
)
def train_optimizer(code: TaughtCode):
    return kinds_of_optimiser(lambda: _train(code, WatchedLM(), _batches(), lr=0.01))


@case(
    "train_sft",
    "the learning rate is the one that was asked for",
    "lr 0.03, 3 batches, 2 epochs",
    mistake="The optimiser does not step with the learning rate that your function was handed: it is constant, for all "
    "weights and in all steps.",
)
def train_lr(code: TaughtCode):
    return learning_rates(lambda: _train(code, WatchedLM(), _batches(), n_epochs=2, lr=0.03))


@case(
    "train_sft",
    "all weights are trained",
    "embedding and head, 81 numbers",
    mistake="The optimiser does not hold all weights of the model.",
)
def train_all_weights(code: TaughtCode):
    return weights_held(lambda: _train(code, WatchedLM(), _batches(), lr=0.01))


@case(
    "train_sft",
    "one optimiser for the whole run",
    "3 batches, 2 epochs",
    mistake="You make a new optimiser in the loop: AdamW forgets its running averages each time.",
)
def train_one_optimizer(code: TaughtCode):
    return number_of_optimisers(lambda: _train(code, WatchedLM(), _batches(), n_epochs=2, lr=0.01))


@case(
    "train_sft",
    "a small gradient stays as it is",
    "a gradient of norm 0.02 at the first step",
    mistake="At the first step the gradient of a small loss is not the gradient of that loss: it is scaled, or zeroed "
    "before the step.",
)
def train_small_gradient(code: TaughtCode):
    return small_norms(lambda: _train(code, WatchedLM(scale=0.05), _batches()[:1]))


@case(
    "train_sft",
    "the first step goes down the gradient",
    "lr 0.01, one step: which way each weight of the head moves",
    mistake="A weight moves the wrong way, and the loss grows. A step goes against the gradient of the loss: look at the "
    "sign of what you call backward on, at the optimiser's options, and at what happens to the gradients.",
)
def train_downhill(code: TaughtCode):
    model = WatchedLM()
    moves = model.moves_of_head(lambda: _train(code, model, _batches()[:1], lr=0.01))
    return {"the moves of the head's weights": moves}


@case(
    "train_sft",
    "each step has the gradient of its own batch",
    "the same batch twice, learning rate 0: the same gradient twice",
    mistake="The second step still carries the gradient of the first: gradients add up until they are set to zero.",
)
def train_zero_grad(code: TaughtCode):
    return small_norms(lambda: _train(code, WatchedLM(scale=0.05), _batches()[:1] * 2, n_epochs=2))


@case(
    "train_sft",
    "the second epoch is like the first",
    "learning rate 0, 3 batches, 2 epochs: each batch comes back with the same loss and gradient",
    mistake="The first epoch is right and the second is not, though nothing has changed in between: it reads other batches, "
    "or does something else with them.",
)
def train_second_epoch(code: TaughtCode):
    with recorded_steps() as steps:
        losses = _train(code, WatchedLM(scale=0.05), _batches(), n_epochs=2)
    return {
        "losses": [counted(loss) for loss in losses],
        **gradient_changes(steps, 3),
    }


@case(
    "train_sft",
    "the norm of a large gradient is cut to 1",
    "gradients of norm 4 and more",
    mistake="What reaches the step is not the gradient with its norm clipped to 1: the norm of all weights together, "
    "and before the step.",
)
def train_clip(code: TaughtCode):
    return norms(lambda: _train(code, WatchedLM(scale=20.0), _batches()))


@case(
    "train_sft",
    "a large gradient keeps its direction",
    "the five largest entries",
    mistake="The clipped gradient has norm 1 and another direction. Clipping scales all of it by one factor.",
)
def train_direction(code: TaughtCode):
    with recorded_steps() as steps:
        _train(code, WatchedLM(scale=20.0), _batches()[:1])
    largest = steps[0].gradient.abs().topk(5).values
    return {"the largest entries of the gradient": largest}


@case(
    "train_sft",
    "the loss is taken before its step",
    "lr 0.5, the first loss of each of 3 batches",
    mistake="The losses in your list are not those that were trained on: they are computed again after the step.",
)
def train_before_step(code: TaughtCode):
    losses = _train(code, WatchedLM(), _batches()[:1], lr=0.5)
    return {"the first loss": counted(losses[0])}


@case(
    "train_sft",
    "training mode",
    "a model that comes in eval mode, as from_pretrained leaves it, and one that does not",
    mistake="The model is not in training mode while it trains: dropout stays off.",
)
def train_mode(code: TaughtCode):
    arriving, models = ("eval", "training"), (WatchedLM().eval(), WatchedLM().train())
    for model in models:
        _train(code, model, _batches(), n_epochs=2, lr=0.01)
    return {
        f"training at each pass, coming in {mode} mode": [one.training for one in model.passes]
        for mode, model in zip(arriving, models, strict=True)
    }


@case(
    "train_sft",
    "training mode in every part",
    "embedding, head and dropout of the model",
    mistake="The model is in training mode while it trains, and a part of it is not.",
)
def train_mode_of_parts(code: TaughtCode):
    model = WatchedLM().eval()
    _train(code, model, _batches(), n_epochs=2, lr=0.01)
    return {"all parts training at each pass": [one.parts_training for one in model.passes]}


@case(
    "train_sft",
    "the data loader is gone through in each epoch",
    "a loader of 3 batches that can only be gone through, 2 epochs",
    mistake="You keep the batches of the first epoch, or ask for them by number. Going through the loader anew is what gives "
    "each epoch an order of its own.",
)
def train_loader(code: TaughtCode):
    loader = Loader(_batches())
    _train(code, WatchedLM(), loader, n_epochs=2)
    return {"the loader is gone through in both epochs": loader.rounds >= 2}


@case(
    "train_sft",
    "no epoch, no change",
    "n_epochs 0",
    mistake="With n_epochs=0 there is nothing to train and nothing to return.",
)
def train_no_epoch(code: TaughtCode):
    model = WatchedLM()
    before = model.all_weights()
    losses = _train(code, model, _batches(), n_epochs=0, lr=0.01)
    return {"losses": losses, "the weights moved": not torch.equal(before, model.all_weights())}


@case(
    "train_sft",
    "model and batches go to the device",
    'the device "meta", which holds no numbers',
    mistake="The model or the batch does not go to `device`: on a GPU this stops with an error.",
)
def train_device(code: TaughtCode):
    model = WatchedLM()
    # nothing can be read from "meta": the loop ends with an error once it has a loss
    raised(lambda: code.sft.train_sft(model, _batches(), n_epochs=1, lr=0.01, device="meta"))
    first = model.passes[0] if model.passes else None
    return {"the model is on": first and first.weights_on, "the batch is on": first and first.ids_on}


@case(
    "train_sft",
    "the attention mask reaches the model",
    "learning rate 0, a batch padded on the left",
    mistake="The model does not get the attention mask. Padding on the right hides that; padding on the left does not.",
)
def train_attention_mask(code: TaughtCode):
    batch = {name: column.flip(1) for name, column in _batches()[1].items()}
    return {"losses": [counted(loss) for loss in _train(code, WatchedLM(), [batch])]}


@case(
    "train_sft",
    "the batches stay as they were",
    "before and after",
    mistake="Your loop changes the batches that it is handed: the second epoch sees other data.",
)
def train_arguments(code: TaughtCode):
    batches = _batches()
    _train(code, WatchedLM(), batches, n_epochs=1, lr=0.01)
    return changed(batches, _batches())
