"""Cases of the exercises in `reward_model.py`."""

import copy
from functools import lru_cache

import torch
from torch import Tensor, nn

from ..taught_code import TaughtCode
from .case import WrongReturn, case, entries, in_words, numbers, parts, raised, tensor
from .models import micro_folder, micro_lm, micro_tokenizer, special_tokenizer
from .sft import ended, exclamation_tokenizer, fresh_rows, item_of, pad_zero_tokenizer
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

# --- 2.1 last_token_index -------------------------------------------------------------------------


def _index(code: TaughtCode, rows: list[list[int]], dtype: torch.dtype = torch.int64) -> dict:
    mask = torch.tensor(rows, dtype=dtype)
    return {"index": tensor("last_token_index", code.reward_model.last_token_index(mask), [len(rows)])}


def _index_kind(code: TaughtCode, mask: Tensor) -> str:
    """What came back, in words; int32 is as good as int64, torch looks up with both."""
    index = code.reward_model.last_token_index(mask)
    is_int32 = isinstance(index, Tensor) and index.dtype == torch.int32
    return in_words(index.long() if is_int32 else index)


@case("last_token_index", "one whole number a row", "a mask [3, 5] of ones")
def index_kind(code: TaughtCode):
    return {"last_token_index returned": _index_kind(code, torch.ones(3, 5, dtype=torch.int64))}


@case(
    "last_token_index",
    "no padding",
    "a mask [3, 5] of ones",
    mistake="Where all is real, the last token is the last column; columns are counted from 0.",
)
def index_full(code: TaughtCode):
    return _index(code, [[1] * 5] * 3)


@case(
    "last_token_index",
    "padding on the right",
    "rows of 3, 1 and 5 tokens",
    mistake="With padding on the right your index is not the last 1 of each row. Is it the first 0, the last column, or "
    "one place too far?",
)
def index_right(code: TaughtCode):
    return _index(code, [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]])


@case(
    "last_token_index",
    "padding on the left",
    "rows of 3, 1 and 5 tokens",
    mistake="Your index is right only where the padding is on the right: the number of tokens tells where a row ends "
    "only if it begins at 0.",
)
def index_left(code: TaughtCode):
    return _index(code, [[0, 0, 1, 1, 1], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]])


@case(
    "last_token_index",
    "padding on both sides",
    "rows of 2, 1 and 3 tokens",
    mistake="With padding on both sides of a row your index is not its last 1. Left or right is no question that the "
    "whole batch has one answer to.",
)
def index_both(code: TaughtCode):
    return _index(code, [[0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 1, 1, 1, 0]])


@case(
    "last_token_index",
    "left and right in one batch",
    "row 0 padded on the left, row 1 on the right",
    mistake="Rows that are padded on different sides disturb each other: each row has to be looked at alone.",
)
def index_mixed(code: TaughtCode):
    return _index(code, [[0, 0, 0, 1, 1], [1, 1, 0, 0, 0]])


@case(
    "last_token_index",
    "a hole in the mask",
    "[1, 0, 1, 1, 0] and [0, 1, 0, 1, 0]",
    mistake="A 0 between two 1 leads your index astray: it is the last 1 that counts, whatever stands before it.",
)
def index_hole(code: TaughtCode):
    return _index(code, [[1, 0, 1, 1, 0], [0, 1, 0, 1, 0]])


@case(
    "last_token_index",
    "a batch of one, a row of one",
    "[[0, 1, 1, 0]] and [[1]]",
    mistake="A batch of one row, or a row of one token, loses a dimension or its index.",
)
def index_one(code: TaughtCode):
    return {"row": _index(code, [[0, 1, 1, 0]])["index"], "token": _index(code, [[1]])["index"]}


@case(
    "last_token_index",
    "a mask of 32 bits",
    "int32",
    mistake="Your index depends on the type of the mask, which may be of int32 as well as of int64.",
)
def index_int32(code: TaughtCode):
    return _index(code, [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]], torch.int32)


@case(
    "last_token_index",
    "a long row",
    "300 tokens, the last at 290",
    mistake="In a long row your index is wrong: a small type of number, or a rounded one, holds the position.",
)
def index_long(code: TaughtCode):
    return _index(code, [[1] * 291 + [0] * 9, [0] * 250 + [1] * 7 + [0] * 43])


@case(
    "last_token_index",
    "no token at all is an error",
    "[[0, 0, 0]]",
    mistake="A mask without any 1 has no last token. It has to be a ValueError, not some index.",
)
def index_none(code: TaughtCode):
    return {
        "raised": raised(lambda: code.reward_model.last_token_index(torch.zeros(1, 3, dtype=torch.int64)))
    }


@case(
    "last_token_index",
    "one empty row is an error",
    "row 0 has tokens, row 1 has none",
    mistake="One row without a token is enough for the ValueError: its score would be read at a pad token.",
)
def index_one_empty(code: TaughtCode):
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    return {"raised": raised(lambda: code.reward_model.last_token_index(mask))}


@case(
    "last_token_index",
    "the mask stays as it was",
    "before and after",
    mistake="Your function changes the mask that it is handed.",
)
def index_arguments(code: TaughtCode):
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    code.reward_model.last_token_index(mask)
    return {"the mask afterwards": mask}


# --- 2.2 RewardModel ------------------------------------------------------------------------------

# Id 0 is EOS and pad. Text 1 is cut (no EOS at its end), text 2 has an EOS inside.
TEXTS = [[31, 45, 77, 0], [31, 45, 102, 98, 200, 77], [54, 0, 31]]


@lru_cache(maxsize=1)
def _built(model_class: type):
    """What the student's `__init__` makes; made once a check, because loading takes the most time."""
    return model_class(micro_folder())


def _fresh_model(code: TaughtCode):
    return copy.deepcopy(_built(code.reward_model.RewardModel))


def _model(code: TaughtCode, *silent: str):
    """A reward model on the micro backbone, without dropout, with a head that is the same each time.

    Args:
        silent: parts of names; weights that carry one are set to 0.
    """
    model = _fresh_model(code).eval()
    with torch.no_grad():
        for weight in model.v_head.parameters():
            weight.zero_()
        model.v_head.weight.copy_(numbers(30, *model.v_head.weight.shape))
        for name, weight in model.backbone.named_parameters():
            if any(part in name for part in silent):
                weight.zero_()
    return model


def _padded(texts: list[list[int]], side: str, extra: int = 0, filler: int = 0) -> tuple[Tensor, Tensor]:
    """Ids and mask of a batch; the padding holds EOS, or ids that begin at `filler` and differ."""
    width = max(map(len, texts)) + extra
    padding = torch.arange(filler, filler + width) if filler else torch.zeros(width, dtype=torch.int64)
    ids, mask = padding.repeat(len(texts), 1), torch.zeros(len(texts), width, dtype=torch.int64)
    for row, text in enumerate(texts):
        start = width - len(text) if side == "left" else 0
        ids[row, start : start + len(text)] = torch.tensor(text)
        mask[row, start : start + len(text)] = 1
    return ids, mask


@torch.no_grad()
def _scores(model, ids: Tensor, mask: Tensor) -> dict:
    return {"score": tensor("RewardModel", model(ids, mask), [len(ids)])}


@case("RewardModel", "a backbone and a head", "a small GPT-2, 16 wide")
def model_parts(code: TaughtCode):
    model = _fresh_model(code)
    if not isinstance(model, nn.Module):
        raise WrongReturn(f"RewardModel(...) is {in_words(model)}, expected a module of torch")
    children = dict(model.named_children())
    head = children.get("v_head")
    return {
        ".backbone is a": type(children.get("backbone")).__name__,
        ".v_head is a": type(head).__name__,
        ".v_head maps": f"{getattr(head, 'in_features', '?')} numbers to {getattr(head, 'out_features', '?')}",
    }


@case(
    "RewardModel",
    "nothing else holds weights",
    "weights outside backbone and v_head",
    mistake="Something beside the backbone and the head holds weights.",
)
def model_weights(code: TaughtCode):
    model = _fresh_model(code)
    outside = [n for n, _ in model.named_parameters() if n.split(".")[0] not in ("backbone", "v_head")]
    return {"weights outside backbone and v_head": outside}


@case(
    "RewardModel",
    "the backbone is the trained one",
    "its weights beside those in the folder",
    mistake="The backbone has the right shape and random weights: what it has learnt is not loaded.",
)
def model_pretrained(code: TaughtCode):
    trained = micro_lm().transformer.wte.weight
    loaded = _fresh_model(code).backbone.get_input_embeddings().weight
    return {"the backbone has the weights of the folder": torch.equal(trained, loaded)}


@case("RewardModel", "one score a text", "ids [3, 4]")
def model_shape(code: TaughtCode):
    model = _model(code)
    score = model(torch.tensor([[31, 45, 77, 0]] * 3), torch.ones(3, 4, dtype=torch.int64))
    return {"the shape of the score": list(tensor("RewardModel", score).shape)}


@case(
    "RewardModel",
    "a batch of one",
    "ids [1, 4]",
    mistake="For a batch of one text the score is not a tensor [1]. Which dimension does your squeeze take away?",
)
def model_batch_of_one(code: TaughtCode):
    model = _model(code)
    score = model(torch.tensor([[31, 45, 77, 0]]), torch.ones(1, 4, dtype=torch.int64))
    return {"the shape of the score": list(tensor("RewardModel", score).shape)}


@case(
    "RewardModel",
    "the same text twice, the same score",
    "eval mode, two calls",
    mistake="Two calls give two scores: something random stays on in eval mode.",
)
def model_repeats(code: TaughtCode):
    model, batch = _model(code), _padded(TEXTS, "right")
    first, second = (_scores(model, *batch)["score"] for _ in range(2))
    return {"the second score is another one": not torch.equal(first, second)}


@case(
    "RewardModel",
    "the score is a plain number of the head",
    "a head of zeros, and a head twice as large",
    mistake="The score is not linear in the head: something squashes, shifts or normalises it.",
)
def model_linear(code: TaughtCode):
    ids, mask = _padded(TEXTS[:1], "right")
    model = _model(code)
    once = _scores(model, ids, mask)["score"]
    with torch.no_grad():
        model.v_head.weight.mul_(2)
        twice = _scores(model, ids, mask)["score"]
        model.v_head.weight.zero_()
    zero = _scores(model, ids, mask)["score"]
    return {"the score with a head of zeros": zero, "twice the head minus twice the score": twice - 2 * once}


@case(
    "RewardModel",
    "one text, no padding",
    "4 tokens",
    mistake="One text alone, without padding, and its score is not the head on the backbone's last hidden state at "
    "the last token. Which layer do you read, at which token, and do the positions begin at 0?",
)
def model_one_text(code: TaughtCode):
    return _scores(_model(code), *_padded(TEXTS[:1], "right"))


@case(
    "RewardModel",
    "padding on the right",
    "texts of 4, 6 and 1 tokens, padded with tokens 55 and up",
    mistake="With padding on the right the score is read at another place than the last real token.",
)
def model_right(code: TaughtCode):
    return _scores(_model(code), *_padded([TEXTS[0], TEXTS[1], TEXTS[2][:1]], "right", extra=2, filler=55))


@case(
    "RewardModel",
    "padding with EOS",
    "the pad token is EOS; text 1 is cut and has none of its own",
    mistake="Where the pad token is EOS, the score is read at another place. Ids cannot tell padding from EOS; the "
    "attention mask can.",
)
def model_pad_is_eos(code: TaughtCode):
    return _scores(_model(code), *_padded(TEXTS[:2], "right", extra=1))


@case(
    "RewardModel",
    "an EOS inside a text",
    "EOS stands in the middle of text 2",
    mistake="An EOS inside a text misleads you: the text ends at the last 1 of its mask, not at the first EOS.",
)
def model_eos_inside(code: TaughtCode):
    return _scores(_model(code), *_padded(TEXTS, "right", extra=1))


@case(
    "RewardModel",
    "on the left: where the score is read",
    "a backbone whose tokens see neither each other nor their position",
    mistake="With padding on the left the score is read at another place than the last real token: the number of tokens "
    "does not tell where the row ends.",
)
def model_left_index(code: TaughtCode):
    return _scores(_model(code, "wpe", "attn.c_proj"), *_padded(TEXTS, "left", extra=2, filler=55))


@case(
    "RewardModel",
    "on the left: padding is not read",
    "a backbone that does not see positions, padding of tokens 55 and up",
    mistake="The tokens of the text see the padding before them: the attention mask does not reach the backbone.",
)
def model_left_attention(code: TaughtCode):
    return _scores(_model(code, "wpe"), *_padded(TEXTS, "left", extra=2, filler=55))


@case(
    "RewardModel",
    "on the left: positions are counted from the text",
    "the same texts, padded by 2 on the left",
    mistake="A text that is padded on the left is read as if it began in the middle: GPT-2 counts the padding as "
    "positions unless it is told which token has which (`position_ids`).",
)
def model_left_positions(code: TaughtCode):
    return _scores(_model(code), *_padded(TEXTS, "left", extra=2, filler=55))


@case(
    "RewardModel",
    "on the left: a full row beside a padded one",
    "texts of 6 and 4 tokens in one batch, in both orders",
    mistake="Where one row is padded on the left and another is full, a score is wrong: the positions of all rows depend "
    "on whether some row is padded. Each row has positions of its own.",
)
def model_left_full_row(code: TaughtCode):
    model, texts = _model(code), [TEXTS[1], TEXTS[0]]
    return {
        f"score, {name}": _scores(model, *_padded(batch, "left", filler=55))["score"]
        for name, batch in {"full row first": texts, "padded row first": texts[::-1]}.items()
    }


@case(
    "RewardModel",
    "a token that the mask hides is not read",
    "mask [1, 1, 0, 1, 1], two ids under the 0",
    mistake="A token whose mask is 0 changes the score: the attention mask does not reach the backbone. (Padding alone "
    "may not show this: transformers can guess it from the positions.)",
)
def model_hidden_token(code: TaughtCode):
    model, mask = _model(code), torch.tensor([[1, 1, 0, 1, 1]])
    scores = [_scores(model, torch.tensor([[31, 45, under, 93, 18]]), mask)["score"] for under in (77, 250)]
    return {"the score changes": bool((scores[0] - scores[1]).abs() > 1e-4)}


@case(
    "RewardModel",
    "the score does not depend on the batch",
    "each text alone, and all together on the left and on the right",
    mistake="The score of a text changes with the other texts of its batch.",
)
def model_batch_mates(code: TaughtCode):
    model = _model(code)
    alone = torch.cat([_scores(model, *_padded([text], "right"))["score"] for text in TEXTS])
    together = {side: _scores(model, *_padded(TEXTS, side, 1, 77))["score"] for side in ("left", "right")}
    return {
        f"the scores change in a batch, padding on the {side}": bool((scores - alone).abs().max() > 1e-4)
        for side, scores in together.items()
    }


@case(
    "RewardModel",
    "the gradient reaches head and backbone",
    "of the scores' sum",
    mistake="The gradient does not reach both the head and the backbone (detach, no_grad, requires_grad): what it does "
    "not reach is not trained.",
)
def model_gradient(code: TaughtCode):
    model = _model(code)
    score = tensor("RewardModel", model(*_padded(TEXTS, "right")))
    if score.requires_grad:
        score.sum().backward()
    return {
        f"the gradient reaches the {name}": any(
            weight.grad is not None and bool(weight.grad.abs().sum() > 0) for weight in part.parameters()
        )
        for name, part in {"head": model.v_head, "backbone": model.backbone}.items()
    }


@case(
    "RewardModel",
    "all of the backbone is trained",
    "weights that ask for a gradient",
    mistake="A part of the backbone is frozen. Reward models are trained whole.",
)
def model_frozen(code: TaughtCode):
    model = _model(code)
    return {"frozen weights": [name for name, w in model.named_parameters() if not w.requires_grad][:3]}


@case(
    "RewardModel",
    "dropout is the caller's choice",
    "in training mode and in eval mode",
    mistake="Your forward changes the model's mode: train() and eval() are called by who uses the model.",
)
def model_mode(code: TaughtCode):
    model = _model(code)
    modes = {}
    for training in (True, False):
        model.train(training)
        model(*_padded(TEXTS, "right"))
        modes[f"training afterwards, before {training}"] = model.training and model.backbone.training
    return modes


@case(
    "RewardModel",
    "ids and mask stay as they were",
    "before and after",
    mistake="Your forward changes the ids or the mask that it is handed.",
)
def model_arguments(code: TaughtCode):
    ids, mask = _padded(TEXTS, "right", extra=1, filler=55)
    before = ids.clone(), mask.clone()
    _scores(_model(code), ids, mask)
    return {
        "the ids changed": not torch.equal(ids, before[0]),
        "the mask changed": not torch.equal(mask, before[1]),
    }


@case(
    "RewardModel",
    "the head has no bias",
    "v_head.bias",
    mistake="The head has a bias. It is added to both scores of a pair and cancels, so nothing can teach it.",
)
def model_bias(code: TaughtCode):
    head = _fresh_model(code).v_head
    return {"the head has a bias": getattr(head, "bias", None) is not None}


# --- 2.3 RMDataset --------------------------------------------------------------------------------

PAIR_COLUMNS = ("chosen_ids", "chosen_mask", "rejected_ids", "rejected_mask")

PAIRS = [
    {"prompt": "the soup", "chosen": " was warm", "rejected": " was bad, bad"},
    {"prompt": "今天的天气", "chosen": "很好", "rejected": " is bad"},
    {"prompt": "The room", "chosen": " is warm and the food is good, very good", "rejected": " is cold"},
]


def _pairs(code: TaughtCode, rows: list[dict], tokenizer=None, max_len: int = 14):
    return code.reward_model.RMDataset(fresh_rows(rows), tokenizer or micro_tokenizer(), max_len)


def _pair(code: TaughtCode, row: dict, tokenizer=None, max_len: int = 14) -> dict[str, Tensor]:
    return item_of("RMDataset", _pairs(code, [row], tokenizer, max_len), 0, *PAIR_COLUMNS)


@case("RMDataset", "as many items as pairs", "3 pairs that differ")
def pairs_length(code: TaughtCode):
    return {"len(dataset)": len(_pairs(code, PAIRS))}


@case(
    "RMDataset",
    "an item is four long tensors",
    "max_len 14",
    mistake="Each of the four columns has to be one tensor [max_len] of int64 (`torch.long`).",
)
def pairs_kinds(code: TaughtCode):
    item = entries("RMDataset[0]", _pairs(code, PAIRS)[0], *PAIR_COLUMNS)
    return {name: in_words(item[name]) for name in PAIR_COLUMNS}


@case(
    "RMDataset",
    "the chosen text: prompt, response, EOS",
    "'the soup' + ' was warm'",
    mistake="The chosen text is not laid out as in exercise 1.1: prompt, response, one EOS, padding. Is it the chosen "
    "response, and is the prompt there?",
)
def pairs_chosen(code: TaughtCode):
    return {"chosen_ids": _pair(code, PAIRS[0])["chosen_ids"]}


@case(
    "RMDataset",
    "the rejected text: prompt, response, EOS",
    "'the soup' + ' was bad, bad'",
    mistake="The chosen text is right and the rejected one is not. Is it the rejected response, and is the prompt there?",
)
def pairs_rejected(code: TaughtCode):
    return {"rejected_ids": _pair(code, PAIRS[0])["rejected_ids"]}


@case(
    "RMDataset",
    "the masks count the EOS",
    "the pad token is EOS",
    mistake="The masks are not 1 on prompt, response and EOS and 0 on the padding, each for its own text. They come from "
    "lengths, not from ids, and they are not the labels.",
)
def pairs_masks(code: TaughtCode):
    item = _pair(code, PAIRS[0])
    return {"chosen_mask": item["chosen_mask"], "rejected_mask": item["rejected_mask"]}


@case(
    "RMDataset",
    "each index has its own pair",
    "pairs 1 and 2; text 2 is cut at 14 tokens",
    mistake="Item 0 is right and another is not. Which pair does an index stand for?",
)
def pairs_rows(code: TaughtCode):
    dataset = _pairs(code, PAIRS)
    return {f"item {i}": item_of("RMDataset", dataset, i, *PAIR_COLUMNS) for i in (1, 2)}


@case(
    "RMDataset",
    "an index behind the end is an error",
    "3 pairs, index 3",
    mistake="An index behind the last pair has to be an IndexError: without it `for pair in dataset` never ends.",
)
def pairs_end(code: TaughtCode):
    return {"raised": ended(_pairs(code, PAIRS))}


@case(
    "RMDataset",
    "max_len is the length of a row",
    "max_len 16 and 20",
    mistake="The rows do not have the length that was asked for.",
)
def pairs_max_len(code: TaughtCode):
    items = {n: _pair(code, PAIRS[0], max_len=n) for n in (16, 20)}
    return {
        f"the length of {name}, max_len {n}": len(item[name])
        for n, item in items.items()
        for name in PAIR_COLUMNS
    }


@case(
    "RMDataset",
    "a tokenizer without a pad token gets one",
    "as GPT-2's comes",
    mistake="After your data set is made from a tokenizer without a pad token, its pad token has to be its EOS token.",
)
def pairs_no_pad(code: TaughtCode):
    tokenizer = micro_tokenizer(pad=False)
    item = _pair(code, PAIRS[0], tokenizer)
    return {"tokenizer.pad_token": tokenizer.pad_token, "chosen_ids": item["chosen_ids"]}


@case(
    "RMDataset",
    "a pad token that is there stays",
    "the tokenizer pads with '!' (1), EOS is 0",
    mistake="This tokenizer has a pad token of its own: it stays, it fills the rows, and EOS ends the texts.",
)
def pairs_own_pad(code: TaughtCode):
    tokenizer = exclamation_tokenizer()
    item = _pair(code, PAIRS[0], tokenizer)
    return {"tokenizer.pad_token": tokenizer.pad_token} | item


@case(
    "RMDataset",
    "a pad token whose id is 0 stays",
    "the tokenizer pads with '<|endoftext|>' (0), EOS is '!' (1)",
    mistake="Id 0 is a pad token like any other, and you replace it. How do you tell that there is none?",
)
def pairs_pad_zero(code: TaughtCode):
    tokenizer = pad_zero_tokenizer()
    item = _pair(code, PAIRS[0], tokenizer)
    return {"tokenizer.pad_token": tokenizer.pad_token} | item


@case(
    "RMDataset",
    "no special tokens",
    "a tokenizer that adds EOS before and after a text",
    mistake="The tokenizer adds special tokens to the texts. It has to be told not to.",
)
def pairs_special_tokens(code: TaughtCode):
    return _pair(code, PAIRS[0], special_tokenizer(), 16)


@case(
    "RMDataset",
    "prompt and response are tokenised apart",
    "'The weat' and 'her is fine ': together they would be other tokens",
    mistake="Prompt and response are not tokenised each on its own, with the texts just as they are.",
)
def pairs_apart(code: TaughtCode):
    return _pair(code, {"prompt": "The weat", "chosen": "her is fine ", "rejected": "her"})


@case(
    "RMDataset",
    "a pair of equal texts is dropped",
    "pair 1 of 3 has the same text twice",
    mistake="A pair whose two texts are equal says nothing, and yours is still there (or another one is not).",
)
def pairs_equal(code: TaughtCode):
    same = {"prompt": "the soup", "chosen": " was warm", "rejected": " was warm"}
    dataset = _pairs(code, [PAIRS[0], same, PAIRS[1]])
    items = [item_of("RMDataset", dataset, i, *PAIR_COLUMNS) for i in range(len(dataset))]
    return {"len(dataset)": len(dataset), "chosen_ids": [item["chosen_ids"] for item in items]}


@case(
    "RMDataset",
    "dropped pairs are counted",
    "2 of 4 pairs have the same text twice",
    mistake="`dropped` is not the number of pairs that were left out.",
)
def pairs_dropped(code: TaughtCode):
    same = {"prompt": "the soup", "chosen": " was warm", "rejected": " was warm"}
    dataset = _pairs(code, [same, PAIRS[0], PAIRS[1], same])
    return {"dropped": getattr(dataset, "dropped", "missing"), "len(dataset)": len(dataset)}


@case(
    "RMDataset",
    "nothing dropped",
    "3 pairs that differ",
    mistake="Without a pair to drop, `dropped` has to be 0.",
)
def pairs_none_dropped(code: TaughtCode):
    return {"dropped": getattr(_pairs(code, PAIRS), "dropped", "missing")}


@case(
    "RMDataset",
    "equal once they are cut",
    "two pairs that differ only behind max_len",
    mistake="Two texts that differ only behind max_len are the same once they are cut: compare what is left of them.",
)
def pairs_cut(code: TaughtCode):
    close, far = " was the", " was the food and the room and the"  # of 2 tokens and of more than max_len
    rows = [PAIRS[0] | {"chosen": same + " warm", "rejected": same + " cold"} for same in (close, far)]
    dataset = _pairs(code, rows, max_len=5)
    return {"len(dataset)": len(dataset), "dropped": getattr(dataset, "dropped", "missing")}


@case(
    "RMDataset",
    "different to the last token before the cut",
    "EOS here and a word there",
    mistake="You drop a pair that still differs within max_len. The EOS is a token that counts.",
)
def pairs_cut_differ(code: TaughtCode):
    dataset = _pairs(code, [PAIRS[0] | {"chosen": " was", "rejected": " was good"}], max_len=5)
    return {"len(dataset)": len(dataset), "dropped": getattr(dataset, "dropped", "missing")}


@case(
    "RMDataset",
    "different texts of the same length",
    "' was' and ' is', one token each",
    mistake="You drop a pair of two different texts that are equally long. What counts is the tokens.",
)
def pairs_same_length(code: TaughtCode):
    dataset = _pairs(code, [PAIRS[0] | {"chosen": " was", "rejected": " is"}])
    return {"len(dataset)": len(dataset), "dropped": getattr(dataset, "dropped", "missing")}


@case(
    "RMDataset",
    "the prompt leaves no room",
    "a prompt of more than max_len tokens",
    mistake="Where the prompt fills the row, both texts are cut to the same tokens: such a pair is dropped and counted. "
    "Compare before you lay the texts out.",
)
def pairs_no_room(code: TaughtCode):
    dataset = _pairs(
        code, [{"prompt": PAIRS[2]["chosen"], "chosen": " is good", "rejected": " is bad"}], max_len=5
    )
    return {"len(dataset)": len(dataset), "dropped": getattr(dataset, "dropped", "missing")}


@case(
    "RMDataset",
    "an EOS written in a text",
    "' was<|endoftext|>' beside ' was', the pad token is EOS",
    mistake="These two texts differ by one EOS, and only padding makes their rows look alike. Compare the texts before "
    "they are padded.",
)
def pairs_eos(code: TaughtCode):
    dataset = _pairs(code, [PAIRS[0] | {"chosen": " was", "rejected": " was<|endoftext|>"}])
    masks = [item_of("RMDataset", dataset, i, *PAIR_COLUMNS)["rejected_mask"] for i in range(len(dataset))]
    return {
        "len(dataset)": len(dataset),
        "dropped": getattr(dataset, "dropped", "missing"),
        "rejected_mask": masks,
    }


@case(
    "RMDataset",
    "padding is on the right",
    "a tokenizer that pads on the left",
    mistake="Padding follows the tokenizer's own side. In training it is on the right, whatever the tokenizer does.",
)
def pairs_left_tokenizer(code: TaughtCode):
    tokenizer = micro_tokenizer()
    tokenizer.padding_side = "left"
    return _pair(code, PAIRS[0], tokenizer)


@case(
    "RMDataset",
    "the data stay as they were",
    "the rows, before and after",
    mistake="Your data set changes the rows that it is handed.",
)
def pairs_arguments(code: TaughtCode):
    data = fresh_rows(PAIRS)
    item_of("RMDataset", code.reward_model.RMDataset(data, micro_tokenizer(), 14), 0, *PAIR_COLUMNS)
    return {"the data changed": data != PAIRS}


# --- 2.4 rm_loss ----------------------------------------------------------------------------------


def _loss_and_accuracy(code: TaughtCode, chosen: Tensor, rejected: Tensor) -> tuple[Tensor, float]:
    """The loss as a tensor without dimensions, the accuracy as a number."""
    loss, accuracy = parts("rm_loss", code.reward_model.rm_loss(chosen, rejected), "loss", "accuracy")
    if isinstance(accuracy, (int, float)):
        return tensor("rm_loss, as the loss,", loss, []), float(accuracy)
    return tensor("rm_loss, as the loss,", loss, []), float(tensor("rm_loss, as the accuracy,", accuracy, []))


def _rm_loss(code: TaughtCode, chosen: list[float], rejected: list[float]) -> dict:
    return {"the loss": _loss_and_accuracy(code, torch.tensor(chosen), torch.tensor(rejected))[0]}


def _accuracy(code: TaughtCode, chosen: list[float], rejected: list[float]) -> dict:
    return {"the accuracy": _loss_and_accuracy(code, torch.tensor(chosen), torch.tensor(rejected))[1]}


@case("rm_loss", "a loss and an accuracy, one number each", "3 pairs")
def bt_shape(code: TaughtCode):
    loss, accuracy = _loss_and_accuracy(code, numbers(40, 3), numbers(41, 3))
    return {
        "the shape of the loss": list(loss.shape),
        "the accuracy is a number": isinstance(accuracy, float),
    }


@case(
    "rm_loss",
    "the loss can be learnt from",
    "scores that carry a gradient",
    mistake="The loss carries no gradient, so backward has nothing to go through. Which step cuts it off?",
)
def bt_learns(code: TaughtCode):
    loss, _ = _loss_and_accuracy(code, numbers(40, 3).requires_grad_(), numbers(41, 3).requires_grad_())
    return {"the loss carries a gradient": loss.requires_grad}


@case(
    "rm_loss",
    "undecided: ln 2",
    "one pair with the same score twice",
    mistake="Two equal scores mean a chance of one half, and a loss of ln 2. Do you miss the logarithm, its sign or a "
    "factor?",
)
def bt_equal(code: TaughtCode):
    return _rm_loss(code, [1.5], [1.5])


@case(
    "rm_loss",
    "the better response is the chosen one",
    "the chosen one is ahead by 3, and behind by 3",
    mistake="The loss has to be small where the chosen response has the higher score, and large where it has the lower "
    "one.",
)
def bt_direction(code: TaughtCode):
    ahead, behind = _rm_loss(code, [2.0], [-1.0])["the loss"], _rm_loss(code, [-1.0], [2.0])["the loss"]
    return {"the loss is lower where the chosen one is ahead": bool(ahead < behind)}


@case(
    "rm_loss",
    "only the difference counts",
    "100 is added to both scores",
    mistake="Adding the same number to both scores changes your loss. Only their difference may enter it.",
)
def bt_offset(code: TaughtCode):
    low = _rm_loss(code, [0.5, -1.0], [-0.25, 1.0])["the loss"]
    return {"the loss changes by": _rm_loss(code, [100.5, 99.0], [99.75, 101.0])["the loss"] - low}


@case(
    "rm_loss",
    "the loss of one pair",
    "differences 0.8 and -1.7, one pair each",
    mistake="For one pair the loss has the right sign and direction, and its value is not that of the docstring's formula.",
)
def bt_one_pair(code: TaughtCode):
    return {
        "the loss, 0.8 ahead": _rm_loss(code, [0.5], [-0.3])["the loss"],
        "the loss, 1.7 behind": _rm_loss(code, [-0.7], [1.0])["the loss"],
    }


@case(
    "rm_loss",
    "the mean over pairs",
    "4 pairs",
    mistake="For one pair the loss is right, for four it is not: their losses have to be averaged, after the logarithm.",
)
def bt_mean(code: TaughtCode):
    return _rm_loss(code, [0.5, -1.0, 2.0, 0.1], [-0.3, 1.5, 1.8, 4.0])


@case(
    "rm_loss",
    "far ahead",
    "differences 30, 200 and 10000, one pair each",
    mistake="Where the chosen response is far ahead the loss goes to 0. Yours is something else, or no number.",
)
def bt_far_ahead(code: TaughtCode):
    return {f"the loss, {d:g} ahead": _rm_loss(code, [d], [0.0])["the loss"] for d in (30.0, 200.0, 10000.0)}


@case(
    "rm_loss",
    "far behind, and finite",
    "differences -30, -200 and -10000, one pair each",
    mistake="Where the chosen response is far behind your loss is infinite or not a number: the sigmoid is rounded to 0, "
    "and 0 has no logarithm. Which function of torch takes both steps in one?",
)
def bt_far_behind_finite(code: TaughtCode):
    losses = {d: _rm_loss(code, [-d], [0.0])["the loss"] for d in (30.0, 200.0, 10000.0)}
    return {f"the loss, {d:g} behind, is a number": bool(loss.isfinite()) for d, loss in losses.items()}


@case(
    "rm_loss",
    "far behind",
    "differences -30, -200 and -10000, one pair each",
    mistake="Your loss stops growing where the difference is large: something bounds it.",
)
def bt_far_behind(code: TaughtCode):
    return {
        f"the loss, {d:g} behind": _rm_loss(code, [-d], [0.0])["the loss"] for d in (30.0, 200.0, 10000.0)
    }


@case(
    "rm_loss",
    "the gradient of both scores",
    "3 pairs",
    mistake="The loss is right and its gradient is not: one of the two scores, or a part of the loss, is cut off.",
)
def bt_gradient(code: TaughtCode):
    chosen, rejected = numbers(42, 3).requires_grad_(), numbers(43, 3).requires_grad_()
    _loss_and_accuracy(code, chosen, rejected)[0].backward()
    zero = torch.zeros(3)
    return {
        "the gradient of r_chosen": zero if chosen.grad is None else chosen.grad,
        "the gradient of r_rejected": zero if rejected.grad is None else rejected.grad,
    }


@case(
    "rm_loss",
    "a finite gradient far behind",
    "differences -200 and 200",
    mistake="The loss of a large difference is finite, and its gradient is not.",
)
def bt_far_gradient(code: TaughtCode):
    chosen = torch.tensor([-200.0, 200.0]).requires_grad_()
    _loss_and_accuracy(code, chosen, torch.zeros(2))[0].backward()
    return {"the gradient of r_chosen": chosen.grad}


@case(
    "rm_loss",
    "accuracy: all right, all wrong",
    "two pairs, chosen ahead; then behind",
    mistake="The accuracy is not the share of pairs in which the chosen response has the higher score: it is 1 where all "
    "are right, and 0 where none is.",
)
def bt_accuracy_extremes(code: TaughtCode):
    return {
        "the accuracy, chosen ahead": _accuracy(code, [2.0, 0.2], [1.0, -0.6])["the accuracy"],
        "the accuracy, chosen behind": _accuracy(code, [1.0, -0.3], [2.0, 0.2])["the accuracy"],
    }


@case(
    "rm_loss",
    "accuracy: a share",
    "3 of 4 pairs are right, scores of both signs",
    mistake="The accuracy is wrong where some pairs are right and some are wrong. A pair is right when the chosen one is "
    "higher, however high or low both are, and each pair counts the same.",
)
def bt_accuracy(code: TaughtCode):
    return _accuracy(code, [-2.0, 5.0, -0.3, 1.0], [-3.0, 1.0, -0.5, 9.2])


@case(
    "rm_loss",
    "accuracy: a tie is not correct",
    "2 of 4 pairs are ties",
    mistake="You count a tie as right, or as half right. The chosen response has to score strictly higher.",
)
def bt_ties(code: TaughtCode):
    return _accuracy(code, [1.0, 2.0, 0.0, 5.0], [1.0, 1.0, 3.0, 5.0])


@case(
    "rm_loss",
    "the accuracy carries no gradient",
    "scores that carry a gradient",
    mistake="The accuracy carries a gradient. It is a count to look at, not something to learn from.",
)
def bt_accuracy_gradient(code: TaughtCode):
    scores = numbers(44, 3).requires_grad_(), numbers(45, 3).requires_grad_()
    _, accuracy = parts("rm_loss", code.reward_model.rm_loss(*scores), "loss", "accuracy")
    return {"the accuracy carries a gradient": getattr(accuracy, "requires_grad", False)}


@case(
    "rm_loss",
    "a batch of one",
    "one pair",
    mistake="A batch of one pair is not handled like any other.",
)
def bt_one(code: TaughtCode):
    return _rm_loss(code, [0.5], [0.1]) | _accuracy(code, [0.5], [0.1])


@case(
    "rm_loss",
    "the scores stay as they were",
    "before and after",
    mistake="Your function changes the scores that it is handed.",
)
def bt_arguments(code: TaughtCode):
    chosen, rejected = numbers(46, 3), numbers(47, 3)
    code.reward_model.rm_loss(chosen, rejected)
    return {
        "r_chosen changed": not torch.equal(chosen, numbers(46, 3)),
        "r_rejected changed": not torch.equal(rejected, numbers(47, 3)),
    }


# --- 2.5 train_rm ---------------------------------------------------------------------------------


class WatchedRM(WatchedModel):
    """A reward model over nine tokens."""

    def __init__(self, scale: float = 1.0):
        super().__init__(n_out=1, scale=scale, bias=False)

    def forward(self, input_ids, attention_mask=None):
        output = self.read(input_ids, attention_mask)[..., 0]
        if attention_mask is None:
            return output[:, -1]
        last = (torch.arange(output.shape[1], device=output.device) * (attention_mask != 0)).argmax(-1)
        return output[torch.arange(len(output), device=output.device), last]


def _pair_batch(*pairs: tuple[list[int], list[int]], width: int = 6) -> dict[str, Tensor]:
    """A batch of `(chosen, rejected)` texts, padded on the right with token 8."""
    batch = {name: [] for name in PAIR_COLUMNS}
    for pair in pairs:
        for name, text in zip(("chosen", "rejected"), pair, strict=True):
            n_pad = width - len(text)
            batch[f"{name}_ids"].append(text + [8] * n_pad)
            batch[f"{name}_mask"].append([1] * len(text) + [0] * n_pad)
    return {name: torch.tensor(column) for name, column in batch.items()}


def _pair_batches() -> list[dict[str, Tensor]]:
    """Three batches of ragged pairs, of different accuracy."""
    return [
        _pair_batch(([5, 6, 1, 0], [5, 6, 2, 3, 0]), ([7, 4, 0], [7, 0]), ([1, 5, 5, 3, 2, 6], [1, 0])),
        _pair_batch(([4, 4, 1, 0], [4, 4, 7, 7, 6, 0]), ([2, 3, 0], [2, 5, 5, 0]), ([6, 0], [6, 1, 7, 0])),
        _pair_batch(([3, 1, 0], [3, 2, 2, 0]), ([5, 7, 7, 0], [5, 0]), ([6, 2, 4, 1, 1, 0], [6, 2, 0])),
    ]


def _train_rm(code: TaughtCode, model, batches, n_epochs: int = 1, lr: float = 0.0) -> list[dict]:
    history = code.reward_model.train_rm(model, batches, n_epochs=n_epochs, lr=lr, device="cpu")
    if not isinstance(history, list):
        raise WrongReturn(f"train_rm returned {in_words(history)}, expected a list of dictionaries")
    return [entries("train_rm, as a step,", step, "loss", "accuracy") for step in history]


@case("train_rm", "it returns loss and accuracy, as numbers", "3 batches, 2 epochs, a model of 40 numbers")
def rm_kinds(code: TaughtCode):
    history = _train_rm(code, WatchedRM(), _pair_batches(), n_epochs=2, lr=0.01)
    kinds = {name: {counted(step[name]) for step in history} for name in ("loss", "accuracy")}
    return {
        f"{name} is": sorted({kind if isinstance(kind, str) else "a number" for kind in found})
        for name, found in kinds.items()
    }


@case(
    "train_rm",
    "one step a batch, in each epoch",
    "3 batches, 2 epochs",
    mistake="The optimiser does not step once for each batch of each epoch. Which of the two loops does the step "
    "stand in?",
)
def rm_steps(code: TaughtCode):
    with recorded_steps() as steps:
        _train_rm(code, WatchedRM(), _pair_batches(), n_epochs=2, lr=0.01)
    return {"steps of the optimiser": len(steps)}


@case(
    "train_rm",
    "one entry a step",
    "3 batches, 2 epochs",
    mistake="You do not return one dictionary for each step. Which of the two loops does the append stand in?",
)
def rm_count(code: TaughtCode):
    return {
        "the length of the history": len(_train_rm(code, WatchedRM(), _pair_batches(), n_epochs=2, lr=0.01))
    }


@case(
    "train_rm",
    "the weights move",
    "3 batches, 2 epochs, lr 0.01",
    mistake="The weights of the model that you are handed are the same after training. Does the gradient reach the "
    "optimiser, and is it that model that you train?",
)
def rm_moves(code: TaughtCode):
    model = WatchedRM()
    before = model.all_weights()
    _train_rm(code, model, _pair_batches(), n_epochs=2, lr=0.01)
    return {"the weights moved": not torch.equal(before, model.all_weights())}


@case(
    "train_rm",
    "the loss of each batch",
    "learning rate 0, 3 batches of ragged pairs",
    mistake="With a learning rate of 0 each loss has to be that of exercise 2.4 for its own batch. Does each text go "
    "through the model with its own mask, and is each chosen score compared with its own rejected one?",
)
def rm_losses(code: TaughtCode):
    return {"loss": [counted(step["loss"]) for step in _train_rm(code, WatchedRM(), _pair_batches())]}


@case(
    "train_rm",
    "the accuracy of each batch",
    "learning rate 0, 3 batches of 3 pairs",
    mistake="The losses are right and the accuracies are not: with a learning rate of 0 each is that of exercise 2.4 for "
    "its own batch.",
)
def rm_accuracies(code: TaughtCode):
    return {"accuracy": [counted(step["accuracy"]) for step in _train_rm(code, WatchedRM(), _pair_batches())]}


@case(
    "train_rm",
    "the optimiser is AdamW",
    "what takes the steps",
    mistake="The docstring asks for AdamW, and another optimiser takes the steps.",
)
def rm_optimizer(code: TaughtCode):
    return kinds_of_optimiser(lambda: _train_rm(code, WatchedRM(), _pair_batches(), lr=0.01))


@case(
    "train_rm",
    "the learning rate is the one that was asked for",
    "lr 0.03, 3 batches, 2 epochs",
    mistake="The optimiser does not step with the learning rate that your function was handed: it is constant, for all "
    "weights and in all steps.",
)
def rm_lr(code: TaughtCode):
    return learning_rates(lambda: _train_rm(code, WatchedRM(), _pair_batches(), n_epochs=2, lr=0.03))


@case(
    "train_rm",
    "backbone and head are trained",
    "36 weights in the backbone, 4 in the head",
    mistake="The optimiser does not hold all weights: backbone and head are trained together.",
)
def rm_all_weights(code: TaughtCode):
    return weights_held(lambda: _train_rm(code, WatchedRM(), _pair_batches(), lr=0.01))


@case(
    "train_rm",
    "one optimiser for the whole run",
    "3 batches, 2 epochs",
    mistake="You make a new optimiser in the loop: AdamW forgets its running averages each time.",
)
def rm_one_optimizer(code: TaughtCode):
    return number_of_optimisers(lambda: _train_rm(code, WatchedRM(), _pair_batches(), n_epochs=2, lr=0.01))


@case(
    "train_rm",
    "a small gradient stays as it is",
    "the first step of a model with small scores",
    mistake="At the first step the gradient of a small loss is not the gradient of that loss: it is scaled, a part of it "
    "is cut off, or it is zeroed before the step.",
)
def rm_small_gradient(code: TaughtCode):
    return small_norms(lambda: _train_rm(code, WatchedRM(scale=0.05), _pair_batches()[:1]))


@case(
    "train_rm",
    "the first step goes down the gradient",
    "lr 0.01, one step: which way each weight of the head moves",
    mistake="A weight moves the wrong way, and the loss grows. A step goes against the gradient of the loss: look at the "
    "sign of what you call backward on, at the optimiser's options, and at what happens to the gradients.",
)
def rm_downhill(code: TaughtCode):
    model = WatchedRM()
    moves = model.moves_of_head(lambda: _train_rm(code, model, _pair_batches()[:1], lr=0.01))
    return {"the moves of the head's weights": moves}


@case(
    "train_rm",
    "each step has the gradient of its own batch",
    "the same batch twice, learning rate 0: the same gradient twice",
    mistake="The second step still carries the gradient of the first: gradients add up until they are set to zero.",
)
def rm_zero_grad(code: TaughtCode):
    return small_norms(lambda: _train_rm(code, WatchedRM(scale=0.05), _pair_batches()[:1] * 2, n_epochs=2))


@case(
    "train_rm",
    "the second epoch is like the first",
    "learning rate 0, 3 batches, 2 epochs: each batch comes back with the same loss and gradient",
    mistake="The first epoch is right and the second is not, though nothing has changed in between: it reads other batches, "
    "or does something else with them.",
)
def rm_second_epoch(code: TaughtCode):
    with recorded_steps() as steps:
        history = _train_rm(code, WatchedRM(scale=0.05), _pair_batches(), n_epochs=2)
    return {
        "loss": [counted(step["loss"]) for step in history],
        "accuracy": [counted(step["accuracy"]) for step in history],
        **gradient_changes(steps, 3),
    }


@case(
    "train_rm",
    "the norm of a large gradient is cut to 1",
    "three batches, two of them with a large gradient",
    mistake="What reaches the step is not the gradient with its norm clipped to 1: the norm of all weights together, "
    "and before the step.",
)
def rm_clip(code: TaughtCode):
    return norms(lambda: _train_rm(code, WatchedRM(scale=20.0), _pair_batches()))


@case(
    "train_rm",
    "the loss is taken before its step",
    "lr 0.5, the first step",
    mistake="The losses in your history are not those that were trained on: they are computed again after the step.",
)
def rm_before_step(code: TaughtCode):
    first = _train_rm(code, WatchedRM(), _pair_batches()[:1], lr=0.5)[0]
    return {"the first loss": counted(first["loss"]), "the first accuracy": counted(first["accuracy"])}


@case(
    "train_rm",
    "training mode",
    "a model that comes in eval mode, and one that does not",
    mistake="The model is not in training mode while it trains: dropout stays off.",
)
def rm_mode(code: TaughtCode):
    arriving, models = ("eval", "training"), (WatchedRM().eval(), WatchedRM().train())
    for model in models:
        _train_rm(code, model, _pair_batches(), n_epochs=2, lr=0.01)
    return {
        f"training in all passes, coming in {mode} mode": all(one.training for one in model.passes)
        for mode, model in zip(arriving, models, strict=True)
    }


@case(
    "train_rm",
    "training mode in every part",
    "backbone, head and dropout of the model",
    mistake="The model is in training mode while it trains, and a part of it is not.",
)
def rm_mode_of_parts(code: TaughtCode):
    model = WatchedRM().eval()
    _train_rm(code, model, _pair_batches(), n_epochs=2, lr=0.01)
    return {"all parts training in all passes": all(one.parts_training for one in model.passes)}


@case(
    "train_rm",
    "the data loader is gone through in each epoch",
    "a loader of 3 batches that can only be gone through, 2 epochs",
    mistake="You keep the batches of the first epoch, or ask for them by number. Going through the loader anew is what gives "
    "each epoch an order of its own.",
)
def rm_loader(code: TaughtCode):
    loader = Loader(_pair_batches())
    _train_rm(code, WatchedRM(), loader, n_epochs=2)
    return {"the loader is gone through in both epochs": loader.rounds >= 2}


@case(
    "train_rm",
    "no epoch, no change",
    "n_epochs 0",
    mistake="With n_epochs=0 there is nothing to train and nothing to return.",
)
def rm_no_epoch(code: TaughtCode):
    model = WatchedRM()
    before = model.all_weights()
    history = _train_rm(code, model, _pair_batches(), n_epochs=0, lr=0.01)
    return {"the history": history, "the weights moved": not torch.equal(before, model.all_weights())}


@case(
    "train_rm",
    "a last batch of one pair",
    "learning rate 0, one pair",
    mistake="A batch of one pair (the last of an epoch may be one) is not handled like any other.",
)
def rm_one_pair(code: TaughtCode):
    history = _train_rm(code, WatchedRM(), [_pair_batch(([5, 6, 1, 0], [5, 6, 2, 3, 0]))])
    return {name: [counted(step[name]) for step in history] for name in ("loss", "accuracy")}


@case(
    "train_rm",
    "model and batches go to the device",
    'the device "meta", which holds no numbers',
    mistake="The model or the batch does not go to `device`: on a GPU this stops with an error.",
)
def rm_device(code: TaughtCode):
    model = WatchedRM()
    # nothing can be read from "meta": the loop ends with an error once it has a loss
    raised(lambda: code.reward_model.train_rm(model, _pair_batches(), n_epochs=1, lr=0.01, device="meta"))
    first = model.passes[0] if model.passes else None
    return {"the model is on": first and first.weights_on, "the batch is on": first and first.ids_on}


@case(
    "train_rm",
    "the batches stay as they were",
    "before and after",
    mistake="Your loop changes the batches that it is handed: the second epoch sees other data.",
)
def rm_arguments(code: TaughtCode):
    batches = _pair_batches()
    _train_rm(code, WatchedRM(), batches, lr=0.01)
    return changed(batches, _pair_batches())
