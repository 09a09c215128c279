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
    (
        "is_eos.cumsum(dim=-1) - is_eos",
        "(is_eos.flip(-1).cumsum(-1).flip(-1) == 0) & (is_eos.sum(-1, True) > 0)",
    ),
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
    (
        "return (eos_before == 0).long()",
        "given[eos_before > 0] = eos_id\n    return (eos_before == 0).long()",
    ),
)
wrong(
    "response_mask",
    "`roll` brings the last column round to the first: an EOS at the very end empties the whole row.",
    body("return ((response_ids == eos_id).long().roll(1, -1).cumsum(dim=-1) == 0).long()"),
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
    ("values[:, -window:-1]", "values[:, -window - 1 : -2]"),
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
        "return logits[:, 1:].log_softmax(-1).gather(-1, full_ids[:, -response_length:, None]).squeeze(-1)",
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
    (
        "gather_logprobs(logits, full_ids[:, -window:])",
        "gather_logprobs(logits, full_ids)[:, :response_length]",
    ),
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
    (
        "return gather_logprobs(logits, full_ids[:, -window:])",
        "return gather_logprobs(logits, full_ids[:, -window:]).exp()",
    ),
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
    (
        "policy(full_ids, full_mask, logits_to_keep=window)",
        "policy(full_ids[:, -window:], full_mask[:, -window:])",
    ),
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
    "You made a mask from the ids. A real token can have the id of the padding, and is then not read: `full_mask` "
    "knows which tokens are real.",
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
        "logits, values = policy(full_ids, full_mask, logits_to_keep=window)",
        "logits = policy(full_ids, full_mask, logits_to_keep=window)[0]\n    values = policy(full_ids, full_mask)[1]",
    ),
)
wrong(
    WINDOW,
    "You take the logarithm of a softmax: the probability of a very unlikely token is 0 by then, and its logarithm -inf.",
    (
        "gather_logprobs(logits, full_ids[:, -window:])",
        "logits[:, :-1].softmax(-1).gather(-1, full_ids[:, -response_length:, None]).squeeze(-1).log()",
    ),
)
wrong(
    WINDOW,
    "You cut the log-probabilities off from below. However unlikely a token is, its log-probability is a number.",
    (
        "gather_logprobs(logits, full_ids[:, -window:])",
        "gather_logprobs(logits, full_ids[:, -window:]).clamp(min=-50)",
    ),
)
wrong(
    WINDOW,
    "You overwrite the padding in `full_ids` itself. The ids belong to whoever called you.",
    (
        "    logits, values = policy(",
        "    full_ids.masked_fill_(full_mask == 0, 0)\n    logits, values = policy(",
    ),
)
wrong(
    WINDOW,
    "Your log-probabilities are rounded to bfloat16: two or three digits are left, and every ratio is noise.",
    (
        "gather_logprobs(logits, full_ids[:, -window:])",
        "gather_logprobs(logits.bfloat16(), full_ids[:, -window:]).float()",
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

# --- 3.5 rollout ----------------------------------------------------------------------------------

wrong(
    "rollout",
    "You take the likeliest token each time, as `generate` does unless it is told to sample. What is never tried is "
    "never learnt.",
    ("do_sample=True", "do_sample=False"),
)
wrong(
    "rollout",
    "You sample at a temperature below 1, and compute log-probabilities at temperature 1: those are two policies.",
    ("temperature=1.0", "temperature=0.7"),
)
wrong(
    "rollout",
    "You sample at a temperature above 1, and compute log-probabilities at temperature 1: those are two policies.",
    ("temperature=1.0", "temperature=1.5"),
)
wrong(
    "rollout",
    "`generate` keeps the 50 likeliest tokens only, unless it is told not to. Does your call say so?",
    ("        top_k=0,\n", ""),
)
wrong(
    "rollout",
    "You sample with top-p: the tail of the distribution is cut off, and the log-probabilities know nothing of it.",
    ("top_p=1.0", "top_p=0.9"),
)
wrong(
    "rollout",
    "You sample with a top-p that looks harmless. Even so, the rarest tokens never come, and the log-probabilities know "
    "nothing of it.",
    ("top_p=1.0", "top_p=0.95"),
)
wrong(
    "rollout",
    "You make repetitions rarer while sampling, or forbid them (`repetition_penalty`, `no_repeat_ngram_size`), and the "
    "log-probabilities know nothing of it.",
    ("top_p=1.0", "top_p=1.0,\n        repetition_penalty=1.2"),
)
wrong(
    "rollout",
    "You forbid some tokens while sampling. The policy itself can say them.",
    ("top_p=1.0", "top_p=1.0,\n        suppress_tokens=[7, 13]"),
)
wrong(
    "rollout",
    "You set the seed in `rollout`: each step of a run samples with the same noise.",
    (
        "    was_training = policy.training\n",
        "    torch.manual_seed(42)\n    was_training = policy.training\n",
    ),
)
wrong(
    "rollout",
    "The reference is asked for the responses. They have to come from the policy that is to be trained.",
    ("policy.lm.generate(", "ref_policy.lm.generate("),
)
wrong(
    "rollout",
    "You pad the prompts on the right, which is also the tokenizer's own side: the padding then stands between a "
    "prompt and its response.",
    ('padding_side="left"', 'padding_side="right"'),
)
wrong(
    "rollout",
    "The tokenizer adds its special tokens to your prompts: an EOS after a prompt says that the text is over.",
    ("add_special_tokens=False, ", ""),
)
wrong(
    "rollout",
    "Prompts are cut to a fixed length, and the end of a long one is lost.",
    ("padding=True, ", "padding=True, truncation=True, max_length=5, "),
)
wrong(
    "rollout",
    "Your full_mask is made from the ids. An EOS in a prompt, and the EOS that ends a response, are real although "
    "padding has the same id.",
    (
        "full_mask = torch.cat([prompt.attention_mask, mask], dim=1)",
        "full_mask = (full_ids != tokenizer.pad_token_id).long()",
    ),
)
wrong(
    "rollout",
    "Your full_mask is 1 on the whole response block, also after the EOS.",
    (
        "torch.cat([prompt.attention_mask, mask], dim=1)",
        "F.pad(prompt.attention_mask, (0, mask.shape[1]), value=1)",
    ),
)
wrong(
    "rollout",
    "Your full_mask is 1 everywhere: the padding in front of a short prompt is read as text.",
    ("torch.cat([prompt.attention_mask, mask], dim=1)", "torch.ones_like(full_ids)"),
)
wrong(
    "rollout",
    "Your full_mask covers the left padding of the prompts too.",
    (
        "torch.cat([prompt.attention_mask, mask], dim=1)",
        "F.pad(mask, (prompt.input_ids.shape[1], 0), value=1)",
    ),
)
wrong(
    "rollout",
    "Your response mask is 1 where the id is not the pad id. Padding is EOS here, so the real EOS is lost.",
    (
        "mask = response_mask(response_ids, tokenizer.eos_token_id)",
        "mask = (response_ids != tokenizer.pad_token_id).long()",
    ),
)
wrong(
    "rollout",
    "Your response mask is 1 everywhere: the padding after a response counts as response.",
    ("mask = response_mask(response_ids, tokenizer.eos_token_id)", "mask = torch.ones_like(response_ids)"),
)
wrong(
    "rollout",
    "Your response mask looks for the first EOS of the whole row. One in the prompt does not end the response.",
    (
        "mask = response_mask(response_ids, tokenizer.eos_token_id)",
        """real = F.pad(prompt.attention_mask, (0, response_ids.shape[1]), value=1)
    row_mask = response_mask(full_ids.masked_fill(real == 0, -1), tokenizer.eos_token_id)
    mask = row_mask[:, prompt.input_ids.shape[1] :]""",
    ),
)
wrong(
    "rollout",
    "Your response mask looks for the pad token. Where that is not EOS, the response ends at the EOS all the same.",
    (
        "response_mask(response_ids, tokenizer.eos_token_id)",
        "response_mask(response_ids, tokenizer.pad_token_id)",
    ),
)
wrong(
    "rollout",
    "`generate` gets no attention mask from you: it reads the padding in front of a short prompt as text.",
    (
        "        attention_mask=prompt.attention_mask,\n",
        "        attention_mask=torch.ones_like(prompt.input_ids),\n",
    ),
)
wrong(
    "rollout",
    "max_new_tokens is not used: a response is always cut at 20 tokens.",
    ("max_new_tokens=max_new_tokens", "max_new_tokens=20"),
)
wrong(
    "rollout",
    "You limit prompt and response together. max_new_tokens counts the tokens of the response alone.",
    ("max_new_tokens=max_new_tokens", "max_length=max_new_tokens + 8"),
)
wrong(
    "rollout",
    "`generate` is not told which token ends a response, and yours go on after the EOS until the limit.",
    ("eos_token_id=tokenizer.eos_token_id", "eos_token_id=None, min_new_tokens=max_new_tokens"),
    ("mask = response_mask(response_ids, tokenizer.eos_token_id)", "mask = torch.ones_like(response_ids)"),
)
wrong(
    "rollout",
    "Dropout is on while the policy samples and is read: eval mode is missing.",
    ("    policy.eval()\n    ref_policy.eval()", "    ref_policy.eval()"),
)
wrong(
    "rollout",
    "Dropout is on while the policy samples. You switch it off only afterwards, for the log-probabilities.",
    ("    policy.eval()\n    ref_policy.eval()", "    ref_policy.eval()"),
    ("    # 2. read", "    policy.eval()\n    # 2. read"),
)
wrong(
    "rollout",
    "You put the policy back into training mode before its log-probabilities are read: dropout changes them.",
    ("    # 2. read", "    policy.train(was_training)\n    # 2. read"),
)
wrong(
    "rollout",
    "Dropout is on in the reference: eval mode is missing there.",
    ("    ref_policy.eval()\n", ""),
)
wrong(
    "rollout",
    "The policy is left in eval mode. It had been in training mode before, and has to be afterwards.",
    ("    policy.train(was_training)\n", ""),
)
wrong(
    "rollout",
    "The policy is always in training mode afterwards, also where it had been in eval mode before.",
    ("    policy.train(was_training)\n", "    policy.train()\n"),
)
wrong(
    "rollout",
    "Your ref_logprobs come from the policy: the KL to the reference is 0 for ever.",
    ("response_logprobs_and_values(ref_policy,", "response_logprobs_and_values(policy,"),
)
wrong(
    "rollout",
    "Your old_logprobs come from the reference, not from the policy that sampled.",
    (
        "old_logprobs, old_values = response_logprobs_and_values(policy,",
        "old_logprobs, old_values = response_logprobs_and_values(ref_policy,",
    ),
)
wrong(
    "rollout",
    "old_logprobs and ref_logprobs are swapped in your Rollout.",
    (
        "old_logprobs=old_logprobs,\n        ref_logprobs=ref_logprobs",
        "old_logprobs=ref_logprobs,\n        ref_logprobs=old_logprobs",
    ),
)
wrong(
    "rollout",
    "Your old_values are one place too late: the value beside a token is that of the state before it.",
    (
        "    rm_score = reward_fn",
        "    old_values = policy(full_ids, full_mask)[1][:, -response_length:]\n    rm_score = reward_fn",
    ),
)
wrong(
    "rollout",
    "Your log-probabilities are read with a mask of ones: each short prompt is read with its padding.",
    (
        "response_logprobs_and_values(policy, full_ids, full_mask, response_length)",
        "response_logprobs_and_values(policy, full_ids, torch.ones_like(full_mask), response_length)",
    ),
)
wrong(
    "rollout",
    "The reference reads the padding as text: it gets a mask of ones.",
    (
        "response_logprobs_and_values(ref_policy, full_ids, full_mask, response_length)",
        "response_logprobs_and_values(ref_policy, full_ids, torch.ones_like(full_mask), response_length)",
    ),
)
wrong(
    "rollout",
    "Your per-token tensors cover prompt and response. They have one column for each token of the response.",
    (
        "    rm_score = reward_fn",
        "    old_logprobs = gather_logprobs(policy(full_ids, full_mask)[0], full_ids)\n    rm_score = reward_fn",
    ),
)
wrong(
    "rollout",
    "Your full_ids hold the response alone. Prompt and response belong together there.",
    ("full_ids=full_ids", "full_ids=response_ids"),
    ("full_mask=full_mask", "full_mask=mask"),
)
wrong(
    "rollout",
    "The reward sees a mask of ones, and judges the padding too.",
    ("reward_fn(full_ids, full_mask)", "reward_fn(full_ids, torch.ones_like(full_mask))"),
)
wrong(
    "rollout",
    "The reward sees the response without its prompt: it cannot know what the response answers.",
    ("reward_fn(full_ids, full_mask)", "reward_fn(response_ids, mask)"),
)
wrong(
    "rollout",
    "The reward sees the prompt alone, and not what the policy made of it.",
    ("reward_fn(full_ids, full_mask)", "reward_fn(prompt.input_ids, prompt.attention_mask)"),
)
wrong(
    "rollout",
    "You shift or scale the scores in the rollout. rm_score is what the reward function said.",
    (
        "rm_score = reward_fn(full_ids, full_mask)",
        "rm_score = reward_fn(full_ids, full_mask)\n    rm_score = rm_score - rm_score.mean()",
    ),
)
wrong(
    "rollout",
    "You average the scores. Each response needs a score of its own.",
    (
        "rm_score = reward_fn(full_ids, full_mask)",
        "rm_score = reward_fn(full_ids, full_mask).mean().expand(len(full_ids))",
    ),
)
wrong(
    "rollout",
    "Special tokens are left in your texts.",
    ("tokenizer.decode(ids[valid.bool()], skip_special_tokens=True)", "tokenizer.decode(ids[valid.bool()])"),
)
wrong(
    "rollout",
    "Your texts begin with the prompt. They are the responses alone.",
    ("zip(response_ids, mask, strict=True)", "zip(full_ids, full_mask, strict=True)"),
)
wrong(
    "rollout",
    "What you return still hangs on the policy's gradient. The old log-probabilities and values are fixed numbers.",
    ("@torch.no_grad()\n", ""),
)
wrong(
    "rollout",
    "The score of a trainable reward model still carries its gradient: the reward call stands outside `no_grad`.",
    (
        "rm_score = reward_fn(full_ids, full_mask)",
        "with torch.enable_grad():\n        rm_score = reward_fn(full_ids, full_mask)",
    ),
)
wrong(
    "rollout",
    "You switch gradients off for the whole program, and training cannot learn any more. Switch them off for this "
    "function alone.",
    ("@torch.no_grad()\n", ""),
    (
        "    was_training = policy.training\n",
        "    was_training = policy.training\n    torch.set_grad_enabled(False)\n",
    ),
)
wrong(
    "rollout",
    "`inference_mode` makes tensors that the update cannot use. `no_grad` switches the gradient off too, and does "
    "not have that effect.",
    ("@torch.no_grad()", "@torch.inference_mode()"),
)
wrong(
    "rollout",
    "A batch of one loses its batch dimension in your code.",
    ("rm_score = reward_fn(full_ids, full_mask)", "rm_score = reward_fn(full_ids, full_mask).squeeze()"),
)
wrong(
    "rollout",
    "The weights of the policy become those of the reference: the reference is only read.",
    (
        "    policy.train(was_training)\n",
        "    policy.train(was_training)\n    ref_policy.load_state_dict(policy.state_dict())\n",
    ),
)
wrong(
    "rollout",
    "You have changed the default of `max_new_tokens` in the signature.",
    ("max_new_tokens: int = 20", "max_new_tokens: int = 32"),
)
wrong(
    "rollout",
    "You forbid some tokens of the middle of the vocabulary while sampling. The policy itself can say them.",
    ("top_p=1.0", "top_p=1.0,\n        suppress_tokens=list(range(1000, 1400))"),
)
wrong(
    "rollout",
    "You sample with a top-p of 0.99. Even so, the rarest tokens never come, and the log-probabilities know nothing of it.",
    ("top_p=1.0", "top_p=0.99"),
)
wrong(
    "rollout",
    "EOS cannot be the first token of a response in your code (`min_new_tokens`). The policy itself can end at once.",
    ("max_new_tokens=max_new_tokens", "max_new_tokens=max_new_tokens, min_new_tokens=2"),
)
wrong(
    "rollout",
    "You limit the scores. rm_score is what the reward function said, however large.",
    ("rm_score = reward_fn(full_ids, full_mask)", "rm_score = reward_fn(full_ids, full_mask).clamp(-10, 10)"),
)
wrong(
    "rollout",
    "A response is never longer than 20 tokens in your code, whatever max_new_tokens says.",
    ("max_new_tokens=max_new_tokens", "max_new_tokens=min(max_new_tokens, 20)"),
)
wrong(
    "rollout",
    "You sort the prompts. Row by row, the responses have to belong to the prompts as they were given.",
    ("list(prompts), add_special", "sorted(prompts, key=len), add_special"),
)
wrong(
    "rollout",
    "What follows the EOS of a response has to be padding: `generate` is not told your EOS, and goes on.",
    ("eos_token_id=tokenizer.eos_token_id", "eos_token_id=None"),
)
wrong(
    "rollout",
    "Prompts that come more than once are moved behind the others: row i has to answer prompts[i].",
    (
        "list(prompts), add_special",
        "[*dict.fromkeys(prompts), *(p for i, p in enumerate(prompts) if p in prompts[:i])], add_special",
    ),
)
wrong(
    "rollout",
    "You answer each prompt once, and equal prompts get the same response: each row is a sample of its own.",
    (
        "    # 1. sample\n",
        "    once = list(dict.fromkeys(prompts))\n"
        "    rows = torch.tensor([once.index(prompt) for prompt in prompts])\n",
    ),
    ("list(prompts), add_special", "once, add_special"),
    ("    response_ids = full_ids", "    full_ids = full_ids[rows]\n    response_ids = full_ids"),
    ("torch.cat([prompt.attention_mask, mask]", "torch.cat([prompt.attention_mask[rows], mask]"),
)
right(
    "rollout",
    "a loop of its own, without generate, on a tokenizer that is set to the left",
    body("""
    was_training = policy.training
    policy.train(False), ref_policy.train(False)
    tokenizer.padding_side = "left"
    prompt = tokenizer(list(prompts), add_special_tokens=False, padding=True, return_tensors="pt")
    full_ids, full_mask = prompt.input_ids, prompt.attention_mask
    alive = torch.ones(len(full_ids), dtype=torch.bool)
    for _ in range(max_new_tokens):
        logits, _ = policy(full_ids, full_mask)
        token = torch.multinomial(logits[:, -1].softmax(-1), 1).squeeze(-1)
        token = torch.where(alive, token, tokenizer.pad_token_id)
        full_ids = torch.cat([full_ids, token[:, None]], dim=1)
        full_mask = torch.cat([full_mask, alive[:, None].long()], dim=1)
        alive = alive & (token != tokenizer.eos_token_id)
    n_prompt = prompt.input_ids.shape[1]
    mask = full_mask[:, n_prompt:]
    logits, values = policy(full_ids, full_mask)
    ref_logits, _ = ref_policy(full_ids, full_mask)
    policy.train(was_training)
    return Rollout(
        full_ids,
        full_mask,
        gather_logprobs(logits, full_ids)[:, n_prompt - 1 :],
        gather_logprobs(ref_logits, full_ids)[:, n_prompt - 1 :],
        values[:, n_prompt - 1 : -1],
        reward_fn(full_ids, full_mask),
        mask,
        [tokenizer.decode(ids[m == 1], skip_special_tokens=True) for ids, m in zip(full_ids[:, n_prompt:], mask)],
    )
    """),
)
right(
    "rollout",
    "texts decoded together, without spaces around them",
    (
        """texts=[
            tokenizer.decode(ids[valid.bool()], skip_special_tokens=True)
            for ids, valid in zip(response_ids, mask, strict=True)
        ]""",
        "texts=[text.strip() for text in tokenizer.batch_decode(response_ids, skip_special_tokens=True)]",
    ),
)
right(
    "rollout",
    "a generation config, masks of booleans, 0 on padding, the reward row by row",
    (
        """        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
""",
        """        generation_config=GenerationConfig(
            do_sample=True,
            top_k=0,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
""",
    ),
    (
        "rm_score = reward_fn(full_ids, full_mask)",
        "rm_score = torch.cat([reward_fn(full_ids[i : i + 1], full_mask[i : i + 1]) for i in range(len(full_ids))])",
    ),
    ("old_logprobs=old_logprobs", "old_logprobs=old_logprobs * mask"),
    ("old_values=old_values", "old_values=old_values * mask"),
    ("response_mask=mask", "response_mask=mask.bool()"),
)

right(
    "rollout",
    "a response block that is always max_new_tokens wide",
    (
        "    response_ids = full_ids[:, ",
        """    missing = prompt.input_ids.shape[1] + max_new_tokens - full_ids.shape[1]
    full_ids = F.pad(full_ids, (0, missing), value=tokenizer.pad_token_id)
    response_ids = full_ids[:, """,
    ),
)

# --- 3.5 ppo_step ---------------------------------------------------------------------------------

wrong(
    "ppo_step",
    "Dropout is on during your update: you put the policy into training mode.",
    ("policy.eval()", "policy.train()"),
)
wrong(
    "ppo_step",
    "Your update leaves the policy in the mode that it comes in: in training mode, dropout is on.",
    ("    policy.eval()\n", ""),
)
wrong(
    "ppo_step",
    "Gradients are never set back to zero: each step adds up all gradients before it.",
    ("        optim.zero_grad()\n", ""),
)
wrong(
    "ppo_step",
    "Gradients are set back to zero once, before the first epoch. The later ones add up.",
    ("        optim.zero_grad()\n", ""),
    ("    for _ in range(ppo_epochs):", "    optim.zero_grad()\n    for _ in range(ppo_epochs):"),
)
wrong(
    "ppo_step",
    "You set the gradients back to zero after `backward`: the optimiser then has nothing to go by.",
    ("        optim.zero_grad()\n", ""),
    ("loss.backward()", "loss.backward()\n        optim.zero_grad(set_to_none=False)"),
)
wrong(
    "ppo_step",
    "The gradient is not clipped when the optimiser makes its step: clipping is missing, or stands before `backward` "
    "or after `step`.",
    ("        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)\n", ""),
)
wrong(
    "ppo_step",
    "The gradient norm is always clipped to 1: max_grad_norm is not used.",
    ("(policy.parameters(), max_grad_norm)", "(policy.parameters(), 1.0)"),
)
wrong(
    "ppo_step",
    "Only the gradient of the language model is clipped. The critic belongs to the same update.",
    ("clip_grad_norm_(policy.parameters()", "clip_grad_norm_(policy.lm.parameters()"),
)
wrong(
    "ppo_step",
    "You clip each weight's gradient by itself. The limit is for the norm of all of them together.",
    (
        "torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)",
        "[torch.nn.utils.clip_grad_norm_(weight, max_grad_norm) for weight in policy.parameters()]",
    ),
)
wrong(
    "ppo_step",
    "You clip each number of the gradient by its value. The limit is for the norm of all of them together.",
    ("clip_grad_norm_(", "clip_grad_value_("),
)
wrong(
    "ppo_step",
    "The optimiser never makes a step.",
    ("        optim.step()\n", ""),
)
wrong(
    "ppo_step",
    "You make a new optimiser in each update. The one that is handed in remembers earlier steps and has its own "
    "learning rate.",
    (
        "    policy.eval()\n",
        "    policy.eval()\n    optim = torch.optim.AdamW(policy.parameters(), lr=1e-5)\n",
    ),
)
wrong(
    "ppo_step",
    "You make one step only. Each epoch makes one.",
    ("        optim.step()\n\n", "    optim.step()\n\n"),
)
wrong(
    "ppo_step",
    "Your loop makes one epoch too many.",
    ("range(ppo_epochs)", "range(ppo_epochs + 1)"),
)
wrong(
    "ppo_step",
    "Your loop makes one epoch too few.",
    ("range(ppo_epochs)", "range(1, max(ppo_epochs, 2))"),
)
wrong(
    "ppo_step",
    "Your old log-probabilities are the new ones, cut off from the gradient: every ratio is 1 for ever, and nothing "
    "is clipped.",
    (
        "            rollout.old_logprobs,\n            advantages",
        "            new_logprobs.detach(),\n            advantages",
    ),
)
wrong(
    "ppo_step",
    "Your ratio compares the policy with the reference. It has to compare it with the policy that sampled.",
    (
        "            rollout.old_logprobs,\n            advantages",
        "            rollout.ref_logprobs,\n            advantages",
    ),
)
wrong(
    "ppo_step",
    "old and new log-probabilities are swapped in your call of `ppo_losses`: the ratio is upside down.",
    (
        "            new_logprobs,\n            rollout.old_logprobs,\n            advantages",
        "            rollout.old_logprobs,\n            new_logprobs,\n            advantages",
    ),
)
wrong(
    "ppo_step",
    "Your old values are the new ones, cut off from the gradient: the value clip then has no effect.",
    (
        "            rollout.old_values,\n            returns",
        "            new_values.detach(),\n            returns",
    ),
)
wrong(
    "ppo_step",
    "You do not whiten the advantages.",
    ("    advantages = masked_whiten(advantages, mask)\n", ""),
)
wrong(
    "ppo_step",
    "You whiten the advantages over the whole block, padding included.",
    ("masked_whiten(advantages, mask)", "masked_whiten(advantages, torch.ones_like(mask))"),
)
wrong(
    "ppo_step",
    "You centre the advantages and do not scale them.",
    ("masked_whiten(advantages, mask)", "(advantages - masked_mean(advantages, mask)) * mask"),
)
wrong(
    "ppo_step",
    "You whiten the returns too. The critic's target stays on the scale of the rewards.",
    (
        "    advantages = masked_whiten(advantages, mask)\n",
        "    advantages = masked_whiten(advantages, mask)\n    returns = masked_whiten(returns, mask)\n",
    ),
)
wrong(
    "ppo_step",
    "Your returns are computed from whitened advantages: the critic's target has lost the scale of the rewards.",
    (
        "    advantages = masked_whiten(advantages, mask)\n",
        "    advantages = masked_whiten(advantages, mask)\n    returns = advantages + rollout.old_values\n",
    ),
)
wrong(
    "ppo_step",
    "You whiten the token rewards before the advantages are computed.",
    (
        "    advantages, returns = compute_gae(token_rewards,",
        "    token_rewards = masked_whiten(token_rewards, mask)\n    advantages, returns = compute_gae(token_rewards,",
    ),
)
wrong(
    "ppo_step",
    "Your critic learns the advantages. Its target is the returns.",
    ("            returns,\n            mask", "            advantages,\n            mask"),
)
wrong(
    "ppo_step",
    "Your critic learns the token rewards. Its target is the returns.",
    ("            returns,\n            mask", "            token_rewards,\n            mask"),
)
wrong(
    "ppo_step",
    "Advantages and returns are swapped in your call of `ppo_losses`.",
    ("advantages, returns = compute_gae", "returns, advantages = compute_gae"),
)
wrong(
    "ppo_step",
    "You compute the advantages anew in each epoch, with the values of the critic that has just moved.",
    (
        "        loss, info = ppo_losses(",
        """        advantages, returns = compute_gae(token_rewards, new_values.detach(), mask)
        advantages = masked_whiten(advantages, mask)
        loss, info = ppo_losses(""",
    ),
)
wrong(
    "ppo_step",
    "You charge the KL anew in each epoch, with the log-probabilities of the policy that has just moved.",
    (
        "        loss, info = ppo_losses(",
        """        fresh = new_logprobs.detach()
        moved = shape_token_rewards(rollout.rm_score, fresh, rollout.ref_logprobs, mask, kl_coef)
        advantages, returns = compute_gae(moved, rollout.old_values, mask)
        advantages = masked_whiten(advantages, mask)
        loss, info = ppo_losses(""",
    ),
)
wrong(
    "ppo_step",
    "kl_coef does not reach the token rewards: they always use its default.",
    ("rollout.ref_logprobs, mask, kl_coef", "rollout.ref_logprobs, mask"),
)
wrong(
    "ppo_step",
    "The KL is charged with the wrong sign: going away from the reference is rewarded.",
    (
        "rollout.rm_score, rollout.old_logprobs, rollout.ref_logprobs, mask",
        "rollout.rm_score, rollout.ref_logprobs, rollout.old_logprobs, mask",
    ),
)
wrong(
    "ppo_step",
    "There is no KL in your token rewards: the policy may go anywhere.",
    (
        "rollout.rm_score, rollout.old_logprobs, rollout.ref_logprobs, mask",
        "rollout.rm_score, rollout.old_logprobs, rollout.old_logprobs, mask",
    ),
)
wrong(
    "ppo_step",
    "The score does not reach your token rewards: they hold the KL alone.",
    ("        rollout.rm_score, rollout.old", "        rollout.rm_score * 0, rollout.old"),
)
wrong(
    "ppo_step",
    "You subtract the mean of the scores before the rewards are shaped. The critic is there for that.",
    (
        "        rollout.rm_score, rollout.old",
        "        rollout.rm_score - rollout.rm_score.mean(), rollout.old",
    ),
)
wrong(
    "ppo_step",
    "The critic's values do not reach your advantages.",
    (
        "compute_gae(token_rewards, rollout.old_values, mask)",
        "compute_gae(token_rewards, rollout.old_values * 0, mask)",
    ),
)
wrong(
    "ppo_step",
    "You discount with gamma 0.99. A response is rewarded at its end, and here gamma is 1.",
    ("rollout.old_values, mask)", "rollout.old_values, mask, gamma=0.99)"),
)
wrong(
    "ppo_step",
    "You use another lambda than `compute_gae` does when nothing is said.",
    ("rollout.old_values, mask)", "rollout.old_values, mask, lam=1.0)"),
)
wrong(
    "ppo_step",
    "clip_range and clip_range_value are swapped in your call of `ppo_losses`.",
    (
        "            clip_range,\n            clip_range_value,\n",
        "            clip_range_value,\n            clip_range,\n",
    ),
)
wrong(
    "ppo_step",
    "clip_range limits the values too. They have a limit of their own, clip_range_value.",
    (
        "            clip_range,\n            clip_range_value,\n",
        "            clip_range,\n            clip_range,\n",
    ),
)
wrong(
    "ppo_step",
    "None of your coefficients reaches `ppo_losses`: it works with its defaults.",
    ("            clip_range,\n            clip_range_value,\n            vf_coef,\n", ""),
)
wrong(
    "ppo_step",
    "vf_coef does not reach `ppo_losses`: it works with its default.",
    ("            vf_coef,\n", ""),
)
wrong(
    "ppo_step",
    "You weigh the value loss with vf_coef once more. `ppo_losses` has done so.",
    (
        "        optim.zero_grad()\n",
        "        loss = loss + vf_coef * info['value_loss'] * loss\n        optim.zero_grad()\n",
    ),
)
wrong(
    "ppo_step",
    "You climb the loss: its sign is turned around before `backward`.",
    ("loss.backward()", "(-loss).backward()"),
)
wrong(
    "ppo_step",
    "kl_to_ref is a mean over tokens in your code. It is a sum over each response, and a mean over the responses.",
    ("log_ratio_to_ref.sum(dim=-1).mean().item()", "masked_mean(log_ratio_to_ref, mask).item()"),
)
wrong(
    "ppo_step",
    "kl_to_ref is the sum over the whole batch in your code. It is a mean over the responses.",
    ("log_ratio_to_ref.sum(dim=-1).mean().item()", "log_ratio_to_ref.sum().item()"),
)
wrong(
    "ppo_step",
    "The padding is counted in your kl_to_ref.",
    (
        "(rollout.old_logprobs - rollout.ref_logprobs).where(mask.bool(), 0.0)",
        "rollout.old_logprobs - rollout.ref_logprobs",
    ),
)
wrong(
    "ppo_step",
    "Your kl_to_ref has the wrong sign.",
    (
        "(rollout.old_logprobs - rollout.ref_logprobs).where",
        "(rollout.ref_logprobs - rollout.old_logprobs).where",
    ),
)
wrong(
    "ppo_step",
    "kl_to_ref is weighted with kl_coef in your code. It is a distance in nats, whatever it costs.",
    ("log_ratio_to_ref.sum(dim=-1).mean().item()", "kl_coef * log_ratio_to_ref.sum(dim=-1).mean().item()"),
)
wrong(
    "ppo_step",
    "Your mean_reward has the KL in it. It is the mean of the scores alone.",
    ("rollout.rm_score.mean().item()", "token_rewards.sum(-1).mean().item()"),
)
wrong(
    "ppo_step",
    "Your mean_reward is a sum.",
    ("rollout.rm_score.mean().item()", "rollout.rm_score.sum().item()"),
)
wrong(
    "ppo_step",
    "Your info is that of the first epoch. The last one says where the update has ended.",
    ("        loss, info = ppo_losses(", "        loss, new_info = ppo_losses("),
    (
        "        optim.zero_grad()\n",
        "        info = new_info if _ == 0 else info\n        optim.zero_grad()\n",
    ),
)
wrong(
    "ppo_step",
    "Your info is a mean over the epochs. It is that of the last one.",
    ("        loss, info = ppo_losses(", "        loss, new_info = ppo_losses("),
    (
        "        optim.zero_grad()\n",
        """        info = {k: ((info[k] * _ if _ else 0.0) + v) / (_ + 1) for k, v in new_info.items()}
        optim.zero_grad()
""",
    ),
)
wrong(
    "ppo_step",
    "Your update writes into rm_score of the rollout.",
    (
        "    advantages = masked_whiten(advantages, mask)\n",
        "    advantages = masked_whiten(advantages, mask)\n    rollout.rm_score.add_(1.0)\n",
    ),
    ("rollout.rm_score.mean().item()", "rollout.rm_score.sub(1.0).mean().item()"),
)
wrong(
    "ppo_step",
    "Your update replaces the old log-probabilities in the rollout by the new ones.",
    ("        optim.step()\n", "        optim.step()\n    rollout.old_logprobs = new_logprobs.detach()\n"),
)
wrong(
    "ppo_step",
    "Your mask is 1 everywhere: the padding takes part in the update.",
    ("mask = rollout.response_mask", "mask = torch.ones_like(rollout.response_mask)"),
)
wrong(
    "ppo_step",
    "The losses are averaged over the padding too: `ppo_losses` gets a mask of ones.",
    (
        "            mask,\n            clip_range,",
        "            torch.ones_like(mask),\n            clip_range,",
    ),
)
wrong(
    "ppo_step",
    "The policy reads the padding as text in your update: it gets a mask of ones.",
    (
        "policy, rollout.full_ids, rollout.full_mask, mask.shape[1]",
        "policy, rollout.full_ids, torch.ones_like(rollout.full_mask), mask.shape[1]",
    ),
)
wrong(
    "ppo_step",
    "You limit the scores before the rewards are shaped. A very good response has to be worth what the reward says.",
    ("        rollout.rm_score, rollout.old", "        rollout.rm_score.clamp(-5, 5), rollout.old"),
)
wrong(
    "ppo_step",
    "You climb the loss from the second epoch on.",
    ("loss.backward()", "(loss if _ == 0 else -loss).backward()"),
)
wrong(
    "ppo_step",
    "You stop before the last epoch when the policy has moved a little. ppo_epochs says how many there are.",
    (
        "        optim.step()\n",
        "        optim.step()\n        if info['approx_kl'] > 0.02:\n            break\n",
    ),
)
wrong(
    "ppo_step",
    "You stop before the last epoch when the policy has moved far. ppo_epochs says how many there are.",
    (
        "        optim.step()\n",
        "        optim.step()\n        if info['approx_kl'] > 0.5:\n            break\n",
    ),
)
wrong(
    "ppo_step",
    "You limit the advantages: a response that is far better than all others has to weigh as much as it does.",
    ("masked_whiten(advantages, mask)", "masked_whiten(advantages, mask).clamp(-3, 3)"),
)
wrong(
    "ppo_step",
    "Your old log-probabilities are those of the epoch before. They stay those of the policy that sampled.",
    ("    # 2. the same", "    old_logprobs = rollout.old_logprobs\n    # 2. the same"),
    (
        "            rollout.old_logprobs,\n            advantages",
        "            old_logprobs,\n            advantages",
    ),
    ("        optim.step()\n", "        optim.step()\n        old_logprobs = new_logprobs.detach()\n"),
)
wrong(
    "ppo_step",
    "Your old values are those of the epoch before. They stay those of the rollout.",
    ("    # 2. the same", "    old_values = rollout.old_values\n    # 2. the same"),
    ("            rollout.old_values,\n            returns", "            old_values,\n            returns"),
    ("        optim.step()\n", "        optim.step()\n        old_values = new_values.detach()\n"),
)
wrong(
    "ppo_step",
    "clip_range does not reach `ppo_losses`: it works with its default.",
    (
        "            clip_range,\n            clip_range_value,\n            vf_coef,\n",
        "            clip_range_value=clip_range_value,\n            vf_coef=vf_coef,\n",
    ),
)
wrong(
    "ppo_step",
    "clip_range_value does not reach `ppo_losses`: it works with its default.",
    (
        "            clip_range,\n            clip_range_value,\n            vf_coef,\n",
        "            clip_range=clip_range,\n            vf_coef=vf_coef,\n",
    ),
)
wrong(
    "ppo_step",
    "kl_to_ref is that of the policy that is being updated in your code. It is about the policy that sampled.",
    (
        "(rollout.old_logprobs - rollout.ref_logprobs).where",
        "(new_logprobs.detach() - rollout.ref_logprobs).where",
    ),
)
wrong(
    "ppo_step",
    "You limit the log-ratio to the reference. The KL of a response is the sum over its tokens as they are.",
    ("- rollout.ref_logprobs).where", "- rollout.ref_logprobs).clamp(-10, 10).where"),
)
for name, default, other in (
    ("ppo_epochs", "int = 4", "int = 1"),
    ("clip_range", "float = 0.2", "float = 0.1"),
    ("clip_range_value", "float = 0.2", "float = 0.4"),
    ("kl_coef", "float = 0.05", "float = 0.1"),
    ("vf_coef", "float = 0.5", "float = 1.0"),
    ("max_grad_norm", "float = 1.0", "float = 0.5"),
):
    wrong(
        "ppo_step",
        f"You have changed the default of `{name}` in the signature.",
        (f"    {name}: {default}", f"    {name}: {other}"),
    )
right(
    "ppo_step",
    "arguments by name, gradients of the policy set back, the mode restored",
    body("""
    was_training, valid = policy.training, rollout.response_mask.float()
    policy.train(False)
    rewards = shape_token_rewards(
        rm_score=rollout.rm_score, old_logprobs=rollout.old_logprobs, ref_logprobs=rollout.ref_logprobs,
        response_mask=rollout.response_mask, kl_coef=kl_coef,
    )
    raw, returns = compute_gae(rewards, rollout.old_values, rollout.response_mask, gamma=1.0, lam=0.95)
    white = masked_whiten(raw, rollout.response_mask)
    info = {}
    for _ in range(ppo_epochs):
        policy.zero_grad()
        logprobs, values = response_logprobs_and_values(
            policy, rollout.full_ids, rollout.full_mask, rollout.response_mask.shape[1]
        )
        loss, info = ppo_losses(
            logprobs, rollout.old_logprobs, white, values, rollout.old_values, returns, rollout.response_mask,
            clip_range=clip_range, clip_range_value=clip_range_value, vf_coef=vf_coef,
        )
        loss.backward()
        nn.utils.clip_grad_norm_([*policy.lm.parameters(), *policy.value_head.parameters()], max_grad_norm)
        optim.step()
    policy.train(was_training)
    kl = ((rollout.old_logprobs - rollout.ref_logprobs) * valid).sum() / len(valid)
    return {**info, "mean_reward": rollout.rm_score.mean(), "kl_to_ref": kl}
    """),
)
right(
    "ppo_step",
    "white by the sample variance, as some libraries do",
    (
        "advantages = masked_whiten(advantages, mask)",
        "valid = advantages[mask.bool()]\n    advantages = (advantages - valid.mean()) / (valid.std() + 1e-8)",
    ),
    differs=True,
)
right(
    "ppo_step",
    "gradients set back before the first epoch and behind each step",
    ("        optim.zero_grad()\n", ""),
    ("        optim.step()\n", "        optim.step()\n        optim.zero_grad()\n"),
    ("    # 2. the same", "    optim.zero_grad()\n    # 2. the same"),
)
right(
    "ppo_step",
    "logits of the whole text, cut here",
    (
        """        new_logprobs, new_values = response_logprobs_and_values(
            policy, rollout.full_ids, rollout.full_mask, mask.shape[1]
        )
""",
        """        logits, values = policy(rollout.full_ids, rollout.full_mask)
        start = rollout.full_ids.shape[1] - mask.shape[1] - 1
        new_logprobs = gather_logprobs(logits, rollout.full_ids)[:, start:]
        new_values = values[:, start:-1]
""",
    ),
)

right(
    "ppo_step",
    "a closure that sets back, goes backward and clips",
    (
        "    # 2. the same frozen targets for every epoch\n    for _ in range(ppo_epochs):\n",
        "    info = {}\n\n    def closure():\n        optim.zero_grad()\n",
    ),
    ("        loss, info = ppo_losses(", "        loss, numbers = ppo_losses("),
    (
        "        optim.zero_grad()\n        loss.backward()",
        "        info.update(numbers)\n        loss.backward()",
    ),
    (
        "        optim.step()\n",
        "        return loss\n\n    for _ in range(ppo_epochs):\n        optim.step(closure)\n",
    ),
)
right(
    "ppo_step",
    "clipping in a hook of the optimiser",
    (
        "    # 2. the same frozen targets for every epoch\n",
        """    def clip(*_):
        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)

    hook = optim.register_step_pre_hook(clip)
""",
    ),
    (
        "        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)\n        optim",
        "        optim",
    ),
    ("    log_ratio_to_ref = (", "    hook.remove()\n    log_ratio_to_ref = ("),
)

# --- 4 train_ppo ----------------------------------------------------------------------------------

DRAW = "drawn = torch.randint(len(prompts), (batch_size,)).tolist()"
wrong(
    "train_ppo",
    "You go through the prompts in their order. They have to be drawn.",
    (DRAW, "drawn = [i % len(prompts) for i in range(batch_size)]"),
)
wrong(
    "train_ppo",
    "The last prompt is never drawn: the upper limit of `randint` is left out already.",
    ("torch.randint(len(prompts), ", "torch.randint(len(prompts) - 1, "),
)
wrong(
    "train_ppo",
    "The first prompt is never drawn.",
    ("torch.randint(len(prompts), ", "torch.randint(1, len(prompts), "),
)
wrong(
    "train_ppo",
    "One prompt fills the whole batch: each row needs a draw of its own.",
    ("(batch_size,)).tolist()", "(1,)).tolist() * batch_size"),
)
wrong(
    "train_ppo",
    "You draw once, before the loop: every step gets the same prompts.",
    ("    history = []\n", "    history = []\n    " + DRAW + "\n"),
    ("    for _ in range(n_steps):\n        " + DRAW + "\n", "    for _ in range(n_steps):\n"),
)
wrong(
    "train_ppo",
    "You draw without replacement: a step never has a prompt twice.",
    (
        DRAW,
        "drawn = [i for _ in range(batch_size) for i in torch.randperm(len(prompts)).tolist()][:batch_size]",
    ),
)
wrong(
    "train_ppo",
    "A batch cannot be larger than the number of prompts in your code.",
    (DRAW, "drawn = torch.randperm(len(prompts))[:batch_size].tolist()"),
)
wrong(
    "train_ppo",
    "You draw with Python's `random`: torch's seed does not repeat the run.",
    (DRAW, "drawn = [random.randrange(len(prompts)) for _ in range(batch_size)]"),
    imports="import random",
)
wrong(
    "train_ppo",
    "You draw with numpy: torch's seed does not repeat the run.",
    (DRAW, "drawn = np.random.randint(len(prompts), size=batch_size)"),
    imports="import numpy as np",
)
wrong(
    "train_ppo",
    "You set the seed in your loop: every step draws the same numbers.",
    (DRAW, "torch.manual_seed(0)\n        " + DRAW),
)
wrong(
    "train_ppo",
    "You set the seed at the start of the run: every run is the same, whatever seed was chosen.",
    ("    history = []\n", "    history = []\n    torch.manual_seed(0)\n"),
)
wrong(
    "train_ppo",
    "Each step takes all prompts: batch_size is not used.",
    (DRAW, "drawn = torch.randint(len(prompts), (len(prompts),)).tolist()"),
)
wrong(
    "train_ppo",
    "max_new_tokens is not handed on: the rollout uses its default.",
    ("[prompts[i] for i in drawn], max_new_tokens)", "[prompts[i] for i in drawn])"),
)
wrong(
    "train_ppo",
    "kl_coef is not handed on: the update uses its default.",
    ("ppo_epochs=ppo_epochs, kl_coef=kl_coef", "ppo_epochs=ppo_epochs"),
)
wrong(
    "train_ppo",
    "kl_coef lands in another place: the third number after the rollout is not kl_coef.",
    ("ppo_epochs=ppo_epochs, kl_coef=kl_coef", "ppo_epochs, kl_coef"),
)
wrong(
    "train_ppo",
    "ppo_epochs is not handed on: the update uses its default.",
    ("ppo_epochs=ppo_epochs, kl_coef", "kl_coef"),
)
wrong(
    "train_ppo",
    "You make a new optimiser in each step: what the one that was handed in remembers is lost.",
    ("ppo_step(policy, optim,", "ppo_step(policy, torch.optim.AdamW(policy.parameters(), lr=1e-5),"),
)
wrong(
    "train_ppo",
    "You make one step only: n_steps is not used.",
    ("range(n_steps)", "range(1)"),
)
wrong(
    "train_ppo",
    "Your loop makes one step too many.",
    ("range(n_steps)", "range(n_steps + 1)"),
)
wrong(
    "train_ppo",
    "n_steps counts passes through the prompts in your code. It counts rollouts.",
    ("range(n_steps)", "range(n_steps * len(prompts))"),
)
wrong(
    "train_ppo",
    "You sample once and go on with the same responses: after the first update they are those of an old policy.",
    ("batch = rollout(", "batch = batch if history else rollout("),
)
wrong(
    "train_ppo",
    "The reference follows the policy: you copy the weights after each step, and the KL to it means nothing.",
    (
        "        history.append(info)\n",
        "        history.append(info)\n        ref_policy.load_state_dict(policy.state_dict())\n",
    ),
)
wrong(
    "train_ppo",
    "Your reference is the policy itself: the KL to it is 0 for ever.",
    ("rollout(policy, ref_policy,", "rollout(policy, policy,"),
)
wrong(
    "train_ppo",
    "You make a new reference of the policy at the start of each step.",
    ("        batch = rollout(policy, ref_policy,", "        batch = rollout(policy, copy.deepcopy(policy),"),
    imports="import copy",
)
wrong(
    "train_ppo",
    "policy and reference are swapped in your call of `rollout`: the reference samples, and the policy is the "
    "reference.",
    ("rollout(policy, ref_policy,", "rollout(ref_policy, policy,"),
)
wrong(
    "train_ppo",
    "You train the reference instead of the policy.",
    ("ppo_step(policy, optim,", "ppo_step(ref_policy, optim,"),
)
wrong(
    "train_ppo",
    "You train a copy of the policy. The policy that is handed in is the one to train.",
    ("    history = []\n", "    history = []\n    policy = copy.deepcopy(policy)\n"),
    imports="import copy",
)
wrong(
    "train_ppo",
    "There is no update in your loop that counts: the step comes after the loop.",
    (
        "        info = ppo_step(policy, optim, batch, ppo_epochs=ppo_epochs, kl_coef=kl_coef)\n        history.append(info)\n",
        "        history.append({})\n        info = history[-1]\n",
    ),
    (
        "    return history",
        """    info.update(ppo_step(policy, optim, batch, ppo_epochs=ppo_epochs, kl_coef=kl_coef))
    return [info] * n_steps""",
    ),
)
wrong(
    "train_ppo",
    "Your history holds the rewards alone. It holds the whole info of each step.",
    ("history.append(info)", 'history.append(info["mean_reward"])'),
)
wrong(
    "train_ppo",
    "You return the info of the last step. The history has one for each step.",
    ("    return history", "    return info if n_steps else []"),
)
wrong(
    "train_ppo",
    "All entries of your history are the info of the last step: one dictionary is filled again and again.",
    (
        "history.append(info)",
        "shared = history[0] if history else {}\n        shared.update(info)\n        history.append(shared)",
    ),
)
wrong(
    "train_ppo",
    "Your history is in the wrong order: the last step comes first.",
    ("history.append(info)", "history.insert(0, info)"),
)
wrong(
    "train_ppo",
    "You forget to return the history.",
    ("    return history\n", ""),
)
wrong(
    "train_ppo",
    "on_step is never called.",
    ("            on_step(info, batch)\n", "            pass\n"),
)
wrong(
    "train_ppo",
    "on_step is called after every tenth step. It is called after each one.",
    ("        if on_step is not None:\n", "        if on_step is not None and len(history) % 10 == 0:\n"),
)
wrong(
    "train_ppo",
    "on_step is called without a question whether there is one.",
    ("        if on_step is not None:\n            on_step", "        on_step"),
)
wrong(
    "train_ppo",
    "on_step is called once, after the run. A run that is stopped half-way would have saved nothing.",
    (
        "        if on_step is not None:\n            on_step(info, batch)\n",
        "    if on_step is not None and n_steps:\n        on_step(info, batch)\n",
    ),
)
wrong(
    "train_ppo",
    "on_step gets the info alone. It is called with info and rollout.",
    ("on_step(info, batch)", "on_step(info)"),
)
wrong(
    "train_ppo",
    "on_step gets rollout and info in the wrong order.",
    ("on_step(info, batch)", "on_step(batch, info)"),
)
wrong(
    "train_ppo",
    "on_step gets the texts in place of the rollout.",
    ("on_step(info, batch)", "on_step(info, batch.texts)"),
)
wrong(
    "train_ppo",
    "on_step is called with the number of the step. It is called with info and rollout.",
    ("on_step(info, batch)", "on_step(_, batch)"),
)
wrong(
    "train_ppo",
    "Only the first batch_size prompts are ever drawn.",
    ("torch.randint(len(prompts), ", "torch.randint(min(len(prompts), batch_size), "),
)
wrong(
    "train_ppo",
    "You take out the prompts that stand in the list more than once: they then come too rarely.",
    ("    history = []\n", "    history = []\n    prompts = sorted(set(prompts))\n"),
)
wrong(
    "train_ppo",
    "You hand a clip_range of your own to `ppo_step`.",
    ("kl_coef=kl_coef)", "kl_coef=kl_coef, clip_range=0.3)"),
)
wrong(
    "train_ppo",
    "You hand a vf_coef of 0 to `ppo_step`: the critic never learns.",
    ("kl_coef=kl_coef)", "kl_coef=kl_coef, vf_coef=0.0)"),
)
wrong(
    "train_ppo",
    "You hand a max_grad_norm of your own to `ppo_step`.",
    ("kl_coef=kl_coef)", "kl_coef=kl_coef, max_grad_norm=0.5)"),
)
wrong(
    "train_ppo",
    "What the optimiser remembers is cleared in your loop: each step starts from nothing.",
    ("        history.append(info)\n", "        history.append(info)\n        optim.state.clear()\n"),
)
wrong(
    "train_ppo",
    "kl_coef grows from step to step in your loop. It is the same for the whole run.",
    ("        history.append(info)\n", "        history.append(info)\n        kl_coef *= 1.2\n"),
)
wrong(
    "train_ppo",
    "You lower the learning rate in your loop: it belongs to the optimiser that is handed in.",
    (
        "        history.append(info)\n",
        """        history.append(info)
        for group in optim.param_groups:
            group["lr"] *= 0.9
""",
    ),
)
wrong(
    "train_ppo",
    "Your run stops as soon as the policy has moved a little. It makes n_steps steps.",
    (
        "        history.append(info)\n",
        """        history.append(info)
        if info["approx_kl"] > 0.05:
            break
""",
    ),
)
wrong(
    "train_ppo",
    "You strip the prompts. A response goes on from the prompt as it stands in the list.",
    ("[prompts[i] for i in drawn]", "[prompts[i].strip() for i in drawn]"),
)
wrong(
    "train_ppo",
    "The scores are whitened in your loop, before the update: mean_reward is then 0 for ever.",
    (
        "        info = ppo_step(",
        """        scores = batch.rm_score
        batch.rm_score = (scores - scores.mean()) / (scores.std() + 1e-8)
        info = ppo_step(""",
    ),
)
wrong(
    "train_ppo",
    "You go through a shuffled list: a prompt comes again only when all others have come.",
    ("    history = []\n", "    history, waiting = [], []\n"),
    (
        DRAW,
        """drawn = []
        while len(drawn) < batch_size:
            waiting = waiting or torch.randperm(len(prompts)).tolist()
            drawn.append(waiting.pop())""",
    ),
)
for name, default, other in (
    ("n_steps", "int = 50", "int = 10"),
    ("batch_size", "int = 32", "int = 8"),
    ("max_new_tokens", "int = 20", "int = 32"),
    ("ppo_epochs", "int = 4", "int = 1"),
    ("kl_coef", "float = 0.05", "float = 0.1"),
):
    wrong(
        "train_ppo",
        f"You have changed the default of `{name}` in the signature.",
        (f"    {name}: {default}", f"    {name}: {other}"),
    )
right(
    "train_ppo",
    "a while loop, draws by multinomial, arguments by name",
    body("""
    history, even = [], torch.ones(len(prompts))
    while len(history) < n_steps:
        indices = torch.multinomial(even, batch_size, replacement=True)
        batch = rollout(
            policy=policy, ref_policy=ref_policy, reward_fn=reward_fn, tokenizer=tokenizer,
            prompts=tuple(prompts[int(i)] for i in indices), max_new_tokens=max_new_tokens,
        )
        history += [ppo_step(policy, optim, batch, ppo_epochs, kl_coef=kl_coef)]
        if on_step:
            on_step(history[-1], batch)
    return history
    """),
)
right(
    "train_ppo",
    "one draw of a floating number for each row; training mode between the steps",
    (DRAW, "drawn = [int(torch.rand(()) * len(prompts)) for _ in range(batch_size)]"),
    ("        history.append(info)\n", "        policy.train()\n        history.append(dict(info))\n"),
)
right(
    "train_ppo",
    "all draws before the loop",
    (
        "    history = []\n",
        "    history = []\n    draws = torch.randint(0, len(prompts), (n_steps, batch_size))\n",
    ),
    ("    for _ in range(n_steps):\n        " + DRAW + "\n", "    for drawn in draws.tolist():\n"),
)
