"""Wrong and correct implementations of rollout, update and training loop in `ppo.py`."""

from . import body, right, wrong

# --- 3.5 response_mask ----------------------------------------------------------------------------

wrong(
    "response_mask",
    "The EOS itself is left out of your mask. It is a token that the policy chose, and the one that gets the score.",
    ("is_eos.cumsum(dim=-1) - is_eos", "is_eos.cumsum(dim=-1)"),
)
wrong(
    "response_mask",
    "Your mask is 1 on every token that is not EOS. That drops the EOS itself, and keeps what stands after it.",
    ("(eos_before == 0).long()", "1 - is_eos"),
)
wrong(
    "response_mask",
    "Your mask ends at the second EOS: one EOS before a token is enough to put it outside.",
    ("(eos_before == 0)", "(eos_before <= 1)"),
)
wrong(
    "response_mask",
    "Every token is 1 in your mask: nothing is cut off after the EOS.",
    body("return torch.ones_like(response_ids)"),
)
wrong(
    "response_mask",
    "Your mask is the wrong way round: 1 means a real token.",
    ("(eos_before == 0)", "(eos_before > 0)"),
)
wrong(
    "response_mask",
    "`argmax` of a row without an EOS is 0: a response that reached its limit loses all but its first token.",
    body("""
    first = (response_ids == eos_id).long().argmax(dim=-1, keepdim=True)
    return (torch.arange(response_ids.shape[1]) <= first).long()
    """),
)
wrong(
    "response_mask",
    "A row without an EOS comes out as all 0 in your mask: there it is valid as a whole.",
    body("""
    mask = torch.zeros_like(response_ids)
    for row, ids in enumerate(response_ids.tolist()):
        if eos_id in ids:
            mask[row, : ids.index(eos_id) + 1] = 1
    return mask
    """),
)
wrong(
    "response_mask",
    "A row without an EOS loses its last token in your mask: there is no end there that could be cut off.",
    body("""
    mask = torch.zeros_like(response_ids)
    for row, ids in enumerate(response_ids.tolist()):
        last = ids.index(eos_id) if eos_id in ids else len(ids) - 2
        mask[row, : last + 1] = 1
    return mask
    """),
)
wrong(
    "response_mask",
    "Your mask goes up to the last EOS of a row. Where padding is EOS, that is the end of the padding.",
    ("is_eos.cumsum(dim=-1) - is_eos", "(is_eos.flip(-1).cumsum(-1).flip(-1) == 0) & (is_eos.sum(-1, True) > 0)"),
)
wrong(
    "response_mask",
    "One end is used for all rows: the place of the first EOS in the batch.",
    body("""
    found = (response_ids == eos_id).any(dim=0).nonzero()
    last = found[0, 0] if len(found) else response_ids.shape[1]
    return (torch.arange(response_ids.shape[1]) <= last).long().expand_as(response_ids)
    """),
)
wrong(
    "response_mask",
    "Your running sum goes down the batch and not along the response: `dim=0` is the rows.",
    ("is_eos.cumsum(dim=-1)", "is_eos.cumsum(dim=0)"),
)
wrong(
    "response_mask",
    "One token after the EOS is still 1 in your mask.",
    ("return (eos_before == 0).long()", "return ((eos_before - is_eos.roll(1, -1)) <= 0).long()"),
    (
        "eos_before = is_eos.cumsum(dim=-1) - is_eos",
        "is_eos = is_eos * (is_eos.cumsum(dim=-1) == 1)\n    eos_before = is_eos.cumsum(dim=-1) - is_eos",
    ),
)
wrong(
    "response_mask",
    "Your mask goes by the token in the last column, not by `eos_id`: the ids say nothing about padding.",
    body("""
    pad_id = response_ids[:, -1:]
    is_pad = response_ids == pad_id
    return (is_pad.long().cumsum(dim=-1) - is_pad.long() == 0).long()
    """),
)
wrong(
    "response_mask",
    "Token 0 counts as padding in your mask. It is an ordinary token, and in some vocabularies the EOS.",
    ("return (eos_before == 0).long()", "return ((eos_before == 0) & (response_ids != 0)).long()"),
)
wrong(
    "response_mask",
    "`eos_id` 0 counts as no EOS in your code: `if eos_id` is false for the number 0.",
    ("is_eos = ", "if not eos_id:\n        return torch.ones_like(response_ids)\n    is_eos = "),
)
wrong(
    "response_mask",
    "The id of EOS is written into your code. `eos_id` says which it is.",
    ("response_ids == eos_id", "response_ids == 3"),
)
wrong(
    "response_mask",
    "You return how many tokens each row has. The mask has one number for each token.",
    ("return (eos_before == 0).long()", "return (eos_before == 0).sum(dim=-1)"),
)
wrong(
    "response_mask",
    "You overwrite what follows the EOS in `response_ids` itself. The ids belong to whoever called you.",
    ("is_eos = ", "given, response_ids = response_ids, response_ids.clone()\n    is_eos = "),
    ("return (eos_before == 0).long()", "given[eos_before > 0] = eos_id\n    return (eos_before == 0).long()"),
)
right(
    "response_mask",
    "a running product, shifted by one",
    body("""
    alive = (response_ids != eos_id).long().cumprod(dim=-1)
    return torch.cat([torch.ones_like(alive[:, :1]), alive[:, :-1]], dim=-1)
    """),
)
right(
    "response_mask",
    "the index of the first EOS, of booleans",
    body("""
    is_eos = response_ids == eos_id
    limit = response_ids.shape[1] - 1
    last = torch.where(is_eos.any(dim=-1), is_eos.float().argmax(dim=-1), limit)
    return torch.arange(limit + 1, device=response_ids.device) <= last.unsqueeze(-1)
    """),
)
right(
    "response_mask",
    "row by row, of floats",
    body("""
    mask = torch.zeros(response_ids.shape)
    for row in range(len(response_ids)):
        for t in range(response_ids.shape[1]):
            mask[row, t] = 1.0
            if response_ids[row, t] == eos_id:
                break
    return mask
    """),
)

# --- 3.5 response_logprobs_and_values -------------------------------------------------------------

WINDOW = "response_logprobs_and_values"
wrong(
    WINDOW,
    "Your values are one place too late: they belong to the states after the tokens.",
    ("values[:, -window:-1]", "values[:, -response_length:]"),
)
wrong(
    WINDOW,
    "There is one value too many: the state after the last token has no token beside it.",
    ("values[:, -window:-1]", "values[:, -window:]"),
)
wrong(
    WINDOW,
    "Your values are one place too early.",
    ("values[:, -window:-1]", "torch.cat([values[:, :1], values], dim=1)[:, -window:-1]"),
)
wrong(
    WINDOW,
    "The first values of the row are those of the prompt: the response stands at the end.",
    ("values[:, -window:-1]", "values[:, :response_length]"),
)
wrong(
    WINDOW,
    "You return the values of prompt and response. Only those of the response belong here.",
    ("values[:, -window:-1]", "values"),
)
wrong(
    WINDOW,
    "Your log-probabilities ask each position about the token that stands there. A position predicts the next token.",
    (
        "return gather_logprobs(logits, full_ids[:, -window:])",
        "own = logits[:, 1:].log_softmax(-1).gather(-1, full_ids[:, -response_length:, None]).squeeze(-1)\n"
        "    return own",
    ),
)
wrong(
    WINDOW,
    "Ids and logits do not fit each other in your code: the ids come from one place earlier than the logits.",
    ("full_ids[:, -window:]", "full_ids.roll(1, dims=1)[:, -window:]"),
)
wrong(
    WINDOW,
    "You return the log-probabilities of the prompt too.",
    ("logits_to_keep=window", "logits_to_keep=0"),
    ("full_ids[:, -window:]", "full_ids"),
)
wrong(
    WINDOW,
    "You return the log-probabilities of the first tokens of the row. The response stands at the end.",
    ("logits_to_keep=window", "logits_to_keep=0"),
    ("gather_logprobs(logits, full_ids[:, -window:])", "gather_logprobs(logits, full_ids)[:, :response_length]"),
)
wrong(
    WINDOW,
    "Your window begins with the first response token. The token before it, the last of the prompt, predicts it: "
    "one log-probability is missing.",
    ("window = response_length + 1", "window = response_length"),
    ("values[:, -window:-1]", "values[:, -window - 1 : -1]"),
)
wrong(
    WINDOW,
    "The log-probability of the first response token is missing, and a 0 stands in its place.",
    (
        "gather_logprobs(logits, full_ids[:, -window:])",
        "F.pad(gather_logprobs(logits, full_ids[:, -window:])[:, 1:], (1, 0))",
    ),
)
wrong(
    WINDOW,
    "You return probabilities. The ratio of PPO and the KL are computed from their logarithms.",
    ("return gather_logprobs(logits, full_ids[:, -window:])", "return gather_logprobs(logits, full_ids[:, -window:]).exp()"),
)
wrong(
    WINDOW,
    "You return the log-probability of the likeliest token, not of the one that was sampled.",
    (
        "gather_logprobs(logits, full_ids[:, -window:])",
        "gather_logprobs(logits, F.pad(logits.argmax(-1)[:, :-1], (1, 0)))",
    ),
)
wrong(
    WINDOW,
    "You return the log-probability of the whole response. PPO needs one for each token.",
    (
        "gather_logprobs(logits, full_ids[:, -window:])",
        "gather_logprobs(logits, full_ids[:, -window:]).sum(dim=-1)",
    ),
)
wrong(
    WINDOW,
    "The raw logits are no log-probabilities: they are not normalised over the vocabulary.",
    (
        "gather_logprobs(logits, full_ids[:, -window:])",
        "logits[:, :-1].gather(-1, full_ids[:, -response_length:, None]).squeeze(-1)",
    ),
)
wrong(
    WINDOW,
    "Log-probabilities come first and values second: yours are the other way round.",
    (
        "return gather_logprobs(logits, full_ids[:, -window:]), values[:, -window:-1]",
        "return values[:, -window:-1], gather_logprobs(logits, full_ids[:, -window:])",
    ),
)
wrong(
    WINDOW,
    "`squeeze` takes away the batch too where it has one row.",
    ("values[:, -window:-1]", "values[:, -window:-1].squeeze()"),
)
wrong(
    WINDOW,
    "The policy reads the response without its prompt, so it answers another question.",
    ("policy(full_ids, full_mask, logits_to_keep=window)", "policy(full_ids[:, -window:], full_mask[:, -window:])"),
)
wrong(
    WINDOW,
    "You hand a mask of ones to the policy: it reads the padding as if it were text.",
    ("full_mask, logits", "torch.ones_like(full_mask), logits"),
)
wrong(
    WINDOW,
    "The policy gets no attention mask from you: it reads the padding as if it were text.",
    ("full_mask, logits", "None, logits"),
)
wrong(
    WINDOW,
    "Padding that has the id of a real token is taken for one, or the other way round: you made a mask of the ids, "
    "and `full_mask` knows it already.",
    ("full_mask, logits", "(full_ids != 0).long(), logits"),
)
wrong(
    WINDOW,
    "You number the columns 0, 1, 2, ...: a text that is padded on the left then starts in the middle.",
    ("full_mask, logits", "full_mask, torch.arange(full_ids.shape[1]).expand_as(full_ids), logits"),
)
wrong(
    WINDOW,
    "Your log-probabilities are cut off from the policy: nothing can be learnt from them.",
    ("gather_logprobs(logits, full_ids", "gather_logprobs(logits.detach(), full_ids"),
)
wrong(
    WINDOW,
    "Your values are cut off from the policy: the critic cannot learn.",
    ("values[:, -window:-1]", "values[:, -window:-1].detach()"),
)
wrong(
    WINDOW,
    "`no_grad` stands inside this function. The update looks through the same window, and needs the gradient.",
    ("logits, values = policy(", "with torch.no_grad():\n        logits, values = policy("),
)
wrong(
    WINDOW,
    "You pass the text through the policy twice, once for the logits and once for the values.",
    (
        "    logits, values = policy(full_ids, full_mask, logits_to_keep=window)",
        "    logits, _ = policy(full_ids, full_mask, logits_to_keep=window)\n"
        "    _, values = policy(full_ids, full_mask)",
    ),
)
right(
    WINDOW,
    "all logits, cut afterwards, counted from the front",
    body("""
    logits, values = policy(full_ids, full_mask)
    start = full_ids.shape[1] - response_length - 1
    return gather_logprobs(logits, full_ids)[:, start:], values[:, start:-1]
    """),
)
right(
    WINDOW,
    "positions given, its own log-softmax",
    body("""
    positions = position_ids_from_mask(full_mask)
    logits, values = policy(full_ids, full_mask, positions, response_length + 1)
    response_ids = full_ids[:, -response_length:]
    chosen = logits[:, :-1].log_softmax(-1).gather(2, response_ids[..., None])[..., 0]
    return chosen, values[:, -response_length - 1 : -1]
    """),
)
right(
    WINDOW,
    "0 on padding, by cross-entropy, arguments by name",
    body("""
    logits, values = policy(input_ids=full_ids, attention_mask=full_mask)
    logprobs = -F.cross_entropy(logits[:, :-1].transpose(1, 2), full_ids[:, 1:], reduction="none")
    valid = full_mask[:, -response_length:]
    return logprobs[:, -response_length:] * valid, values[:, -response_length - 1 : -1] * valid
    """),
)
