"""Wrong and correct implementations of the exercises in `sft.py`."""

from . import body, right, wrong

# --- 1.1 build_sft_example ------------------------------------------------------------------------

IDS = "input_ids = (prompt_ids + response_ids + [eos_id])[:max_len]"
LABELS = "labels = ([IGNORE] * len(prompt_ids) + response_ids + [eos_id])[:max_len]"
MASK = "[1] * n_real + [0] * n_pad"
CHECK = "if len(prompt_ids) >= max_len:"
ROOM = "n_real, n_pad = len(input_ids), max_len - len(input_ids)"

wrong(
    "build_sft_example",
    "You read the attention mask off the ids (`id != pad_id`): where pad and EOS are the same token, the EOS to learn "
    "is hidden.",
    (MASK, "[int(token != pad_id) for token in input_ids] + [0] * n_pad"),
)
wrong(
    "build_sft_example",
    "You hide every label that equals the pad token: where pad and EOS are the same token, nothing teaches the model "
    "to stop.",
    ("labels + [IGNORE] * n_pad", "[IGNORE if x == pad_id else x for x in labels] + [IGNORE] * n_pad"),
)
wrong(
    "build_sft_example",
    "The padding carries the pad id as its label: the model would learn to write padding.",
    ("labels + [IGNORE] * n_pad", "labels + [pad_id] * n_pad"),
)
wrong(
    "build_sft_example",
    "The padding has label 0, which is a token. Which number does the loss ignore?",
    ("labels + [IGNORE] * n_pad", "labels + [0] * n_pad"),
)
wrong(
    "build_sft_example",
    "The prompt has labels: the model would learn to imitate the question too.",
    (LABELS, "labels = (prompt_ids + response_ids + [eos_id])[:max_len]"),
)
wrong(
    "build_sft_example",
    "The prompt has label 0, which is a token. Which number does the loss ignore?",
    (LABELS, "labels = ([0] * len(prompt_ids) + response_ids + [eos_id])[:max_len]"),
)
wrong(
    "build_sft_example",
    "The first response token has no label: you hide one token too many.",
    (LABELS, "labels = ([IGNORE] * (len(prompt_ids) + 1) + response_ids[1:] + [eos_id])[:max_len]"),
)
wrong(
    "build_sft_example",
    "The last prompt token has a label: you hide one token too few.",
    (
        LABELS,
        "labels = ([IGNORE] * (len(prompt_ids) - 1) + prompt_ids[-1:] + response_ids + [eos_id])[:max_len]",
    ),
)
wrong(
    "build_sft_example",
    "Your labels are shifted by one already. The loss (1.3) shifts them, and twice is once too often.",
    (
        LABELS,
        "labels = ([IGNORE] * (len(prompt_ids) - 1) + response_ids + [eos_id, IGNORE])[:max_len]",
    ),
)
wrong(
    "build_sft_example",
    "The prompt is missing from input_ids: the model has to read it, it is the labels that leave it out.",
    (IDS, "input_ids = (response_ids + [eos_id])[:max_len]"),
    (LABELS, "labels = input_ids"),
)
wrong(
    "build_sft_example",
    "You never append the EOS: a model that learns from such rows never stops.",
    (IDS, "input_ids = (prompt_ids + response_ids)[:max_len]"),
    (LABELS, "labels = ([IGNORE] * len(prompt_ids) + response_ids)[:max_len]"),
)
wrong(
    "build_sft_example",
    "The EOS stands in the row, but its label is -100: nothing teaches the model to stop.",
    (LABELS, "labels = ([IGNORE] * len(prompt_ids) + response_ids + [IGNORE])[:max_len]"),
)
wrong(
    "build_sft_example",
    "There is an EOS between prompt and response: the response would begin after the end of a text.",
    (IDS, "input_ids = (prompt_ids + [eos_id] + response_ids + [eos_id])[:max_len]"),
    (LABELS, "labels = ([IGNORE] * (len(prompt_ids) + 1) + response_ids + [eos_id])[:max_len]"),
)
wrong(
    "build_sft_example",
    "There are two EOS at the end of a response; one ends it.",
    (IDS, "input_ids = (prompt_ids + response_ids + [eos_id, eos_id])[:max_len]"),
    (LABELS, "labels = ([IGNORE] * len(prompt_ids) + response_ids + [eos_id, eos_id])[:max_len]"),
)
wrong(
    "build_sft_example",
    "A cut response ends in EOS with you: the model would learn to stop in mid-sentence.",
    (ROOM, "input_ids[-1] = labels[-1] = eos_id\n    " + ROOM),
)
wrong(
    "build_sft_example",
    "You cut prompt and response to max_len and then append the EOS: a long row is one token too long.",
    (IDS, "input_ids = (prompt_ids + response_ids)[:max_len] + [eos_id]"),
    (LABELS, "labels = ([IGNORE] * len(prompt_ids) + response_ids)[:max_len] + [eos_id]"),
)
wrong(
    "build_sft_example",
    "You cut on the left: the prompt loses its beginning, and labels and ids may no longer fit together.",
    (IDS, "input_ids = (prompt_ids + response_ids + [eos_id])[-max_len:]"),
    (LABELS, "labels = ([IGNORE] * len(prompt_ids) + response_ids + [eos_id])[-max_len:]"),
)
wrong(
    "build_sft_example",
    "You cut the prompt to make room for the response. The prompt stays whole.",
    (
        IDS,
        "n_prompt = min(len(prompt_ids), max(0, max_len - len(response_ids) - 1))\n"
        "    prompt_ids = prompt_ids[:n_prompt]\n    " + IDS,
    ),
)
wrong(
    "build_sft_example",
    "You pad, and never cut: a long row is longer than max_len.",
    (IDS, "input_ids = prompt_ids + response_ids + [eos_id]"),
    (LABELS, "labels = [IGNORE] * len(prompt_ids) + response_ids + [eos_id]"),
)
wrong(
    "build_sft_example",
    "You cut, and never pad: a short row is shorter than max_len.",
    (ROOM, "n_real, n_pad = len(input_ids), 0"),
)
wrong(
    "build_sft_example",
    "The padding stands on the left; here it belongs on the right.",
    ("input_ids + [pad_id] * n_pad", "[pad_id] * n_pad + input_ids"),
    ("labels + [IGNORE] * n_pad", "[IGNORE] * n_pad + labels"),
    (MASK, "[0] * n_pad + [1] * n_real"),
)
wrong(
    "build_sft_example",
    "Your ids are padded on the left, and labels and mask on the right.",
    ("input_ids + [pad_id] * n_pad", "[pad_id] * n_pad + input_ids"),
)
wrong(
    "build_sft_example",
    "The row is filled with EOS instead of the pad token.",
    ("input_ids + [pad_id] * n_pad", "input_ids + [eos_id] * n_pad"),
)
wrong(
    "build_sft_example",
    "EOS and pad token have changed places in input_ids.",
    (IDS, "input_ids = (prompt_ids + response_ids + [pad_id])[:max_len]"),
    ("input_ids + [pad_id] * n_pad", "input_ids + [eos_id] * n_pad"),
)
wrong(
    "build_sft_example",
    "Your attention mask leaves out the EOS, which is a real token.",
    (
        ROOM,
        "n_real = min(len(prompt_ids) + len(response_ids), max_len)\n    n_pad = max_len - len(input_ids)",
    ),
    (MASK, "[1] * n_real + [0] * (max_len - n_real)"),
)
wrong(
    "build_sft_example",
    "Your attention mask is 1 on the padding too.",
    (MASK, "[1] * max_len"),
)
wrong(
    "build_sft_example",
    "Your attention mask is 0 on the prompt: the model has to read the question, it is the labels that leave it out.",
    (MASK, "[int(x != IGNORE) for x in labels] + [0] * n_pad"),
)
wrong(
    "build_sft_example",
    "A prompt of exactly max_len tokens passes, though no token is left to learn from.",
    (CHECK, "if len(prompt_ids) > max_len:"),
)
wrong(
    "build_sft_example",
    "A prompt that fills the row passes without an error, and leaves no token to learn from.",
    (CHECK, "if False:"),
)
wrong(
    "build_sft_example",
    "You raise an error for each response that is too long. Those are cut; only a prompt that fills the row is an error.",
    (CHECK, "if len(prompt_ids) + len(response_ids) > max_len:"),
)
wrong(
    "build_sft_example",
    "You refuse a row that has room for just one token of the response.",
    (CHECK, "if len(prompt_ids) + 1 >= max_len:"),
)
wrong(
    "build_sft_example",
    "You refuse an empty response; its EOS is still there to learn.",
    (CHECK, "if len(prompt_ids) >= max_len or not response_ids:"),
)
wrong(
    "build_sft_example",
    "A prompt that fills the row ends in an AssertionError or another error; the contract names ValueError.",
    ("raise ValueError(", "raise AssertionError("),
)
wrong(
    "build_sft_example",
    "You append the EOS to the list that you were handed: the caller's response grows with each call.",
    (IDS, "response_ids.append(eos_id)\n    input_ids = (prompt_ids + response_ids)[:max_len]"),
    (LABELS, "labels = ([IGNORE] * len(prompt_ids) + response_ids)[:max_len]"),
)
wrong(
    "build_sft_example",
    "`prompt_ids += ...` changes the list that you were handed: the caller's prompt grows with each call.",
    (
        IDS,
        (
            "n_prompt = len(prompt_ids)\n    prompt_ids += response_ids + [eos_id]\n"
            "    input_ids = prompt_ids[:max_len]"
        ),
    ),
    (LABELS, "labels = ([IGNORE] * n_prompt + response_ids + [eos_id])[:max_len]"),
)
wrong(
    "build_sft_example",
    "You look for the end of the response at the first EOS id, and find one inside the prompt or response.",
    (ROOM, ("n_real = input_ids.index(eos_id) + 1 if eos_id in input_ids else len(input_ids)\n"
           "    n_pad = max_len - len(input_ids)")),
    (MASK, "[1] * n_real + [0] * (max_len - n_real)"),
)  # fmt: skip
wrong(
    "build_sft_example",
    "You append no EOS where the response ends in one already. It is appended whatever the response holds.",
    (ROOM, "if (prompt_ids + response_ids)[-1:] == [eos_id]:\n"
     "        input_ids, labels = input_ids[:-1], labels[:-1]\n    " + ROOM),
)  # fmt: skip
wrong(
    "build_sft_example",
    "You hide a label wherever its token also stands in the prompt. What counts is the place, not the token.",
    (
        LABELS,
        "labels = [IGNORE if token in prompt_ids else token for token in input_ids]",
    ),
)
wrong(
    "build_sft_example",
    "You return tensors; this function deals in plain lists, and the data set makes tensors of them.",
    body("""
    if len(prompt_ids) >= max_len:
        raise ValueError(f"{len(prompt_ids)} tokens do not fit into {max_len}")
    ids = (prompt_ids + response_ids + [eos_id])[:max_len]
    labels = ([IGNORE] * len(prompt_ids) + response_ids + [eos_id])[:max_len]
    n_pad = max_len - len(ids)
    return {
        "input_ids": torch.tensor(ids + [pad_id] * n_pad),
        "labels": torch.tensor(labels + [IGNORE] * n_pad),
        "attention_mask": torch.tensor([1] * len(ids) + [0] * n_pad),
    }
    """),
)
wrong(
    "build_sft_example",
    "Your error does not say how long the prompt is and how long the row may be.",
    (
        'f"the prompt has {len(prompt_ids)} tokens and max_len is {max_len}: no response token would be left"',
        '"the prompt is too long"',
    ),
)
wrong(
    "build_sft_example",
    "Token 0 counts as no token with you (`if token`): it is a token like others.",
    (
        LABELS,
        "labels = ([IGNORE] * len(prompt_ids) + [t or IGNORE for t in response_ids] + [eos_id])[:max_len]",
    ),
)
wrong(
    "build_sft_example",
    "You refuse a prompt that leaves no room only for the lengths that the check happens to try.",
    (CHECK, "if len(prompt_ids) >= max_len and max_len in (5, 17):"),
)
right(
    "build_sft_example",
    "padded token by token, in a loop",
    body("""
    if len(prompt_ids) >= max_len:
        raise ValueError(f"{len(prompt_ids)} of {max_len}")
    input_ids, labels, attention_mask = [], [], []
    for token in prompt_ids:
        input_ids.append(token)
        labels.append(-100)
        attention_mask.append(1)
    for token in [*response_ids, eos_id]:
        if len(input_ids) < max_len:
            input_ids.append(token)
            labels.append(token)
            attention_mask.append(1)
    while len(input_ids) < max_len:
        input_ids.append(pad_id)
        labels.append(-100)
        attention_mask.append(0)
    return dict(input_ids=input_ids, labels=labels, attention_mask=attention_mask)
    """),
)
right(
    "build_sft_example",
    "one full row, and the mask as booleans",
    body("""
    n_prompt = len(prompt_ids)
    if n_prompt + 1 > max_len:
        raise ValueError(f"{n_prompt} tokens of prompt, {max_len} in all")
    text = [*prompt_ids, *response_ids, eos_id]
    row = (text + [pad_id] * max_len)[:max_len]
    labels = [row[i] if n_prompt <= i < len(text) else -100 for i in range(max_len)]
    return {"input_ids": row, "labels": labels, "attention_mask": [i < len(text) for i in range(max_len)]}
    """),
)
right(
    "build_sft_example",
    "with tensors inside, and another key beside the three",
    body("""
    if len(prompt_ids) >= max_len:
        raise ValueError(f"no room: {max_len} for {len(prompt_ids)}")
    real = torch.tensor(prompt_ids + response_ids + [eos_id])[:max_len]
    row = torch.full((max_len,), pad_id)
    row[: len(real)] = real
    labels = torch.full((max_len,), IGNORE)
    labels[len(prompt_ids) : len(real)] = real[len(prompt_ids) :]
    mask = (torch.arange(max_len) < len(real)).float()
    return {
        "input_ids": row.tolist(), "labels": labels.tolist(), "attention_mask": mask.tolist(), "length": len(real)
    }
    """),
)

right(
    "build_sft_example",
    "an error class of one's own, derived from ValueError",
    ("raise ValueError(", "raise PromptTooLong("),
    imports="class PromptTooLong(ValueError):\n    pass",
)

# --- 1.2 SFTDataset -------------------------------------------------------------------------------

PROMPT = 'tokenizer(row["prompt"], add_special_tokens=False).input_ids'
RESPONSE = 'tokenizer(row["response"], add_special_tokens=False).input_ids'
SET_PAD = "if tokenizer.pad_token is None:\n            tokenizer.pad_token = tokenizer.eos_token"
ITEM = "return {name: torch.tensor(ids, dtype=torch.long) for name, ids in self.examples[index].items()}"

wrong(
    "SFTDataset",
    "The response is tokenised with special tokens.",
    (RESPONSE, 'tokenizer(row["response"]).input_ids'),
)
wrong(
    "SFTDataset",
    "The prompt is tokenised with special tokens.",
    (PROMPT, 'tokenizer(row["prompt"]).input_ids'),
)
wrong(
    "SFTDataset",
    "Prompt and response are tokenised with special tokens.",
    (PROMPT, 'tokenizer(row["prompt"]).input_ids'),
    (RESPONSE, 'tokenizer(row["response"]).input_ids'),
)
wrong(
    "SFTDataset",
    "You tokenise prompt and response as one text and cut off as many tokens as the prompt has alone: a token that "
    "reaches across the border is torn.",
    (
        RESPONSE,
        (
            'tokenizer(row["prompt"] + row["response"], add_special_tokens=False).input_ids'
            '[len(tokenizer(row["prompt"], add_special_tokens=False).input_ids) :]'
        ),
    ),
)
wrong(
    "SFTDataset",
    "You put a space between prompt and response; the texts bring their own.",
    (RESPONSE, 'tokenizer(" " + row["response"], add_special_tokens=False).input_ids'),
)
wrong(
    "SFTDataset",
    "You strip the response, and its first token is another one without its space.",
    (RESPONSE, 'tokenizer(row["response"].strip(), add_special_tokens=False).input_ids'),
)
wrong(
    "SFTDataset",
    "You strip the prompt: the space or line end that it ends in is a token too.",
    (PROMPT, 'tokenizer(row["prompt"].strip(), add_special_tokens=False).input_ids'),
)
wrong(
    "SFTDataset",
    "You cut the end of the response off as text: the line end that it ends in is a token too.",
    (RESPONSE, 'tokenizer(row["response"].rstrip(), add_special_tokens=False).input_ids'),
)
wrong(
    "SFTDataset",
    "You add the EOS to the text, and exercise 1.1 adds one too: each response ends twice.",
    (RESPONSE, 'tokenizer(row["response"] + tokenizer.eos_token, add_special_tokens=False).input_ids'),
)
wrong(
    "SFTDataset",
    "You replace the tokenizer's own pad token. Only where there is none is one to be set.",
    (SET_PAD, "tokenizer.pad_token = tokenizer.eos_token"),
)
wrong(
    "SFTDataset",
    "`not tokenizer.pad_token_id` is true of the pad token 0 as well, which is a pad token like any other: you replace it.",
    ("tokenizer.pad_token is None", "not tokenizer.pad_token_id"),
)
wrong(
    "SFTDataset",
    "You never give the tokenizer a pad token, and GPT-2's comes without one.",
    (SET_PAD, ""),
)
wrong(
    "SFTDataset",
    "You pad with EOS and do not set the tokenizer's pad token: whoever pads with it next stands without.",
    (
        SET_PAD,
        "pad_id = tokenizer.pad_token_id if tokenizer.pad_token is not None else tokenizer.eos_token_id",
    ),
    ("tokenizer.pad_token_id,\n", "pad_id,\n"),
)
wrong(
    "SFTDataset",
    "Where there is no pad token you invent one, '[PAD]': the model has no embedding for it. It has to be EOS.",
    ("tokenizer.pad_token = tokenizer.eos_token", 'tokenizer.add_special_tokens({"pad_token": "[PAD]"})'),
)
wrong(
    "SFTDataset",
    "You pad with EOS, though this tokenizer has a pad token of its own.",
    ("tokenizer.pad_token_id,\n", "tokenizer.eos_token_id,\n"),
)
wrong(
    "SFTDataset",
    "EOS and pad id are handed to exercise 1.1 in the wrong order.",
    (
        "tokenizer.eos_token_id,\n                tokenizer.pad_token_id,",
        "tokenizer.pad_token_id,\n                tokenizer.eos_token_id,",
    ),
)
wrong(
    "SFTDataset",
    "Prompt and response are handed to exercise 1.1 in the wrong order.",
    (f"{PROMPT},\n                {RESPONSE}", f"{RESPONSE},\n                {PROMPT}"),
)
wrong(
    "SFTDataset",
    "Your tensors are int32; an embedding and the loss take int64.",
    ("dtype=torch.long", "dtype=torch.int32"),
)
wrong(
    "SFTDataset",
    "Your tensors are floats; token ids are whole numbers.",
    ("dtype=torch.long", "dtype=torch.float32"),
)
wrong(
    "SFTDataset",
    "The attention mask is boolean; the docstring asks for LongTensor, as for the others.",
    (ITEM, ITEM.replace("for name", "if name != 'attention_mask' else torch.tensor(ids).bool() for name")),
)
wrong(
    "SFTDataset",
    "An item is lists, not tensors: a DataLoader turns lists into something else than a batch.",
    (ITEM, "return self.examples[index]"),
)
wrong(
    "SFTDataset",
    "Your tensors are [1, max_len]: a batch of them has one dimension too many.",
    ("torch.tensor(ids, dtype=torch.long)", "torch.tensor([ids], dtype=torch.long)"),
)
wrong(
    "SFTDataset",
    "Each index gives the first row.",
    ("self.examples[index]", "self.examples[0]"),
)
wrong(
    "SFTDataset",
    "Each index gives the row after it.",
    ("self.examples[index]", "self.examples[(index + 1) % len(self.examples)]"),
)
wrong(
    "SFTDataset",
    "An index behind the end begins at the first row again: `for row in dataset` never ends.",
    ("self.examples[index]", "self.examples[index % len(self.examples)]"),
)
wrong(
    "SFTDataset",
    "You ignore max_len: a number stands in its place.",
    ("                max_len,\n", "                128,\n"),
)
wrong(
    "SFTDataset",
    "len(dataset) is the length of a row, not the number of rows.",
    ("return len(self.examples)", 'return len(self.examples[0]["input_ids"])'),
)
wrong(
    "SFTDataset",
    "You leave out demonstrations that are too long. They are cut, and each row of the data is an item.",
    (
        "for row in data\n",
        'for row in data\n            if len(tokenizer(row["prompt"] + row["response"]).input_ids) < max_len\n',
    ),
)
wrong(
    "SFTDataset",
    "You make the labels a copy of input_ids again: the prompt gets labels.",
    (ITEM, ITEM.replace("self.examples[index].items()", "(self.examples[index] | "
                        '{"labels": self.examples[index]["input_ids"]}).items()')),
)  # fmt: skip
wrong(
    "SFTDataset",
    "You hide the labels of all pad ids in the end: where the pad token is the EOS token, the EOS to learn is hidden.",
    (ITEM, ITEM.replace("return ", "item = ") + "\n"
     '        item["labels"][item["input_ids"] == self.pad_id] = IGNORE\n        return item'),
    ("self.examples = [", "self.pad_id = tokenizer.pad_token_id\n        self.examples = ["),
)  # fmt: skip
wrong(
    "SFTDataset",
    "You take the attention mask from the ids (`!= pad`) in the end: where the pad token is the EOS token, the EOS "
    "to learn is hidden.",
    (ITEM, ITEM.replace("return ", "item = ") + "\n"
     '        item["attention_mask"] = (item["input_ids"] != self.pad_id).long()\n        return item'),
    ("self.examples = [", "self.pad_id = tokenizer.pad_token_id\n        self.examples = ["),
)  # fmt: skip
wrong(
    "SFTDataset",
    "You take the texts out of the rows (`pop`): whoever reads the data next finds nothing there.",
    (PROMPT, PROMPT.replace('row["prompt"]', 'row.pop("prompt")')),
    (RESPONSE, RESPONSE.replace('row["response"]', 'row.pop("response")')),
)
wrong(
    "SFTDataset",
    "You let the tokenizer pad and cut prompt and response each to max_len before you join them.",
    (PROMPT, PROMPT.replace("add_special_tokens=False", 'add_special_tokens=False, padding="max_length", '
                            "max_length=max_len // 2, truncation=True")),
)  # fmt: skip
wrong(
    "SFTDataset",
    "You lower the case of the texts before you tokenise them.",
    (PROMPT, PROMPT.replace('row["prompt"]', 'row["prompt"].lower()')),
    (RESPONSE, RESPONSE.replace('row["response"]', 'row["response"].lower()')),
)
wrong(
    "SFTDataset",
    "You leave out demonstrations whose prompt fills the row, in silence: nobody learns that the data do not fit.",
    (
        "for row in data\n",
        'for row in data\n            if len(tokenizer(row["prompt"], add_special_tokens=False).input_ids) < max_len\n',
    ),
)
wrong(
    "SFTDataset",
    "You cut the prompt so that a token of the response fits: the model reads another question.",
    (PROMPT, PROMPT + "[: max_len - 1]"),
)
wrong(
    "SFTDataset",
    "You leave out demonstrations that stand in the data twice. Each row of the data is an item.",
    (
        "            for row in data\n",
        '            for row in {(r["prompt"], r["response"]): r for r in data}.values()\n',
    ),
)
wrong(
    "SFTDataset",
    "You leave out demonstrations with an empty prompt or response. Each row of the data is an item.",
    (
        "            for row in data\n",
        '            for row in data\n            if row["prompt"] and row["response"]\n',
    ),
)
wrong(
    "SFTDataset",
    "You let the tokenizer pad the whole text, on the side that it pads on; in training padding is on the right.",
    (
        ITEM,
        ITEM.replace("return ", "item = ")
        + """
        if self.side == "left":
            n_pad = int((item["attention_mask"] == 0).sum())
            item = {name: column.roll(n_pad) for name, column in item.items()}
        return item""",
    ),
    ("self.examples = [", "self.side = tokenizer.padding_side\n        self.examples = ["),
)
right(
    "SFTDataset",
    "tokenised when an item is asked for",
    (
        """        self.examples = [
            build_sft_example(
                tokenizer(row["prompt"], add_special_tokens=False).input_ids,
                tokenizer(row["response"], add_special_tokens=False).input_ids,
                tokenizer.eos_token_id,
                tokenizer.pad_token_id,
                max_len,
            )
            for row in data
        ]
""",
        "        self.data, self.tokenizer, self.max_len = data, tokenizer, max_len\n",
    ),
    ("return len(self.examples)", "return len(self.data)"),
    (
        ITEM,
        """row, tok = self.data[index], self.tokenizer
        example = build_sft_example(
            tok.encode(row["prompt"], add_special_tokens=False),
            tok.encode(row["response"], add_special_tokens=False),
            eos_id=tok.eos_token_id, pad_id=tok.pad_token_id, max_len=self.max_len,
        )
        return {name: torch.LongTensor(ids) for name, ids in example.items()}""",
    ),
)
right(
    "SFTDataset",
    "stacked tensors, made once",
    (ITEM, "return {name: column[index] for name, column in self.columns.items()}"),
    (
        "            for row in data\n        ]\n",
        (
            "            for row in data\n        ]\n"
            "        names = ('input_ids', 'labels', 'attention_mask')\n"
            "        self.columns = {n: torch.tensor([e[n] for e in self.examples]) for n in names}\n"
        ),
    ),
)
right(
    "SFTDataset",
    "convert_tokens_to_ids(tokenize(...)), and the text beside the tensors",
    (PROMPT, 'tokenizer.convert_tokens_to_ids(tokenizer.tokenize(row["prompt"]))'),
    (ITEM, ITEM.replace("return {", "return {'index': torch.tensor(index)} | {")),
)
right(
    "SFTDataset",
    "the pad id set by number",
    (
        SET_PAD,
        "if tokenizer.pad_token_id is None:\n            tokenizer.pad_token_id = tokenizer.eos_token_id",
    ),
)

# --- 1.3 masked_ce_loss ---------------------------------------------------------------------------

SHIFT = "predictions, targets = logits[:, :-1], labels[:, 1:]"
FLAT = 'predictions.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum"'
RETURN = "return total / (targets != IGNORE).sum().clamp(min=1)"

wrong(
    "masked_ce_loss",
    "You do not shift: position t is asked for the token that it has just read.",
    (SHIFT, "predictions, targets = logits, labels"),
)
wrong(
    "masked_ce_loss",
    "You shift the wrong way: position t is asked for the token before it.",
    (SHIFT, "predictions, targets = logits[:, 1:], labels[:, :-1]"),
)
wrong(
    "masked_ce_loss",
    "You shift by two: position t is asked for token t + 2.",
    (SHIFT, "predictions, targets = logits[:, :-2], labels[:, 2:]"),
)
wrong(
    "masked_ce_loss",
    "You cut the last place off logits and labels both: the lengths fit, and nothing is shifted.",
    (SHIFT, "predictions, targets = logits[:, :-1], labels[:, :-1]"),
)
wrong(
    "masked_ce_loss",
    "You roll the labels: the last position is asked for the first token of the row.",
    (SHIFT, "predictions, targets = logits, labels.roll(-1, dims=1)"),
)
wrong(
    "masked_ce_loss",
    "You divide by all places, the ignored ones too: long prompts and much padding make the loss small.",
    (RETURN, "return total / targets.numel()"),
)
wrong(
    "masked_ce_loss",
    "You divide by the number of rows: long responses weigh more than their share.",
    (RETURN, "return total / len(labels)"),
)
wrong(
    "masked_ce_loss",
    "You add the losses up and do not average them.",
    (RETURN, "return total"),
)
wrong(
    "masked_ce_loss",
    "A batch without labels gives NaN, 0 divided by 0: `F.cross_entropy` with its own mean does that.",
    (FLAT, FLAT.replace('"sum"', '"mean"')),
    (RETURN, "return total"),
)
wrong(
    "masked_ce_loss",
    "You add 1 to the count so that it is never 0, and every loss comes out too small.",
    (RETURN, "return total / ((targets != IGNORE).sum() + 1)"),
)
wrong(
    "masked_ce_loss",
    "You average each row first and then the rows: a token of a short response weighs more.",
    (
        RETURN,
        (
            "rows = [F.cross_entropy(p, t, ignore_index=IGNORE) for p, t in zip(predictions, targets) "
            "if (t != IGNORE).any()]\n    return sum(rows) / len(rows) if rows else total"
        ),
    ),
)
wrong(
    "masked_ce_loss",
    "You average each row first, and a row without labels is NaN.",
    (
        RETURN,
        "return sum(F.cross_entropy(p, t, ignore_index=IGNORE) for p, t in zip(predictions, targets)) / len(labels)",
    ),
)
wrong(
    "masked_ce_loss",
    "You average each row first and count rows without labels as 0.",
    (
        RETURN,
        (
            "per_token = F.cross_entropy(predictions.transpose(1, 2), targets, reduction='none')\n"
            "    counts = (targets != IGNORE).sum(-1).clamp(min=1)\n    return (per_token.sum(-1) / counts).mean()"
        ),
    ),
)
wrong(
    "masked_ce_loss",
    "You count the labels before the shift: the label at position 0 is counted, and nothing predicts it.",
    ("(targets != IGNORE).sum()", "(labels != IGNORE).sum()"),
)
wrong(
    "masked_ce_loss",
    "You take the softmax before `F.cross_entropy`, which takes its own.",
    (SHIFT, SHIFT + "\n    predictions = predictions.softmax(-1)"),
)
wrong(
    "masked_ce_loss",
    "You take the softmax along the wrong dimension: over the positions, not over the vocabulary.",
    (SHIFT, SHIFT + "\n    predictions = predictions.log_softmax(1)"),
    (FLAT, FLAT),
    ("F.cross_entropy(", "F.nll_loss("),
)
wrong(
    "masked_ce_loss",
    "`F.nll_loss` takes log-probabilities, and you hand it logits.",
    ("F.cross_entropy(", "F.nll_loss("),
)
wrong(
    "masked_ce_loss",
    "You take the log of a softmax: where a probability is rounded to 0, the loss is infinite.",
    (SHIFT, SHIFT + "\n    predictions = predictions.softmax(-1).log()"),
    ("F.cross_entropy(", "F.nll_loss("),
)
wrong(
    "masked_ce_loss",
    "You write the softmax out with exp, and exp of a large logit is infinite.",
    (SHIFT, SHIFT + "\n    predictions = predictions - predictions.exp().sum(-1, keepdim=True).log()"),
    ("F.cross_entropy(", "F.nll_loss("),
)
wrong(
    "masked_ce_loss",
    "You add 1e-8 inside the log: the loss of an unlikely token is cut off.",
    (SHIFT, SHIFT + "\n    predictions = (predictions.softmax(-1) + 1e-8).log()"),
    ("F.cross_entropy(", "F.nll_loss("),
)
wrong(
    "masked_ce_loss",
    "The sign is wrong: the loss falls when the right token gets less likely.",
    (RETURN, RETURN.replace("total", "-total")),
)
wrong(
    "masked_ce_loss",
    "Your loss is in bits (log 2); the docstring asks for nats.",
    (RETURN, RETURN.replace("total", "total / torch.tensor(2.0).log()")),
)
wrong(
    "masked_ce_loss",
    "You return the perplexity, exp of the loss.",
    (RETURN, f"return ({RETURN.removeprefix('return ')}).exp()"),
)
wrong(
    "masked_ce_loss",
    "The labels of -100 count as token 0 with you: they enter the sum.",
    (SHIFT, SHIFT + "\n    targets = targets.clamp(min=0)"),
)
wrong(
    "masked_ce_loss",
    "The labels of -100 are token 0 in the sum, though you count only the others.",
    (FLAT, FLAT.replace("targets.flatten()", "targets.clamp(min=0).flatten()")),
)
wrong(
    "masked_ce_loss",
    "You ignore label 0, not only -100: the EOS (0) is never learnt.",
    (SHIFT, SHIFT + "\n    targets = torch.where(targets > 0, targets, IGNORE)"),
)
wrong(
    "masked_ce_loss",
    "You leave label 0 out of the count, and not out of the sum.",
    ("(targets != IGNORE).sum()", "(targets > 0).sum()"),
)
wrong(
    "masked_ce_loss",
    "You replace -100 in the labels that you are handed: the next one who reads them finds tokens there.",
    (
        SHIFT,
        SHIFT + "\n    ignored = targets == IGNORE\n    targets[ignored] = 0",
    ),
    (
        RETURN,
        (
            "per_token = F.cross_entropy(predictions.flatten(0, 1), targets.flatten(), reduction='none')\n"
            "    return (per_token * ~ignored.flatten()).sum() / (~ignored).sum().clamp(min=1)"
        ),
    ),
)
wrong(
    "masked_ce_loss",
    "You return a Python number (`.item()`), and nothing can be learnt from that.",
    (RETURN, f"return ({RETURN.removeprefix('return ')}).item()"),
)
wrong(
    "masked_ce_loss",
    "The gradient is cut off (detach or no_grad): backward has nothing to go through.",
    (RETURN, RETURN.replace("total", "total.detach()")),
)
wrong(
    "masked_ce_loss",
    "The softmax's denominator is detached: the loss is right, and its gradient only ever pushes up.",
    (SHIFT, SHIFT + "\n    predictions = predictions - predictions.logsumexp(-1, keepdim=True).detach()"),
    ("F.cross_entropy(", "F.nll_loss("),
)
wrong(
    "masked_ce_loss",
    "You return one loss a row; the docstring asks for one number.",
    (
        RETURN,
        (
            "per_token = F.cross_entropy(predictions.transpose(1, 2), targets, reduction='none')\n"
            "    return per_token.sum(-1) / (targets != IGNORE).sum(-1).clamp(min=1)"
        ),
    ),
)
wrong(
    "masked_ce_loss",
    "`view` fails on a slice, whose memory has gaps. Which function flattens any tensor?",
    (FLAT, FLAT.replace("predictions.flatten(0, 1)", "predictions.view(-1, logits.shape[-1])")),
)
wrong(
    "masked_ce_loss",
    "The loss is divided by the size of the vocabulary too: you average over all logits.",
    (RETURN, RETURN.replace("total", "total / logits.shape[-1]")),
)
wrong(
    "masked_ce_loss",
    "Your loss is 1 minus the probability of each label; cross-entropy takes its logarithm.",
    (
        RETURN,
        (
            "p = predictions.softmax(-1).gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)\n"
            "    counts = targets != IGNORE\n    return ((1 - p) * counts).sum() / counts.sum().clamp(min=1)"
        ),
    ),
)
wrong(
    "masked_ce_loss",
    "You guard against 0 / 0 with torch.where: the loss is 0, and the gradient is still NaN.",
    (
        RETURN,
        (
            "per_token = F.cross_entropy(predictions.transpose(1, 2), targets.clamp(min=0), reduction='none')\n"
            "    valid = targets != IGNORE\n    count = valid.sum()\n"
            "    return torch.where(count > 0, (per_token * valid).sum() / count, 0.0)"
        ),
    ),
)
wrong(
    "masked_ce_loss",
    "Without labels you return a new 0, which hangs on nothing: `loss.backward()` stops with an error.",
    (RETURN, "if not (targets != IGNORE).any():\n        return torch.tensor(0.0)\n    " + RETURN),
)
wrong(
    "masked_ce_loss",
    "The last label of each row is lost: you cut one place too many.",
    (SHIFT, "predictions, targets = logits[:, :-2], labels[:, 1:-1]"),
)
wrong(
    "masked_ce_loss",
    "You clamp the logits: beyond that, all of them are alike, and nothing can be learnt from them.",
    (SHIFT, SHIFT + "\n    predictions = predictions.clamp(-2000, 2000)"),
)
wrong(
    "masked_ce_loss",
    "You clamp the loss: a label that is very unlikely has no gradient.",
    (RETURN, RETURN.replace("return total", "return total.clamp(max=2000.0)")),
)
wrong(
    "masked_ce_loss",
    "You clamp the labels as if there were 64 tokens: those beyond are taken for another one.",
    (SHIFT, SHIFT + "\n    targets = targets.clamp(max=63)"),
)
right(
    "masked_ce_loss",
    "token by token, in a loop",
    body("""
    losses = []
    for row in range(labels.shape[0]):
        for t in range(1, labels.shape[1]):
            if labels[row, t] != -100:
                losses.append(logits[row, t - 1].logsumexp(-1) - logits[row, t - 1, labels[row, t]])
    return torch.stack(losses).mean() if losses else (logits * 0).sum()
    """),
)
right(
    "masked_ce_loss",
    "log_softmax and gather, in float64",
    body("""
    targets = labels[:, 1:]
    valid = targets != -100
    logprobs = logits[:, :-1].double().log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return -logprobs[valid].sum() / max(1, int(valid.sum()))
    """),
)
right(
    "masked_ce_loss",
    "torch.where instead of a clamp: what is ignored has no gradient in the library's sum",
    (
        RETURN,
        "count = (targets != IGNORE).sum()\n    return torch.where(count > 0, total / count, 0.0)",
    ),
)
right(
    "masked_ce_loss",
    "the library's mean, and 0 times the logits where there is no label",
    body("""
    targets = labels[:, 1:].reshape(-1)
    if bool((targets == -100).all()):
        return 0.0 * logits.sum()
    return F.cross_entropy(logits[:, :-1].reshape(len(targets), -1), targets)
    """),
)
right(
    "masked_ce_loss",
    "softmax taken twice in logs, which changes nothing; labels selected first",
    body("""
    chosen = labels[:, 1:] != IGNORE
    picked, wanted = logits[:, :-1][chosen], labels[:, 1:][chosen]
    return F.cross_entropy(picked.log_softmax(-1), wanted, reduction="sum") / chosen.sum().clamp(min=1)
    """),
)

# --- 1.4 train_sft --------------------------------------------------------------------------------

OPTIM = "optim = torch.optim.AdamW(model.parameters(), lr=lr)"
CLIP = "            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
ZERO = "            optim.zero_grad()\n"
BACKWARD = "            loss.backward()\n"
STEP = "            optim.step()\n"
APPEND = "            losses.append(loss.item())\n"
MODEL = 'model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits'
LOSS = 'loss = masked_ce_loss(logits, batch["labels"])'
TO_DEVICE = "            batch = {name: tensor.to(device) for name, tensor in batch.items()}\n"
NOTHING_TO_GO_BY = "No gradient reaches the step: there is no backward, or the gradients are set to zero between backward and step."
UPHILL = (
    "Each step makes the loss larger: you call backward on minus the loss, or `maximize=True` turns the optimiser "
    "round."
)
NOT_CLIPPED = (
    "The gradient that reaches the step is not clipped: clipping is not there, or comes after the step, or before "
    "backward."
)
LOOP = "    losses = []\n    for _ in range(n_epochs):\n"

wrong(
    "train_sft",
    "Gradients are never set to zero: each step moves along the sum of all gradients so far.",
    (ZERO, ""),
)
wrong(
    "train_sft",
    "Gradients are set to zero once an epoch: within it they add up.",
    (ZERO, ""),
    ("        for batch in dataloader:\n", "        optim.zero_grad()\n        for batch in dataloader:\n"),
)
wrong(
    "train_sft",
    NOTHING_TO_GO_BY,
    (ZERO, ""),
    (CLIP, CLIP + ZERO),
)
wrong(
    "train_sft",
    NOTHING_TO_GO_BY,
    (BACKWARD, ""),
)
wrong(
    "train_sft",
    "The optimiser never steps.",
    (STEP, ""),
)
wrong(
    "train_sft",
    "The step comes before backward: it moves along the gradient of the batch before.",
    (ZERO, ""),
    (BACKWARD, ""),
    (STEP, STEP + ZERO + BACKWARD),
    (CLIP, CLIP),
)
wrong(
    "train_sft",
    NOT_CLIPPED,
    (CLIP, ""),
)
wrong(
    "train_sft",
    NOT_CLIPPED,
    (CLIP, ""),
    (STEP, STEP + CLIP),
)
wrong(
    "train_sft",
    NOT_CLIPPED,
    (CLIP, ""),
    (BACKWARD, CLIP + BACKWARD),
)
wrong(
    "train_sft",
    "You clip each entry of the gradient to 1 (`clip_grad_value_`), not its norm.",
    ("clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_value_(model.parameters(), 1.0)"),
)
wrong(
    "train_sft",
    "You clip each weight's gradient on its own; the norm of all of them together is what counts.",
    (
        CLIP,
        "            for p in model.parameters():\n                torch.nn.utils.clip_grad_norm_([p], 1.0)\n",
    ),
)
wrong(
    "train_sft",
    "You scale each gradient to norm 1, the small ones too; clipping leaves those alone.",
    (
        CLIP,
        (
            "            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()\n"
            "            for p in model.parameters():\n                p.grad /= norm\n"
        ),
    ),
)
wrong(
    "train_sft",
    "You clip to another norm than 1.0.",
    ("clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_norm_(model.parameters(), 0.5)"),
)
wrong(
    "train_sft",
    "You make a new optimiser in each epoch, and AdamW forgets its running averages.",
    (OPTIM, "model = model"),
    (LOOP, LOOP + f"        {OPTIM}\n"),
)
wrong(
    "train_sft",
    "You make a new optimiser for each batch, and AdamW forgets its running averages.",
    (OPTIM, "model = model"),
    (TO_DEVICE, TO_DEVICE + f"            {OPTIM}\n"),
)
wrong(
    "train_sft",
    "Your optimiser is SGD; the docstring asks for AdamW.",
    ("torch.optim.AdamW(", "torch.optim.SGD("),
)
wrong(
    "train_sft",
    "Your optimiser is Adam; the docstring asks for AdamW.",
    ("torch.optim.AdamW(", "torch.optim.Adam("),
)
wrong(
    "train_sft",
    "`lr` is not handed on: AdamW steps with its own default.",
    (OPTIM, "optim = torch.optim.AdamW(model.parameters())"),
)
wrong(
    "train_sft",
    "A number stands where `lr` belongs.",
    (OPTIM, OPTIM.replace("lr=lr", "lr=5e-5")),
)
wrong(
    "train_sft",
    "You change the learning rate from step to step; nobody asked for a schedule.",
    (STEP, STEP + "            optim.param_groups[0]['lr'] *= 0.9\n"),
)
wrong(
    "train_sft",
    "You train one epoch, whatever `n_epochs` says.",
    ("range(n_epochs)", "range(1)"),
)
wrong(
    "train_sft",
    "You train one epoch too many.",
    ("range(n_epochs)", "range(n_epochs + 1)"),
)
wrong(
    "train_sft",
    "You append one loss an epoch; the docstring asks for one a step.",
    (APPEND, "        losses.append(loss.item())\n"),
)
wrong(
    "train_sft",
    "The optimiser steps once an epoch, with the gradient of the last batch.",
    (STEP, ""),
    (APPEND, APPEND + "        optim.step()\n"),
)
wrong(
    "train_sft",
    "Your list holds tensors; the docstring asks for numbers.",
    ("loss.item()", "loss.detach()"),
)
wrong(
    "train_sft",
    "Your list holds numbers of NumPy; the docstring asks for numbers of Python.",
    ("loss.item()", "loss.detach().numpy()[()]"),
)
wrong(
    "train_sft",
    "Your list holds tensors with their graphs, which keeps the memory of every step.",
    ("loss.item()", "loss"),
)
wrong(
    "train_sft",
    "You return the model; the docstring asks for the losses. The model is trained in place.",
    ("return losses", "return model"),
)
wrong(
    "train_sft",
    "You return nothing.",
    ("return losses", "return None"),
)
wrong(
    "train_sft",
    "You return the mean loss; the docstring asks for the loss of each step.",
    ("return losses", "return sum(losses) / max(1, len(losses))"),
)
wrong(
    "train_sft",
    "Your list holds the running mean of the losses, not the loss of each step.",
    ("return losses", "return [sum(losses[: i + 1]) / (i + 1) for i in range(len(losses))]"),
)
wrong(
    "train_sft",
    "Your list holds the loss times the number of rows.",
    ("loss.item()", 'loss.item() * len(batch["labels"])'),
)
wrong(
    "train_sft",
    "Your list holds the loss of the batch after the step, not the one that was trained on.",
    (
        "loss.item()",
        (
            'masked_ce_loss(model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits, '
            'batch["labels"]).item()'
        ),
    ),
)
wrong(
    "train_sft",
    "The labels are the input ids: prompt and padding are learnt too.",
    (LOSS, 'loss = masked_ce_loss(logits, batch["input_ids"])'),
)
wrong(
    "train_sft",
    "You hide the padding by its mask and learn the prompt too.",
    (LOSS, 'loss = masked_ce_loss(logits, batch["input_ids"].where(batch["attention_mask"] != 0, IGNORE))'),
)
wrong(
    "train_sft",
    "You shift logits or labels before the loss, which shifts them itself.",
    (LOSS, 'loss = masked_ce_loss(logits[:, :-1], batch["labels"][:, 1:])'),
)
wrong(
    "train_sft",
    "The loss is `F.cross_entropy` of unshifted logits and labels.",
    (LOSS, 'loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())'),
)
wrong(
    "train_sft",
    "The loss is divided by the number of batches, as if gradients were gathered over all of them.",
    (LOSS, LOSS + " / len(dataloader)"),
)
wrong(
    "train_sft",
    "The model is in eval mode while it trains.",
    ("model.train()", "model.eval()"),
)
wrong(
    "train_sft",
    "The model is never put into training mode, and from_pretrained leaves it in eval mode.",
    ("    model.train()\n", ""),
)
wrong(
    "train_sft",
    "You put the model into eval mode after the first epoch, and it trains on without dropout.",
    (APPEND, APPEND + "        model.eval()\n"),
)
wrong(
    "train_sft",
    "You put the modules of dropout into eval mode: the model is trained without what training mode is for.",
    (
        "    model.train()\n",
        "    model.train()\n    for module in model.modules():\n"
        "        if isinstance(module, torch.nn.Dropout):\n            module.eval()\n",
    ),
)
wrong(
    "train_sft",
    "The model does not get the attention mask.",
    (', attention_mask=batch["attention_mask"]', ""),
)
wrong(
    "train_sft",
    "You train a copy; the model that you are handed stays as it was.",
    ("model.to(device)", "model = __import__('copy').deepcopy(model).to(device)"),
)
wrong(
    "train_sft",
    "The optimiser holds only the head: the rest of the model stays as it was.",
    (OPTIM, OPTIM.replace("model.parameters()", "list(model.parameters())[-2:]")),
)
wrong(
    "train_sft",
    "The batch stays where it was: on a GPU the model and its input are on two devices.",
    (TO_DEVICE, ""),
)
wrong(
    "train_sft",
    "The model stays where it was: on a GPU the model and its input are on two devices.",
    ("    model.to(device)\n", ""),
)
wrong(
    "train_sft",
    "You take the labels out of the batch (`pop`): in the second epoch they are gone.",
    (TO_DEVICE, ""),
    ('masked_ce_loss(logits, batch["labels"])', 'masked_ce_loss(logits, batch.pop("labels").to(device))'),
)
wrong(
    "train_sft",
    "You write into the labels of the batch, and the next epoch reads what you wrote.",
    (LOSS, LOSS + '\n            batch["labels"][batch["attention_mask"] == 0] = 0'),
)
wrong(
    "train_sft",
    "You stop at the first batch of each epoch.",
    (APPEND, APPEND + "            break\n"),
)
wrong(
    "train_sft",
    UPHILL,
    (BACKWARD, "            (-loss).backward()\n"),
)
wrong(
    "train_sft",
    UPHILL,
    (OPTIM, OPTIM.replace("lr=lr", "lr=lr, maximize=True")),
)
wrong(
    "train_sft",
    "You take the absolute value of the gradient: every weight can only go down.",
    (CLIP, CLIP + "            for p in model.parameters():\n                p.grad.abs_()\n"),
)
wrong(
    "train_sft",
    "From the second epoch on you train on the first batch alone.",
    ("for _ in range", "for epoch in range"),
    (
        TO_DEVICE,
        "            batch = batch if epoch == 0 else next(iter(dataloader))\n" + TO_DEVICE,
    ),
)
wrong(
    "train_sft",
    "From the second epoch on the sign of the gradient is wrong: what the first has learnt is unlearnt.",
    ("for _ in range", "for epoch in range"),
    (BACKWARD, "            (loss if epoch == 0 else -loss).backward()\n"),
)
wrong(
    "train_sft",
    "You change the learning rate after each epoch; nobody asked for a schedule.",
    (APPEND, APPEND + "        optim.param_groups[0]['lr'] *= 0.1\n"),
)
wrong(
    "train_sft",
    "From the second epoch on the losses that you return are 0.",
    ("for _ in range", "for epoch in range"),
    ("loss.item()", "loss.item() if epoch == 0 else 0.0"),
)
wrong(
    "train_sft",
    "From the second epoch on the optimiser maximises: what the first has learnt is unlearnt.",
    ("for _ in range", "for epoch in range"),
    (STEP, "            optim.param_groups[0]['maximize'] = epoch > 0\n" + STEP),
)
wrong(
    "train_sft",
    "From the third epoch on nothing is trained any more.",
    ("for _ in range", "for epoch in range"),
    (STEP, "            if epoch < 2:\n                optim.step()\n"),
)
wrong(
    "train_sft",
    "You clear the optimiser's averages after each epoch: AdamW starts anew.",
    (APPEND, APPEND + "        optim.state.clear()\n"),
)
wrong(
    "train_sft",
    "The model that you hand back is the one that you were handed: its old weights are loaded again in the end.",
    (OPTIM, OPTIM + "\n    old = {name: weight.clone() for name, weight in model.state_dict().items()}"),
    ("    return losses", "    model.load_state_dict(old)\n    return losses"),
)
wrong(
    "train_sft",
    "You ask the data loader for batches by number; it can only be gone through.",
    ("for batch in dataloader:", "for i in range(len(dataloader)):"),
    (TO_DEVICE, TO_DEVICE.replace("batch.items()", "dataloader[i].items()")),
)
wrong(
    "train_sft",
    "You make a list of the batches before the first epoch: a loader that shuffles then has one order for ever.",
    (LOOP, "    dataloader = list(dataloader)\n" + LOOP),
)
wrong(
    "train_sft",
    "The attention mask is handed over by its place, and the second argument of this model is something else. Name it.",
    (
        'model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])',
        'model(batch["input_ids"], batch["attention_mask"])',
    ),
)
right(
    "train_sft",
    "model.zero_grad, keyword arguments unpacked, the library's own loss",
    body("""
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(list(model.parameters()), lr)
    history = []
    for epoch in range(n_epochs):
        for batch in dataloader:
            loss = model(**{k: v.to(device) for k, v in batch.items()}).loss
            model.zero_grad(set_to_none=False)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_norm=1.0)
            optimizer.step()
            history.append(float(loss))
    return history
    """),
)
right(
    "train_sft",
    "zero_grad after the step, outputs by index, and clipping by hand",
    body("""
    model.to(device)
    optim = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    losses = []
    step = 0
    while step < n_epochs * len(dataloader):
        model.train()
        for batch in dataloader:
            outputs = model(batch["input_ids"].to(device), attention_mask=batch["attention_mask"].to(device))
            loss = masked_ce_loss(outputs[0], batch["labels"].to(device))
            loss.backward()
            norm = sum(p.grad.square().sum() for p in model.parameters()) ** 0.5
            for p in model.parameters():
                p.grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
            optim.step()
            optim.zero_grad()
            losses.append(loss.detach().cpu().item())
            step += 1
    model.train()
    return losses
    """),
)
right(
    "train_sft",
    "a constant schedule, and parameters that need a gradient",
    (OPTIM, ("optim = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)\n"
     "    schedule = torch.optim.lr_scheduler.LambdaLR(optim, lambda step: 1.0)")),
    (STEP, STEP + "            schedule.step()\n"),
    ("    model.eval()\n", ""),
)  # fmt: skip
right(
    "train_sft",
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
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                loss = masked_ce_loss(logits, batch["labels"])
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                return loss

            history.append(optim.step(closure).item())
    return history
    """),
)
right(
    "train_sft",
    "clipping in a hook before the step",
    (OPTIM, OPTIM + "\n    optim.register_step_pre_hook(\n"
     "        lambda *_: (torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), None)[1]\n    )"),
    (CLIP, ""),
)  # fmt: skip
right(
    "train_sft",
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
