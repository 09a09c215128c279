"""Wrong and correct implementations of the exercises in `reward_model.py`."""

from . import body, right, wrong

# --- 2.1 last_token_index -------------------------------------------------------------------------

INDEX = "(positions * (attention_mask != 0)).argmax(dim=-1)"
EMPTY = "if not (attention_mask != 0).any(dim=-1).all():"

wrong(
    "last_token_index",
    "`mask.sum(-1) - 1` counts tokens. That is the index of the last one only where the padding is on the right.",
    (INDEX, "attention_mask.long().sum(-1) - 1"),
)
wrong(
    "last_token_index",
    "You return the last column. That is the last token only where the padding is on the left.",
    (INDEX, "torch.full((len(attention_mask),), attention_mask.shape[1] - 1)"),
)
wrong(
    "last_token_index",
    "You return the number of tokens: one too many, since columns are counted from 0.",
    (INDEX, "attention_mask.long().sum(-1)"),
)
wrong(
    "last_token_index",
    "You return the first 1 of the row, not the last.",
    (INDEX, "(attention_mask != 0).long().argmax(dim=-1)"),
)
wrong(
    "last_token_index",
    "You return the place before the first 0: with padding on the left that is no token of the text.",
    (INDEX, "(attention_mask == 0).long().argmax(dim=-1) - 1"),
)
wrong(
    "last_token_index",
    "You return the place before the first 0 where there is one, else the last column: with padding on the left that "
    "is no token of the text.",
    (
        INDEX,
        (
            "torch.where((attention_mask == 0).any(-1), (attention_mask == 0).long().argmax(-1) - 1, "
            "attention_mask.shape[1] - 1)"
        ),
    ),
)
wrong(
    "last_token_index",
    "You return the first 0, which is one place behind the text, and in a full row no place at all.",
    (INDEX, "(attention_mask == 0).long().argmax(dim=-1)"),
)
wrong(
    "last_token_index",
    "Your index is one too large.",
    (INDEX, INDEX + " + 1"),
)
wrong(
    "last_token_index",
    "Your index is one too small.",
    (INDEX, f"({INDEX} - 1).clamp(min=0)"),
)
wrong(
    "last_token_index",
    "You look at one column to tell which side is padded, and take that side for all rows.",
    (
        INDEX,
        (
            "(attention_mask.long().sum(-1) - 1 if (attention_mask[:, 0] != 0).all() "
            "else torch.full((len(attention_mask),), attention_mask.shape[1] - 1))"
        ),
    ),
)
wrong(
    "last_token_index",
    "You ask of each row whether its last column is real, and count the tokens if it is not: with padding on both sides "
    "the count is no index.",
    (
        INDEX,
        "torch.where(attention_mask[:, -1] != 0, attention_mask.shape[1] - 1, attention_mask.long().sum(-1) - 1)",
    ),
)
wrong(
    "last_token_index",
    "You add the number of tokens to the place of the first one: a 0 between two 1 makes that too small.",
    (INDEX, "(attention_mask != 0).long().argmax(dim=-1) + (attention_mask != 0).sum(-1) - 1"),
)
wrong(
    "last_token_index",
    "The flipped mask tells how far the last 1 is from the right end; you return that distance.",
    (INDEX, "(attention_mask != 0).flip(-1).long().argmax(dim=-1)"),
)
wrong(
    "last_token_index",
    "You search along the wrong dimension: one answer a column, not one a row.",
    (INDEX, "(torch.arange(len(attention_mask))[:, None] * (attention_mask != 0)).argmax(dim=0)"),
)
wrong(
    "last_token_index",
    "Your index is one number for the whole batch.",
    (INDEX, INDEX + ".max()"),
)
wrong(
    "last_token_index",
    "Your index is [batch, 1]; the docstring asks for [batch].",
    (INDEX, INDEX + ".unsqueeze(-1)"),
)
wrong(
    "last_token_index",
    "You squeeze the result, and a batch of one row loses its only dimension.",
    (INDEX, INDEX + ".squeeze()"),
)
wrong(
    "last_token_index",
    "Your index is a float; nothing can be looked up with that.",
    (INDEX, INDEX + ".float()"),
)
wrong(
    "last_token_index",
    "You return a list; the docstring asks for a tensor.",
    (INDEX, INDEX + ".tolist()"),
)
wrong(
    "last_token_index",
    "You hold positions as 8-bit numbers, which end at 127.",
    (INDEX, "(positions.to(torch.int8) * (attention_mask != 0)).argmax(dim=-1)"),
)
wrong(
    "last_token_index",
    "A row without a token passes, and gets the index of a pad token.",
    (EMPTY, "if False:"),
)
wrong(
    "last_token_index",
    "You raise the error only where the whole mask is empty; one empty row is enough.",
    (EMPTY, "if not (attention_mask != 0).any():"),
)
wrong(
    "last_token_index",
    "An empty row ends in another error; the contract names ValueError.",
    ("raise ValueError(", "raise AssertionError("),
)
wrong(
    "last_token_index",
    "You refuse a row that is not padded, or one that holds a single token.",
    (EMPTY, "if not ((attention_mask != 0).sum(dim=-1) > 1).all():"),
)
wrong(
    "last_token_index",
    "You write into the mask that you are handed.",
    (INDEX, ("(attention_mask.mul_(positions) if attention_mask.dtype == torch.long else "
     "positions * (attention_mask != 0)).argmax(dim=-1)")),
)  # fmt: skip
wrong(
    "last_token_index",
    "You hold positions as 16-bit numbers, which end at 32767.",
    (INDEX, "(positions.to(torch.int16) * (attention_mask != 0)).argmax(dim=-1)"),
)
wrong(
    "last_token_index",
    "You hold positions in half precision, where neighbours far to the right are one number.",
    (INDEX, "(positions.half() * (attention_mask != 0)).argmax(dim=-1)"),
)
wrong(
    "last_token_index",
    "You refuse an empty row only for the width that the check happens to try.",
    (EMPTY, EMPTY.replace("if not", "if attention_mask.shape[-1] == 3 and not")),
)
right(
    "last_token_index",
    "from the flipped mask",
    body("""
    valid = attention_mask.bool()
    if (valid.sum(-1) == 0).any():
        raise ValueError("empty row")
    return attention_mask.size(1) - 1 - valid.int().flip(dims=[1]).argmax(dim=1)
    """),
)
right(
    "last_token_index",
    "from the flipped mask as it is: of whole numbers, no booleans",
    (EMPTY, "if (attention_mask.sum(-1) == 0).any():"),
    (INDEX, "attention_mask.shape[-1] - 1 - attention_mask.flip(-1).argmax(-1)"),
)
right(
    "last_token_index",
    "positions times the mask, in the mask's own type",
    (INDEX, "(positions.to(attention_mask.dtype) * attention_mask).argmax(dim=-1).to(attention_mask.dtype)"),
)
right(
    "last_token_index",
    "row by row",
    body("""
    indices = []
    for row in attention_mask:
        places = row.nonzero()
        if len(places) == 0:
            raise ValueError("no valid token in a row")
        indices.append(int(places[-1]))
    return torch.tensor(indices)
    """),
)
right(
    "last_token_index",
    "the largest masked position, -1 where there is none",
    body("""
    positions = torch.arange(attention_mask.shape[1]).expand(attention_mask.shape)
    last = positions.masked_fill(attention_mask == 0, -1).amax(dim=1)
    if (last < 0).any():
        raise ValueError("no token")
    return last
    """),
)
right(
    "last_token_index",
    "where the running sum first reaches its end",
    body("""
    running = (attention_mask > 0).long().cumsum(-1)
    if running[:, -1].min() == 0:
        raise ValueError("a row is empty")
    return (running == running[:, -1:]).long().argmax(-1)
    """),
)

right(
    "last_token_index",
    "an error class of one's own, derived from ValueError",
    ("raise ValueError(", "raise EmptyRow("),
    imports="class EmptyRow(ValueError):\n    pass",
)
right("last_token_index", "int32, which torch looks up with as well", (INDEX, INDEX + ".int()"))

# --- 2.2 RewardModel ------------------------------------------------------------------------------

LOAD = "AutoModel.from_pretrained(base_model_name, dtype=torch.float32)"
HEAD = "nn.Linear(self.backbone.config.hidden_size, 1, bias=False)"
POSITIONS = "            position_ids=position_ids_from_mask(attention_mask),\n"
ATTENTION = "            attention_mask=attention_mask,\n            position_ids"
LAST = "hidden[rows, last_token_index(attention_mask)]"
LAST_HIDDEN = f"last_hidden = {LAST}"
SCORE = "return self.v_head(last_hidden).squeeze(-1)"
ROWS = "rows = torch.arange(len(input_ids), device=input_ids.device)"

wrong(
    "RewardModel",
    "You read the last column. With padding on the right that is a pad token.",
    (LAST, "hidden[:, -1]"),
)
wrong(
    "RewardModel",
    "`mask.sum(-1) - 1` is the last token only where the padding is on the right. Exercise 2.1 is right on both sides.",
    (LAST, "hidden[rows, attention_mask.long().sum(-1) - 1]"),
)
wrong(
    "RewardModel",
    "You read the score at the first token, which has seen nothing of the text but itself.",
    (LAST, "hidden[:, 0]"),
)
wrong(
    "RewardModel",
    "You read the score one place before the last token.",
    (LAST, "hidden[rows, (last_token_index(attention_mask) - 1).clamp(min=0)]"),
)
wrong(
    "RewardModel",
    "You read the score one place behind the last token.",
    (LAST, "hidden[rows, (last_token_index(attention_mask) + 1).clamp(max=hidden.shape[1] - 1)]"),
)
wrong(
    "RewardModel",
    "You average over all tokens of the text; the last one alone has seen all of it.",
    (LAST, "(hidden * attention_mask.unsqueeze(-1)).sum(1) / attention_mask.sum(1, keepdim=True)"),
)
wrong(
    "RewardModel",
    "You average over the whole row, the padding too.",
    (LAST, "hidden.mean(dim=1)"),
)
wrong(
    "RewardModel",
    "You add up over the tokens of the text: long texts get large scores.",
    (LAST, "(hidden * attention_mask.unsqueeze(-1)).sum(1)"),
)
wrong(
    "RewardModel",
    "You take the largest value of each feature over the row; the last token alone is to be read.",
    (LAST, "hidden.masked_fill(attention_mask.unsqueeze(-1) == 0, -1e9).amax(dim=1)"),
)
wrong(
    "RewardModel",
    "You look for the last token by its id (`!= pad`): where pad is EOS, the EOS that ends the text is passed over.",
    (LAST, "hidden[rows, last_token_index((input_ids != 0).long())]"),
)
wrong(
    "RewardModel",
    "You read the score at the first EOS. An EOS may stand inside a text, and a cut text has none.",
    (
        LAST,
        (
            "hidden[rows, torch.where((input_ids == 0).any(1), (input_ids == 0).long().argmax(1), "
            "last_token_index(attention_mask))]"
        ),
    ),
)
wrong(
    "RewardModel",
    "You read the score before the first pad id: an EOS inside a text looks like one.",
    (
        LAST,
        (
            "hidden[rows, torch.where((input_ids == 0).any(1), ((input_ids == 0).long().argmax(1) - 1).clamp(min=0), "
            "last_token_index(attention_mask))]"
        ),
    ),
)
wrong(
    "RewardModel",
    "`hidden[:, index]` takes every index for every row. How does one pick one place of each row?",
    (LAST, "hidden[:, last_token_index(attention_mask)]"),
)
wrong(
    "RewardModel",
    "One index serves the whole batch: you read all rows where the first one ends.",
    (LAST, "hidden[:, last_token_index(attention_mask)[0]]"),
)
wrong(
    "RewardModel",
    "The backbone is not told which token has which position: a text that is padded on the left is read as if it began "
    "in the middle.",
    (POSITIONS, ""),
)
wrong(
    "RewardModel",
    "You look at row 0 to tell whether the batch is padded on the left, and hand over positions only then.",
    (
        "position_ids_from_mask(attention_mask)",
        "position_ids_from_mask(attention_mask) if attention_mask[0, 0] == 0 else None",
    ),
)
wrong(
    "RewardModel",
    "You hand over positions only where all rows are padded on the left; one row is enough to need them.",
    (
        "position_ids_from_mask(attention_mask)",
        "position_ids_from_mask(attention_mask) if (attention_mask[:, 0] == 0).all() else None",
    ),
)
wrong(
    "RewardModel",
    "Your positions begin at 1: the first token has position 0.",
    ("position_ids_from_mask(attention_mask)", "attention_mask.long().cumsum(dim=-1)"),
)
wrong(
    "RewardModel",
    "The attention mask does not reach the backbone: with padding on the left the text sees the padding before it.",
    (ATTENTION, "            position_ids"),
)
wrong(
    "RewardModel",
    "Neither attention mask nor positions reach the backbone.",
    ("            attention_mask=attention_mask,\n" + POSITIONS, ""),
)
wrong(
    "RewardModel",
    "You build the mask for the backbone from ids (`!= pad`): where pad is EOS, the EOS of the text is not read.",
    ("attention_mask=attention_mask,", "attention_mask=(input_ids != 0).long(),"),
)
wrong(
    "RewardModel",
    "The last hidden state is detached: the gradient reaches the head and not the backbone.",
    (LAST, LAST + ".detach()"),
)
wrong(
    "RewardModel",
    "The score is detached: nothing can be trained with it.",
    (SCORE, SCORE + ".detach()"),
)
wrong(
    "RewardModel",
    "The backbone is frozen; a reward model is trained whole.",
    (f"self.v_head = {HEAD}", f"self.backbone.requires_grad_(False)\n        self.v_head = {HEAD}"),
)
wrong(
    "RewardModel",
    "The embeddings are frozen; a reward model is trained whole.",
    (
        f"self.v_head = {HEAD}",
        f"self.backbone.get_input_embeddings().requires_grad_(False)\n        self.v_head = {HEAD}",
    ),
)
wrong(
    "RewardModel",
    "`squeeze()` without a dimension takes the batch away too, where it is one text.",
    ("squeeze(-1)", "squeeze()"),
)
wrong(
    "RewardModel",
    "Your score is [batch, 1]; the docstring asks for [batch]. Two such scores and two flat ones make a square.",
    (".squeeze(-1)", ""),
)
wrong(
    "RewardModel",
    "You score every position, `[batch, seq]`, and pick none.",
    (SCORE, "return self.v_head(hidden).squeeze(-1)"),
)
wrong(
    "RewardModel",
    "You return the mean score of the batch, not one score a text.",
    (SCORE, "return self.v_head(last_hidden).mean()"),
)
wrong(
    "RewardModel",
    "The head has a bias. It cancels in every comparison.",
    (HEAD, HEAD.replace(", bias=False", "")),
)
wrong(
    "RewardModel",
    "You squeeze the score into 0 to 1 with a sigmoid; the loss takes its own, of the difference.",
    (SCORE, "return torch.sigmoid(self.v_head(last_hidden).squeeze(-1))"),
)
wrong(
    "RewardModel",
    "You squeeze the score with a tanh: no two scores can then be far apart.",
    (SCORE, "return torch.tanh(self.v_head(last_hidden).squeeze(-1))"),
)
wrong(
    "RewardModel",
    "You normalise the scores over the batch: the score of a text then depends on the others.",
    (
        SCORE,
        "score = self.v_head(last_hidden).squeeze(-1)\n        return score - score.mean()",
    ),
)
wrong(
    "RewardModel",
    "The backbone brings its language-modelling head along (AutoModelForCausalLM); the bare model is `AutoModel`.",
    (LOAD, "__import__('transformers').AutoModelForCausalLM.from_pretrained(base_model_name)"),
    (
        "use_cache=False,\n        ).last_hidden_state",
        "output_hidden_states=True,\n        ).hidden_states[-1]",
    ),
)
wrong(
    "RewardModel",
    "You build the backbone from its config: the shape is right and the weights are random.",
    (LOAD, "AutoModel.from_config(__import__('transformers').AutoConfig.from_pretrained(base_model_name))"),
)
wrong(
    "RewardModel",
    "You read the hidden states before the backbone's last layer.",
    (
        "use_cache=False,\n        ).last_hidden_state",
        "output_hidden_states=True,\n        ).hidden_states[-2]",
    ),
)
wrong(
    "RewardModel",
    "You read the embeddings, which have not passed through the backbone.",
    (
        "use_cache=False,\n        ).last_hidden_state",
        "output_hidden_states=True,\n        ).hidden_states[0]",
    ),
)
wrong(
    "RewardModel",
    "Your head is more than one linear layer; the docstring asks for Linear(hidden, 1).",
    (
        HEAD,
        "nn.Sequential(nn.Linear(self.backbone.config.hidden_size, 8), nn.Tanh(), nn.Linear(8, 1))",
    ),
)
wrong(
    "RewardModel",
    "Your head has one output for each class; a score is one number.",
    (HEAD, HEAD.replace("1, bias", "2, bias")),
    (SCORE, "return self.v_head(last_hidden)[:, 1]"),
)
wrong(
    "RewardModel",
    "Your head has another name: the rest of the course looks for `v_head`.",
    (f"self.v_head = {HEAD}", f"self.head = {HEAD}"),
    (SCORE, SCORE.replace("v_head", "head")),
)
wrong(
    "RewardModel",
    "A second backbone beside the first takes its memory twice.",
    (f"self.v_head = {HEAD}", f"self.v_head = {HEAD}\n        self.copy = {LOAD}"),
)
wrong(
    "RewardModel",
    "Your forward calls eval(): dropout stays off in training.",
    (ROWS, ROWS + "\n        self.eval()"),
)
wrong(
    "RewardModel",
    "You write into the mask that you are handed.",
    (LAST_HIDDEN, LAST_HIDDEN + "\n        attention_mask[:, -1] = 1"),
)
wrong(
    "RewardModel",
    "You write the pad id into the ids that you are handed.",
    (LAST_HIDDEN, LAST_HIDDEN + "\n        input_ids[attention_mask == 0] = 0"),
)
wrong(
    "RewardModel",
    "The hidden size is a number that you have written down; each backbone has its own, in its config.",
    (HEAD, HEAD.replace("self.backbone.config.hidden_size", "16")),
)
wrong(
    "RewardModel",
    "You bound the score (`clamp`): beyond that no two texts can be told apart.",
    (SCORE, SCORE + ".clamp(-100, 100)"),
)
wrong(
    "RewardModel",
    "You turn what is no number into 0 and cut infinite scores, and large ones with them.",
    (SCORE, "return torch.nan_to_num(self.v_head(last_hidden).squeeze(-1)).clamp(max=1000.0)"),
)
wrong(
    "RewardModel",
    "`F.dropout` does not know the model's mode: two calls give two scores in eval mode.",
    (SCORE, SCORE.replace("last_hidden", "F.dropout(last_hidden, 0.1)")),
)
right(
    "RewardModel",
    "index and positions from the mask as it is: of whole numbers, no booleans",
    (LAST, "hidden[rows, attention_mask.shape[1] - 1 - attention_mask.flip(-1).argmax(-1)]"),
    ("position_ids_from_mask(attention_mask)", "(attention_mask.cumsum(-1) - 1) * attention_mask"),
)
right(
    "RewardModel",
    "gather, and the head at every position",
    (ROWS, "every = self.v_head(hidden)[..., 0]"),
    (LAST_HIDDEN, "index = last_token_index(attention_mask).unsqueeze(1)"),
    (SCORE, "return every.gather(1, index)[:, 0]"),
)
right(
    "RewardModel",
    "one text at a time, cut out of its padding",
    (
        SCORE,
        (
            "scores = []\n"
            "        for ids, mask in zip(input_ids, attention_mask):\n"
            "            text = ids[mask.bool()].unsqueeze(0)\n"
            "            scores.append(self.v_head(self.backbone(text)[0][0, -1]))\n"
            "        return torch.cat(scores)"
        ),
    ),
)
right(
    "RewardModel",
    "hidden_states[-1], positions with 1 at the padding, a head that begins at zero",
    (HEAD, HEAD + "\n        nn.init.zeros_(self.v_head.weight)"),
    (
        "position_ids_from_mask(attention_mask)",
        "(attention_mask.long().cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)",
    ),
    (
        "use_cache=False,\n        ).last_hidden_state",
        "output_hidden_states=True,\n        ).hidden_states[-1]",
    ),
)
right(
    "RewardModel",
    "a matrix product with one-hot rows",
    (
        LAST_HIDDEN,
        (
            "pick = F.one_hot(last_token_index(attention_mask), hidden.shape[1]).to(hidden.dtype)\n"
            "        last_hidden = torch.einsum('bt,bth->bh', pick, hidden)"
        ),
    ),
)
right(
    "RewardModel",
    "the backbone taken out of a language model",
    (LOAD, "__import__('transformers').AutoModelForCausalLM.from_pretrained(base_model_name).base_model"),
)

# --- 2.3 RMDataset --------------------------------------------------------------------------------

TOKENISE = "tokenizer(row[column], add_special_tokens=False).input_ids"
SET_PAD = "if tokenizer.pad_token is None:\n            tokenizer.pad_token = tokenizer.eos_token"
SAME = "if chosen_text[:max_len] == rejected_text[:max_len]:"
DROP = "                self.dropped += 1\n                continue\n"
CHOSEN = "chosen = build_sft_example(prompt_ids, chosen_ids, eos_id, pad_id, max_len)"
REJECTED = "rejected = build_sft_example(prompt_ids, rejected_ids, eos_id, pad_id, max_len)"
PAIR_ITEM = "return {name: torch.tensor(ids, dtype=torch.long) for name, ids in self.pairs[index].items()}"

wrong(
    "RMDataset",
    "You compare the padded rows: two texts of which one has an EOS more look the same where pad is EOS.",
    (
        SAME,
        "pad = [pad_id] * max_len\n            if (chosen_text + pad)[:max_len] == (rejected_text + pad)[:max_len]:",
    ),
)
wrong(
    "RMDataset",
    "You compare the whole texts: two that differ only behind max_len are the same once they are cut.",
    (SAME, "if chosen_text == rejected_text:"),
)
wrong(
    "RMDataset",
    "You compare the responses alone, each cut to max_len; it is prompt and response that are cut together.",
    (SAME, "if chosen_ids[:max_len] == rejected_ids[:max_len]:"),
)
wrong(
    "RMDataset",
    "You compare the texts without their EOS: a text that ends differs from one that goes on.",
    (SAME, "if (prompt_ids + chosen_ids)[: max_len - 1] == (prompt_ids + rejected_ids)[: max_len - 1]:"),
)
wrong(
    "RMDataset",
    "You drop a pair whose texts are equally long.",
    (SAME, "if chosen_text[:max_len] == rejected_text[:max_len] or len(chosen_ids) == len(rejected_ids):"),
)
wrong(
    "RMDataset",
    "You drop a pair of which one text has to be cut. Texts are cut, and only equal ones are dropped.",
    (SAME, "if chosen_text[:max_len] == rejected_text[:max_len] or len(chosen_text) > max_len:"),
)
wrong(
    "RMDataset",
    "You keep every pair: two equal texts say nothing, and their loss is ln 2 for ever.",
    (SAME, "if False:"),
)
wrong(
    "RMDataset",
    "You drop the pairs and do not count them.",
    (DROP, "                continue\n"),
)
wrong(
    "RMDataset",
    "You count the equal pairs and keep them.",
    (DROP, "                self.dropped += 1\n"),
)
wrong(
    "RMDataset",
    "`dropped` is a list or a truth value; the docstring asks for the number of pairs.",
    (DROP, "                self.dropped = True\n                continue\n"),
)
wrong(
    "RMDataset",
    "`dropped` counts the pairs that are kept.",
    (DROP, "                continue\n            self.dropped += 1\n"),
)
wrong(
    "RMDataset",
    "You stop at the first pair that is dropped, and the pairs behind it are lost.",
    (DROP, "                self.dropped += 1\n                break\n"),
)
wrong(
    "RMDataset",
    "You lay the texts out before you compare them: where the prompt fills the row, exercise 1.1 raises its error.",
    (SAME, f"{CHOSEN}\n            {SAME}"),
)
wrong(
    "RMDataset",
    "The chosen columns hold the rejected text.",
    (CHOSEN, CHOSEN.replace("chosen_ids", "rejected_ids")),
)
wrong(
    "RMDataset",
    "The rejected columns hold the chosen text.",
    (REJECTED, REJECTED.replace("rejected_ids", "chosen_ids")),
)
wrong(
    "RMDataset",
    "Chosen and rejected have changed places.",
    ('("prompt", "chosen", "rejected")', '("prompt", "rejected", "chosen")'),
)
wrong(
    "RMDataset",
    "The prompt is missing: a response is scored as an answer to something.",
    (CHOSEN, CHOSEN.replace("prompt_ids", "[]")),
    (REJECTED, REJECTED.replace("prompt_ids", "[]")),
)
wrong(
    "RMDataset",
    "The prompt is missing from the rejected text.",
    (REJECTED, REJECTED.replace("prompt_ids", "[]")),
)
wrong(
    "RMDataset",
    "The mask of the rejected text is that of the chosen one.",
    ('"rejected_mask": rejected["attention_mask"]', '"rejected_mask": chosen["attention_mask"]'),
)
wrong(
    "RMDataset",
    "You build the masks from ids (`!= pad`): where pad is EOS, the EOS that ends the text is lost.",
    ('chosen["attention_mask"]', '[int(i != pad_id) for i in chosen["input_ids"]]'),
    (
        '"rejected_mask": rejected["attention_mask"]',
        '"rejected_mask": [int(i != pad_id) for i in rejected["input_ids"]]',
    ),
)
wrong(
    "RMDataset",
    "Your masks are the labels: a reward model reads prompt and response, and has no labels.",
    ('"chosen_mask": chosen["attention_mask"]', '"chosen_mask": chosen["labels"]'),
    ('"rejected_mask": rejected["attention_mask"]', '"rejected_mask": rejected["labels"]'),
)
wrong(
    "RMDataset",
    "Your masks are 1 on the response alone; a reward model reads the prompt too.",
    ('"chosen_mask": chosen["attention_mask"]', '"chosen_mask": [int(x != -100) for x in chosen["labels"]]'),
    (
        '"rejected_mask": rejected["attention_mask"]',
        '"rejected_mask": [int(x != -100) for x in rejected["labels"]]',
    ),
)
wrong(
    "RMDataset",
    "The texts are tokenised with special tokens.",
    (TOKENISE, "tokenizer(row[column]).input_ids"),
)
wrong(
    "RMDataset",
    "You strip the texts, and the space before the first word is lost.",
    (TOKENISE, "tokenizer(row[column].strip(), add_special_tokens=False).input_ids"),
)
wrong(
    "RMDataset",
    "You tokenise prompt and response as one text, where a token may reach across the border.",
    (
        "            chosen_text, rejected_text",
        (
            '            text = [tokenizer(row["prompt"] + row[c], add_special_tokens=False).input_ids '
            'for c in ("chosen", "rejected")]\n'
            "            n = len(prompt_ids)\n            chosen_ids, rejected_ids = text[0][n:], text[1][n:]\n"
            "            chosen_text, rejected_text"
        ),
    ),
)
wrong(
    "RMDataset",
    "You add the EOS to the text, and exercise 1.1 adds one too: each text ends twice.",
    (
        "            chosen_text, rejected_text",
        (
            "            chosen_ids, rejected_ids = chosen_ids + [eos_id], rejected_ids + [eos_id]\n"
            "            chosen_text, rejected_text"
        ),
    ),
)
wrong(
    "RMDataset",
    "There is no EOS at the end of the texts.",
    (
        '"chosen_ids": chosen["input_ids"]',
        '"chosen_ids": (prompt_ids + chosen_ids + [pad_id + 1] * max_len)[:max_len]',
    ),
)
wrong(
    "RMDataset",
    "You replace the tokenizer's own pad token. Only where there is none is one to be set.",
    (SET_PAD, "tokenizer.pad_token = tokenizer.eos_token"),
)
wrong(
    "RMDataset",
    "`not tokenizer.pad_token_id` is true of the pad token 0 as well, which is a pad token like any other: you replace it.",
    ("tokenizer.pad_token is None", "not tokenizer.pad_token_id"),
)
wrong(
    "RMDataset",
    "You never give the tokenizer a pad token, and GPT-2's comes without one.",
    (SET_PAD, ""),
)
wrong(
    "RMDataset",
    "You pad with EOS, though this tokenizer has a pad token of its own.",
    ("tokenizer.eos_token_id, tokenizer.pad_token_id", "tokenizer.eos_token_id, tokenizer.eos_token_id"),
)
wrong(
    "RMDataset",
    "EOS and pad id are handed to exercise 1.1 in the wrong order.",
    (CHOSEN, CHOSEN.replace("eos_id, pad_id", "pad_id, eos_id")),
    (REJECTED, REJECTED.replace("eos_id, pad_id", "pad_id, eos_id")),
)
wrong(
    "RMDataset",
    "Your tensors are int32; an embedding takes int64.",
    ("dtype=torch.long", "dtype=torch.int32"),
)
wrong(
    "RMDataset",
    "The masks are boolean; the docstring asks for LongTensor, as for the ids.",
    (
        PAIR_ITEM,
        PAIR_ITEM.replace("for name", "if 'mask' not in name else torch.tensor(ids).bool() for name"),
    ),
)
wrong(
    "RMDataset",
    "An item is lists, not tensors: a DataLoader turns lists into something else than a batch.",
    (PAIR_ITEM, "return self.pairs[index]"),
)
wrong(
    "RMDataset",
    "Each index gives the first pair.",
    ("self.pairs[index]", "self.pairs[0]"),
)
wrong(
    "RMDataset",
    "An index behind the end begins at the first pair again: `for pair in dataset` never ends.",
    ("self.pairs[index]", "self.pairs[index % len(self.pairs)]"),
)
wrong(
    "RMDataset",
    "len(dataset) counts texts: two a pair. An item is a pair.",
    ("return len(self.pairs)", "return 2 * len(self.pairs)"),
)
wrong(
    "RMDataset",
    "len(dataset) counts the pairs that were dropped too.",
    ("return len(self.pairs)", "return len(self.pairs) + self.dropped"),
)
wrong(
    "RMDataset",
    "You ignore max_len: a number stands in its place.",
    (CHOSEN, CHOSEN.replace("max_len)", "128)")),
    (REJECTED, REJECTED.replace("max_len)", "128)")),
)
wrong(
    "RMDataset",
    "You take the texts out of the rows (`pop`): whoever reads the data next finds nothing there.",
    (TOKENISE, TOKENISE.replace("row[column]", "row.pop(column)")),
)
wrong(
    "RMDataset",
    "You leave out pairs that stand in the data twice. What counts is whether the two texts of a pair differ.",
    ("for row in data:", "for row in {(r['prompt'], r['chosen'], r['rejected']): r for r in data}.values():"),
)
wrong(
    "RMDataset",
    "You leave out pairs of which one response is empty, in silence. Its text is prompt and EOS.",
    ("for row in data:", "for row in (r for r in data if r['chosen'] and r['rejected']):"),
)
wrong(
    "RMDataset",
    "You keep no more pairs than four, in silence.",
    ("for row in data:", "for row in list(data)[:4]:"),
)
right(
    "RMDataset",
    "compared as tuples of ids and mask, after the layout",
    (SAME, "if len(prompt_ids) >= max_len:"),
    (
        "            self.pairs.append(",
        (
            "            if all(chosen[c] == rejected[c] for c in ('input_ids', 'attention_mask')):\n"
            "                self.dropped += 1\n                continue\n            self.pairs.append("
        ),
    ),
)
right(
    "RMDataset",
    "all pairs first, those that differ kept after; tensors made once",
    (SAME, "if False:"),
    (DROP, ("                pass\n            keep = chosen_text[:max_len] != rejected_text[:max_len]\n"
     "            self.dropped += not keep\n            if not keep:\n                continue\n")),
    (PAIR_ITEM, "return {k: torch.LongTensor(v) for k, v in self.pairs[index].items()}"),
)  # fmt: skip
right(
    "RMDataset",
    "encode, and the pad id set by number",
    (TOKENISE, "tokenizer.encode(row[column], add_special_tokens=False)"),
    (
        SET_PAD,
        "if tokenizer.pad_token_id is None:\n            tokenizer.pad_token_id = tokenizer.eos_token_id",
    ),
)

# --- 2.4 rm_loss ----------------------------------------------------------------------------------

BT = "-F.logsigmoid(r_chosen - r_rejected).mean()"
TWO_STEPS = (
    "You take the logarithm and the sigmoid (or the exp) in two steps: far behind, the sigmoid is rounded to 0 or the exp "
    "is infinite. Which function takes both steps in one?"
)
SHARE = "(r_chosen > r_rejected).float().mean()"

wrong(
    "rm_loss",
    "Chosen and rejected have changed places in the loss: it falls when the rejected response scores higher.",
    (BT, BT.replace("r_chosen - r_rejected", "r_rejected - r_chosen")),
)
wrong(
    "rm_loss",
    "The sign of the loss is wrong: it is negative, and falls when the chosen response gets worse.",
    (BT, BT.removeprefix("-")),
)
wrong(
    "rm_loss",
    TWO_STEPS,
    (BT, "-torch.sigmoid(r_chosen - r_rejected).log().mean()"),
)
wrong(
    "rm_loss",
    TWO_STEPS,
    (BT, "torch.log(1 + torch.exp(r_rejected - r_chosen)).mean()"),
)
wrong(
    "rm_loss",
    "You add a small number inside the logarithm: a loss of more than about 18 is cut off.",
    (BT, "-(torch.sigmoid(r_chosen - r_rejected) + 1e-8).log().mean()"),
)
wrong(
    "rm_loss",
    "You clamp the difference: far behind, the loss no longer grows and its gradient is 0.",
    (BT, "-F.logsigmoid((r_chosen - r_rejected).clamp(-20, 20)).mean()"),
)
wrong(
    "rm_loss",
    "Your loss stops growing where the difference is large: something bounds it.",
    (BT, "-F.logsigmoid((r_chosen - r_rejected).clamp(-100, 100)).mean()"),
)
wrong(
    "rm_loss",
    "The loss is the sum over the pairs, not their mean.",
    (BT, BT.replace("mean", "sum")),
)
wrong(
    "rm_loss",
    "You average the differences before the logarithm; each pair has its own loss.",
    (BT, "-F.logsigmoid((r_chosen - r_rejected).mean())"),
)
wrong(
    "rm_loss",
    "Your loss is a hinge, max(0, 1 - difference); the docstring asks for -log sigmoid.",
    (BT, "F.relu(1 - (r_chosen - r_rejected)).mean()"),
)
wrong(
    "rm_loss",
    "Your loss is 1 - sigmoid: the logarithm is missing.",
    (BT, "(1 - torch.sigmoid(r_chosen - r_rejected)).mean()"),
)
wrong(
    "rm_loss",
    "Your loss is minus the sigmoid: the logarithm is missing.",
    (BT, "-torch.sigmoid(r_chosen - r_rejected).mean()"),
)
wrong(
    "rm_loss",
    "Your loss is minus the difference: it falls without end, and one easy pair outweighs all others.",
    (BT, "-(r_chosen - r_rejected).mean()"),
)
wrong(
    "rm_loss",
    "Each score has a sigmoid of its own: only the difference of the two is to have one.",
    (BT, "(-F.logsigmoid(r_chosen) - F.logsigmoid(-r_rejected)).mean()"),
)
wrong(
    "rm_loss",
    "You take the difference of two sigmoids, not the sigmoid of the difference.",
    (BT, "-F.logsigmoid(torch.sigmoid(r_chosen) - torch.sigmoid(r_rejected)).mean()"),
)
wrong(
    "rm_loss",
    "You take the quotient of the scores, not their difference.",
    (BT, "-F.logsigmoid(r_chosen / r_rejected).mean()"),
)
wrong(
    "rm_loss",
    "The sigmoid is taken twice.",
    (BT, "-F.logsigmoid(torch.sigmoid(r_chosen - r_rejected)).mean()"),
)
wrong(
    "rm_loss",
    "Your loss is the squared distance of the difference from 1.",
    (BT, "((r_chosen - r_rejected - 1) ** 2).mean()"),
)
wrong(
    "rm_loss",
    "The loss carries a margin that the chosen response has to be ahead by; the docstring's formula has none.",
    (BT, "-F.logsigmoid(r_chosen - r_rejected - 1).mean()"),
)
wrong(
    "rm_loss",
    "The loss is halved, or the difference is scaled.",
    (BT, "-F.logsigmoid(0.5 * (r_chosen - r_rejected)).mean()"),
)
wrong(
    "rm_loss",
    "The loss is in bits (log 2); the docstring's log is the natural one.",
    (BT, BT + " / torch.tensor(2.0).log()"),
)
wrong(
    "rm_loss",
    "Each chosen score is compared with every rejected one: `[batch, 1] - [batch]` is a square.",
    (BT, BT.replace("r_chosen - r_rejected", "r_chosen.unsqueeze(1) - r_rejected")),
)
wrong(
    "rm_loss",
    "The rejected score is detached: only the chosen one is pushed.",
    (BT, BT.replace("r_rejected", "r_rejected.detach()")),
)
wrong(
    "rm_loss",
    "The chosen score is detached: only the rejected one is pushed.",
    (BT, BT.replace("r_chosen", "r_chosen.detach()")),
)
wrong(
    "rm_loss",
    "The loss is a Python number (`.item()`) or detached, and nothing can be learnt from that.",
    (BT, BT + ".detach()"),
)
wrong(
    "rm_loss",
    "You return one loss a pair; the docstring asks for their mean.",
    (BT, BT.removesuffix(".mean()")),
)
wrong(
    "rm_loss",
    "You return the loss alone; the docstring asks for loss and accuracy.",
    ("return loss, accuracy", "return loss"),
)
wrong(
    "rm_loss",
    "Accuracy and loss are returned in the wrong order.",
    ("return loss, accuracy", "return accuracy, loss"),
)
wrong(
    "rm_loss",
    "You count a tie as correct; the chosen response has to score strictly higher.",
    (SHARE, SHARE.replace(">", ">=")),
)
wrong(
    "rm_loss",
    "You count a tie as half correct; the chosen response has to score strictly higher.",
    (SHARE, "((r_chosen > r_rejected).float() + 0.5 * (r_chosen == r_rejected).float()).mean()"),
)
wrong(
    "rm_loss",
    "Your accuracy counts the pairs in which the rejected response scores higher.",
    (SHARE, SHARE.replace(">", "<")),
)
wrong(
    "rm_loss",
    "Your accuracy counts the chosen responses with a score above 0; it is the rejected one that they have to beat.",
    (SHARE, "(r_chosen > 0).float().mean()"),
)
wrong(
    "rm_loss",
    "Your accuracy asks for a lead of 0.5 or more; any lead counts.",
    (SHARE, "(r_chosen > r_rejected + 0.5).float().mean()"),
)
wrong(
    "rm_loss",
    "Your accuracy is a number of pairs, not a share.",
    (SHARE, SHARE.replace("mean", "sum")),
)
wrong(
    "rm_loss",
    "Your accuracy is in percent; the docstring asks for a share.",
    (SHARE, "100 * " + SHARE),
)
wrong(
    "rm_loss",
    "Your accuracy is the mean probability, sigmoid of the difference, not the share of right pairs.",
    (SHARE, "torch.sigmoid(r_chosen - r_rejected).mean()"),
)
wrong(
    "rm_loss",
    "Your accuracy compares the mean scores; each pair has to be compared.",
    (SHARE, "(r_chosen.mean() > r_rejected.mean()).float()"),
)
wrong(
    "rm_loss",
    "Your accuracy is rounded to 0 or 1.",
    (SHARE, SHARE + ".round()"),
)
wrong(
    "rm_loss",
    "The accuracy is one truth value a pair; the docstring asks for their share.",
    (SHARE, "(r_chosen > r_rejected)"),
)
wrong(
    "rm_loss",
    "You subtract in place (`-=`, `sub_`): the caller's scores change.",
    (BT, ("-F.logsigmoid((r_chosen if r_chosen.requires_grad else r_chosen).data.clone() - r_rejected).mean()"
     " if r_chosen.requires_grad else -F.logsigmoid(r_chosen.sub_(r_rejected)).mean()")),
    (SHARE, "(r_chosen > (r_rejected if r_chosen.requires_grad else 0)).float().mean()"),
)  # fmt: skip
wrong(
    "rm_loss",
    "You clamp the difference at a large number: beyond it the loss no longer grows and its gradient is 0.",
    (BT, "-F.logsigmoid((r_chosen - r_rejected).clamp(-2e4, 2e4)).mean()"),
)
wrong(
    "rm_loss",
    "Your accuracy asks for a lead of 0.01 or more; any lead counts.",
    (SHARE, "(r_chosen > r_rejected + 0.01).float().mean()"),
)
right(
    "rm_loss",
    "softplus of the reversed difference, accuracy as a float",
    body("""
    difference = r_rejected - r_chosen
    return F.softplus(difference).mean(), sum(d < 0 for d in difference.tolist()) / len(difference)
    """),
)
right(
    "rm_loss",
    "cross-entropy over the two scores, in float64",
    body("""
    scores = torch.stack([r_chosen, r_rejected], dim=1).double()
    loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
    with torch.no_grad():
        accuracy = ((r_chosen - r_rejected) > 0).double().mean()
    return loss, accuracy
    """),
)
right(
    "rm_loss",
    "binary cross-entropy with logits; a list of two",
    body("""
    margin = r_chosen - r_rejected
    loss = F.binary_cross_entropy_with_logits(margin, torch.ones_like(margin))
    return [loss, (margin.detach().sign() == 1).sum().item() / margin.numel()]
    """),
)
right(
    "rm_loss",
    "logaddexp, pair by pair",
    body("""
    losses = [torch.logaddexp(torch.zeros(()), b - a) for a, b in zip(r_chosen, r_rejected)]
    return sum(losses) / len(losses), torch.gt(r_chosen, r_rejected).to(torch.float32).mean()
    """),
)

# --- 2.5 train_rm ---------------------------------------------------------------------------------

OPTIM = "optim = torch.optim.AdamW(model.parameters(), lr=lr)"
CLIP = "            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
ZERO = "            optim.zero_grad()\n"
BACKWARD = "            loss.backward()\n"
STEP = "            optim.step()\n"
APPEND = '            history.append({"loss": loss.item(), "accuracy": accuracy.item()})\n'
TO_DEVICE = "            batch = {name: tensor.to(device) for name, tensor in batch.items()}\n"
LOOP = "    history = []\n    for _ in range(n_epochs):\n"
CHUNK = "r_chosen, r_rejected = scores.chunk(2)"
LOSS = "loss, accuracy = rm_loss(r_chosen, r_rejected)"
MASKS = 'torch.cat([batch["chosen_mask"], batch["rejected_mask"]])'
NOTHING_TO_GO_BY = "No gradient reaches the step: there is no backward, or the gradients are set to zero between backward and step."
UPHILL = (
    "Each step makes the loss larger: you call backward on minus the loss, or `maximize=True` turns the optimiser "
    "round."
)
NOT_CLIPPED = (
    "The gradient that reaches the step is not clipped: clipping is not there, or comes after the step, or before "
    "backward."
)

wrong(
    "train_rm",
    "Gradients are never set to zero: each step moves along the sum of all gradients so far.",
    (ZERO, ""),
)
wrong(
    "train_rm",
    "Gradients are set to zero once an epoch: within it they add up.",
    (ZERO, ""),
    ("        for batch in dataloader:\n", "        optim.zero_grad()\n        for batch in dataloader:\n"),
)
wrong("train_rm", NOTHING_TO_GO_BY, (ZERO, ""), (CLIP, CLIP + ZERO))
wrong("train_rm", NOTHING_TO_GO_BY, (BACKWARD, ""))
wrong(
    "train_rm",
    "The optimiser never steps.",
    (STEP, ""),
)
wrong("train_rm", NOT_CLIPPED, (CLIP, ""))
wrong("train_rm", NOT_CLIPPED, (CLIP, ""), (STEP, STEP + CLIP))
wrong(
    "train_rm",
    "Only the head's gradient is clipped; it is the norm of all weights together that counts.",
    ("clip_grad_norm_(model.parameters()", "clip_grad_norm_(model.v_head.parameters()"),
)
wrong(
    "train_rm",
    "You clip each entry of the gradient to 1 (`clip_grad_value_`), not its norm.",
    ("clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_value_(model.parameters(), 1.0)"),
)
wrong(
    "train_rm",
    "You clip to another norm than 1.0.",
    ("clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_norm_(model.parameters(), 0.5)"),
)
wrong(
    "train_rm",
    "The optimiser holds only the head: the backbone learns nothing.",
    ("AdamW(model.parameters()", "AdamW(model.v_head.parameters()"),
)
wrong(
    "train_rm",
    "The optimiser holds only the backbone: the head stays as random as it was.",
    ("AdamW(model.parameters()", "AdamW(model.backbone.parameters()"),
)
wrong(
    "train_rm",
    "You make a new optimiser in each epoch, and AdamW forgets its running averages.",
    (OPTIM, "model = model"),
    (LOOP, LOOP + f"        {OPTIM}\n"),
)
wrong(
    "train_rm",
    "You make a new optimiser for each batch, and AdamW forgets its running averages.",
    (OPTIM, "model = model"),
    (TO_DEVICE, TO_DEVICE + f"            {OPTIM}\n"),
)
wrong(
    "train_rm",
    "Your optimiser is SGD; the docstring asks for AdamW.",
    ("torch.optim.AdamW(", "torch.optim.SGD("),
)
wrong(
    "train_rm",
    "Your optimiser is Adam; the docstring asks for AdamW.",
    ("torch.optim.AdamW(", "torch.optim.Adam("),
)
wrong(
    "train_rm",
    "`lr` is not handed on: AdamW steps with its own default.",
    (OPTIM, "optim = torch.optim.AdamW(model.parameters())"),
)
wrong(
    "train_rm",
    "A number stands where `lr` belongs.",
    (OPTIM, OPTIM.replace("lr=lr", "lr=1e-5")),
)
wrong(
    "train_rm",
    "You train one epoch, whatever `n_epochs` says.",
    ("range(n_epochs)", "range(1)"),
)
wrong(
    "train_rm",
    "You train one epoch too many.",
    ("range(n_epochs)", "range(n_epochs + 1)"),
)
wrong(
    "train_rm",
    "You append one dictionary an epoch; the docstring asks for one a step.",
    (APPEND, APPEND.removeprefix("    ")),
)
wrong(
    "train_rm",
    "The optimiser steps once an epoch, with the gradient of the last batch.",
    (STEP, ""),
    (APPEND, APPEND + "        optim.step()\n"),
)
wrong(
    "train_rm",
    "You stop at the first batch of each epoch.",
    (APPEND, APPEND + "            break\n"),
)
wrong(
    "train_rm",
    "Your dictionaries hold tensors; the docstring asks for floats.",
    ('loss.item(), "accuracy": accuracy.item()', 'loss.detach(), "accuracy": accuracy.detach()'),
)
wrong(
    "train_rm",
    "Your dictionaries hold numbers of NumPy; the docstring asks for floats.",
    ('loss.item(), "accuracy"', 'loss.detach().numpy()[()], "accuracy"'),
)
wrong(
    "train_rm",
    "Your accuracy is a tensor; the docstring asks for floats.",
    ("accuracy.item()", "accuracy"),
)
wrong(
    "train_rm",
    "Your dictionaries hold the losses with their graphs, which keeps the memory of every step.",
    ("loss.item()", "loss"),
)
wrong(
    "train_rm",
    "You return the losses alone; the docstring asks for dictionaries of loss and accuracy.",
    (APPEND, "            history.append(loss.item())\n"),
)
wrong(
    "train_rm",
    "The dictionaries have no 'accuracy'.",
    (', "accuracy": accuracy.item()', ""),
)
wrong(
    "train_rm",
    "You return the model; the docstring asks for the history. The model is trained in place.",
    ("return history", "return model"),
)
wrong(
    "train_rm",
    "You return nothing.",
    ("return history", "return None"),
)
wrong(
    "train_rm",
    "Chosen and rejected have changed places: the model learns to prefer what people did not.",
    (LOSS, "loss, accuracy = rm_loss(r_rejected, r_chosen)"),
)
wrong(
    "train_rm",
    "The texts go through the model with each other's masks.",
    (MASKS, 'torch.cat([batch["rejected_mask"], batch["chosen_mask"]])'),
)
wrong(
    "train_rm",
    "Chosen and rejected texts both go through the model with the chosen mask.",
    (MASKS, 'torch.cat([batch["chosen_mask"], batch["chosen_mask"]])'),
)
wrong(
    "train_rm",
    "The masks do not reach the model.",
    (MASKS, "torch.ones_like(torch.cat([batch['chosen_mask'], batch['rejected_mask']]))"),
)
wrong(
    "train_rm",
    "You split the scores into even and odd rows; the first half of the batch is chosen, the second rejected.",
    (CHUNK, "r_chosen, r_rejected = scores[::2], scores[1::2]"),
)
wrong(
    "train_rm",
    "Chosen and rejected scores both come from the chosen texts: the loss is ln 2 for ever.",
    (CHUNK, "r_chosen, r_rejected = scores.chunk(2)[0], scores.chunk(2)[0]"),
)
wrong(
    "train_rm",
    "The rejected scores are computed without a gradient: only the chosen ones are pushed.",
    (LOSS, "loss, accuracy = rm_loss(r_chosen, r_rejected.detach())"),
)
wrong(
    "train_rm",
    "Your accuracy is that of all batches so far, not of this step.",
    ("return history", ("return [h | {'accuracy': sum(x['accuracy'] for x in history[: i + 1]) / (i + 1)} "
     "for i, h in enumerate(history)]")),
)  # fmt: skip
wrong(
    "train_rm",
    "Your history holds the mean of all losses so far, not the loss of each step.",
    ("return history", ("return [h | {'loss': sum(x['loss'] for x in history[: i + 1]) / (i + 1)} "
     "for i, h in enumerate(history)]")),
)  # fmt: skip
wrong(
    "train_rm",
    "The accuracy is 1 or 0, whether the loss is below ln 2; it is the share of right pairs.",
    ("accuracy.item()", "float(loss.item() < 0.6931)"),
)
wrong(
    "train_rm",
    "The loss is divided by the number of batches, as if gradients were gathered over all of them.",
    (LOSS, LOSS + "\n            loss = loss / len(dataloader)"),
)
wrong(
    "train_rm",
    "Loss and accuracy are those after the step, not those that were trained on.",
    (
        STEP,
        STEP + "            scores = model(\n"
        '                torch.cat([batch["chosen_ids"], batch["rejected_ids"]]),\n'
        '                torch.cat([batch["chosen_mask"].clone(), batch["rejected_mask"]]),\n'
        "            )\n            loss, accuracy = rm_loss(*scores.detach().chunk(2))\n",
    ),
)
wrong(
    "train_rm",
    "The model is in eval mode while it trains.",
    ("    model.train()\n", "    model.eval()\n"),
)
wrong(
    "train_rm",
    "The model is never put into training mode, and from_pretrained leaves its backbone in eval mode.",
    ("    model.train()\n", ""),
)
wrong(
    "train_rm",
    "You put the backbone into eval mode: it is trained without dropout.",
    ("    model.train()\n", "    model.train()\n    model.backbone.eval()\n"),
)
wrong(
    "train_rm",
    "You train a copy; the model that you are handed stays as it was.",
    ("model.to(device)", "model = __import__('copy').deepcopy(model).to(device)"),
)
wrong(
    "train_rm",
    "The batch stays where it was: on a GPU the model and its input are on two devices.",
    (TO_DEVICE, ""),
)
wrong(
    "train_rm",
    "The model stays where it was: on a GPU the model and its input are on two devices.",
    ("    model.to(device)\n", ""),
)
wrong(
    "train_rm",
    "You write into the masks of the batch, and the next epoch reads what you wrote.",
    (LOSS, LOSS + '\n            batch["rejected_mask"][:, -1] = 1'),
)
wrong(
    "train_rm",
    "You squeeze the scores: a last batch of one pair has none left to compare.",
    (CHUNK, ("r_chosen, r_rejected = (part.squeeze() for part in scores.chunk(2))\n"
     "            r_chosen, r_rejected = r_chosen[: len(r_rejected)], r_rejected")),
)  # fmt: skip
wrong(
    "train_rm",
    UPHILL,
    (BACKWARD, "            (-loss).backward()\n"),
)
wrong(
    "train_rm",
    UPHILL,
    (OPTIM, OPTIM.replace("lr=lr", "lr=lr, maximize=True")),
)
wrong(
    "train_rm",
    "You take the absolute value of the gradient: every weight can only go down.",
    (CLIP, CLIP + "            for p in model.parameters():\n                p.grad.abs_()\n"),
)
wrong(
    "train_rm",
    "From the second epoch on you train on the first batch alone.",
    ("for _ in range", "for epoch in range"),
    (
        TO_DEVICE,
        "            batch = batch if epoch == 0 else next(iter(dataloader))\n" + TO_DEVICE,
    ),
)
wrong(
    "train_rm",
    "From the second epoch on the sign of the gradient is wrong: what the first has learnt is unlearnt.",
    ("for _ in range", "for epoch in range"),
    (BACKWARD, "            (loss if epoch == 0 else -loss).backward()\n"),
)
wrong(
    "train_rm",
    "You change the learning rate after each epoch; nobody asked for a schedule.",
    (APPEND, APPEND + "        optim.param_groups[0]['lr'] *= 0.1\n"),
)
wrong(
    "train_rm",
    "From the second epoch on the losses that you return are 0.",
    ("for _ in range", "for epoch in range"),
    ("loss.item()", "loss.item() if epoch == 0 else 0.0"),
)
wrong(
    "train_rm",
    "The head has a learning rate of its own; backbone and head are trained with the one that you are handed.",
    (
        OPTIM,
        (
            "optim = torch.optim.AdamW([{'params': model.backbone.parameters()}, "
            "{'params': model.v_head.parameters(), 'lr': 10 * lr}], lr=lr)"
        ),
    ),
)
wrong(
    "train_rm",
    "From the second epoch on the optimiser maximises: what the first has learnt is unlearnt.",
    (APPEND, APPEND + "        optim.param_groups[0]['maximize'] = True\n"),
)
wrong(
    "train_rm",
    "You train two epochs at most, whatever `n_epochs` says.",
    ("range(n_epochs)", "range(min(n_epochs, 2))"),
)
wrong(
    "train_rm",
    "You clip in the first epoch only.",
    ("for _ in range", "for epoch in range"),
    (CLIP, "            if epoch == 0:\n    " + CLIP),
)
wrong(
    "train_rm",
    "You make a list of the batches before the first epoch: a loader that shuffles then has one order for ever.",
    (LOOP, "    dataloader = list(dataloader)\n" + LOOP),
)
wrong(
    "train_rm",
    "You ask the data loader for batches by number; it can only be gone through.",
    ("for batch in dataloader:", "for i in range(len(dataloader)):"),
    (TO_DEVICE, TO_DEVICE.replace("batch.items()", "dataloader[i].items()")),
)
right(
    "train_rm",
    "two passes, keyword arguments",
    body("""
    model = model.to(device)
    optimizer = torch.optim.AdamW([{"params": model.backbone.parameters()}, {"params": model.v_head.parameters()}], lr)
    history = []
    for epoch in range(n_epochs):
        model.train()
        for batch in dataloader:
            chosen = model(input_ids=batch["chosen_ids"].to(device), attention_mask=batch["chosen_mask"].to(device))
            rejected = model(batch["rejected_ids"].to(device), batch["rejected_mask"].to(device))
            loss, accuracy = rm_loss(chosen, rejected)
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([p for p in model.parameters()], max_norm=1)
            optimizer.step()
            history.append(dict(loss=float(loss.detach()), accuracy=float(accuracy)))
    return history
    """),
)
right(
    "train_rm",
    "rejected first, zero_grad after the step, more than asked for in the history",
    body("""
    model.to(device).train()
    optim = torch.optim.AdamW(model.parameters(), lr=lr)
    optim.zero_grad()
    history = []
    for batch in [batch for _ in range(n_epochs) for batch in dataloader]:
        batch = {k: v.to(device) for k, v in batch.items()}
        ids = torch.cat([batch["rejected_ids"], batch["chosen_ids"]])
        mask = torch.cat([batch["rejected_mask"], batch["chosen_mask"]])
        r_rejected, r_chosen = model(ids, mask).split(len(batch["chosen_ids"]))
        loss, accuracy = rm_loss(r_chosen, r_rejected)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad()
        history.append({"step": len(history), "loss": loss.item(), "accuracy": accuracy.item(), "norm": norm.item()})
    return history
    """),
)
right(
    "train_rm",
    "the loss spelt out",
    (
        LOSS,
        "loss = F.softplus(r_rejected - r_chosen).mean()\n            accuracy = (r_chosen > r_rejected).float().mean()",
    ),
    ("    model.eval()\n", ""),
)
right(
    "train_rm",
    "zero_grad, backward and clipping in a closure that the step calls",
    body("""
    model.to(device).train()
    optim = torch.optim.AdamW(model.parameters(), lr=lr)
    history = []
    for _ in range(n_epochs):
        for batch in dataloader:
            batch = {name: tensor.to(device) for name, tensor in batch.items()}

            def closure():
                optim.zero_grad()
                chosen = model(batch["chosen_ids"], batch["chosen_mask"])
                rejected = model(batch["rejected_ids"], batch["rejected_mask"])
                loss, accuracy = rm_loss(chosen, rejected)
                history.append({"loss": loss.item(), "accuracy": accuracy.item()})
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                return loss

            optim.step(closure)
    return history
    """),
)
right(
    "train_rm",
    "clipping in a hook before the step",
    (OPTIM, OPTIM + "\n    optim.register_step_pre_hook(\n"
     "        lambda *_: (torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), None)[1]\n    )"),
    (CLIP, ""),
)  # fmt: skip
right(
    "train_rm",
    "an AdamW of one's own, that clips in its step",
    (OPTIM, OPTIM.replace("torch.optim.AdamW", "ClippingAdamW")),
    (CLIP, ""),
    imports="""
class ClippingAdamW(torch.optim.AdamW):
    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)
""",
)
right(
    "train_rm",
    "no weight decay, and gradients that are filled with zeros",
    (OPTIM, OPTIM.replace("lr=lr", "lr=lr, weight_decay=0.0")),
    (ZERO, "            optim.zero_grad(set_to_none=False)\n"),
)
right(
    "train_rm",
    "ten times the weight decay",
    (OPTIM, OPTIM.replace("lr=lr", "lr=lr, weight_decay=0.1")),
)
