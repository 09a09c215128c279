"""Wrong and correct implementations of the exercises in `ppo.py`."""

from . import body, right, wrong

# --- 3.1 PolicyWithValueHead ----------------------------------------------------------------------

POSITION_IDS = "position_ids = position_ids_from_mask(attention_mask)"
DEFAULT_POSITION_IDS = f"if position_ids is None:\n            {POSITION_IDS}"
VALUES = "values = self.value_head(output.hidden_states[-1]).squeeze(-1)"
HEAD = "nn.Linear(hidden_size, hidden_size), nn.GELU(), nn.Linear(hidden_size, 1)"
ZERO_WEIGHT = "        nn.init.zeros_(self.value_head[-1].weight)\n"
ZERO_BIAS = "        nn.init.zeros_(self.value_head[-1].bias)\n"
LOAD = "self.lm.load_state_dict(state_dict)"
LANGUAGE_MODEL = "self.lm = AutoModelForCausalLM.from_pretrained(base_model_name, dtype=torch.float32)"
BOTH = "return output.logits, values"

wrong(
    "PolicyWithValueHead",
    "Your values are [batch, seq, 1]: the last axis of the head is left.",
    (VALUES, "values = self.value_head(output.hidden_states[-1])"),
)
wrong(
    "PolicyWithValueHead",
    "Your .squeeze() without an axis removes every axis of length 1, also that of a single text or token.",
    (VALUES, "values = self.value_head(output.hidden_states[-1]).squeeze()"),
)
wrong(
    "PolicyWithValueHead",
    "You return one value per text, that of the last position. The critic judges every state.",
    (VALUES, VALUES + "[:, -1]"),
)
wrong(
    "PolicyWithValueHead",
    "You return values first and logits second. The order is the other way round.",
    (BOTH, "return values, output.logits"),
)
wrong(
    "PolicyWithValueHead",
    "You return the output object of transformers in place of its logits.",
    (BOTH, "return output, values"),
)
wrong(
    "PolicyWithValueHead",
    "You return the logits alone: the values are missing.",
    (BOTH, "return output.logits"),
)
wrong(
    "PolicyWithValueHead",
    "Your forward switches the language model to training mode, and dropout on with it.",
    ("output = self.lm(", "self.train()\n        output = self.lm("),
)
wrong(
    "PolicyWithValueHead",
    "You build the language model from its configuration alone: its weights are random, not pretrained.",
    (
        LANGUAGE_MODEL,
        "self.lm = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base_model_name))",
    ),
    imports="from transformers import AutoConfig",
)
wrong(
    "PolicyWithValueHead",
    "You return log-probabilities in place of logits.",
    (BOTH, "return output.logits.log_softmax(dim=-1), values"),
)
wrong(
    "PolicyWithValueHead",
    "You load the language model in bfloat16: two digits are left, and the ratio of two policies is noise.",
    (
        LANGUAGE_MODEL,
        "self.lm = AutoModelForCausalLM.from_pretrained(base_model_name, dtype=torch.bfloat16).float()",
    ),
)
wrong(
    "PolicyWithValueHead",
    "You divide the logits by a temperature. Sampling and scoring use the model as it is.",
    (BOTH, "return output.logits / 0.7, values"),
)
wrong(
    "PolicyWithValueHead",
    "The weights of the last layer of your value head do not start at zero.",
    (ZERO_WEIGHT, "        self.value_head[-1].weight.data.fill_(0.5)\n"),
)
wrong(
    "PolicyWithValueHead",
    "The last layer of your value head does not start at zero: it is left as torch makes it.",
    (ZERO_WEIGHT, ""),
    (ZERO_BIAS, ""),
)
wrong(
    "PolicyWithValueHead",
    "The bias of the last layer of your value head does not start at zero.",
    (ZERO_BIAS, ""),
)
wrong(
    "PolicyWithValueHead",
    "You set the first layer of the value head to zero, too: then nothing comes into the last one, and its weights never get "
    "a gradient.",
    (
        ZERO_WEIGHT,
        ZERO_WEIGHT + "        nn.init.zeros_(self.value_head[0].weight)\n"
        "        nn.init.zeros_(self.value_head[0].bias)\n",
    ),
)
wrong(
    "PolicyWithValueHead",
    "Your value head is a single layer.",
    (HEAD, "nn.Linear(hidden_size, 1)"),
)
wrong(
    "PolicyWithValueHead",
    "Your value head has three linear layers.",
    (
        HEAD,
        "nn.Linear(hidden_size, hidden_size), nn.GELU(), nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, 1)",
    ),
)
wrong(
    "PolicyWithValueHead",
    "There is no activation between the two layers of your value head: together they are one linear layer.",
    (HEAD, "nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, 1)"),
)
wrong(
    "PolicyWithValueHead",
    "The activation of your value head is ReLU, not GELU.",
    (HEAD, "nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 1)"),
)
wrong(
    "PolicyWithValueHead",
    "The activation of your value head is tanh, not GELU.",
    (HEAD, "nn.Linear(hidden_size, hidden_size), nn.Tanh(), nn.Linear(hidden_size, 1)"),
)
wrong(
    "PolicyWithValueHead",
    "The activation of your value head is SiLU, not GELU.",
    (HEAD, "nn.Linear(hidden_size, hidden_size), nn.SiLU(), nn.Linear(hidden_size, 1)"),
)
wrong(
    "PolicyWithValueHead",
    "You squash the values with tanh: a value can be any number, as a return can.",
    (VALUES, VALUES + ".tanh()"),
)
wrong(
    "PolicyWithValueHead",
    "The value head reads the hidden states before the last block.",
    (VALUES, "values = self.value_head(output.hidden_states[-2]).squeeze(-1)"),
)
wrong(
    "PolicyWithValueHead",
    "The value head reads the embeddings, before the first block: a value would know its own token only.",
    (VALUES, "values = self.value_head(output.hidden_states[0]).squeeze(-1)"),
)
wrong(
    "PolicyWithValueHead",
    "The value head reads the output of the last block as it is before the final norm.",
    (
        "output = self.lm(",
        (
            "seen = []\n        hook = self.lm.transformer.h[-1].register_forward_hook(\n"
            "            lambda module, args, out: seen.append(out[0] if isinstance(out, tuple) else out)\n        )\n"
            "        output = self.lm("
        ),
    ),
    (VALUES, "hook.remove()\n        values = self.value_head(seen[0]).squeeze(-1)"),
)
wrong(
    "PolicyWithValueHead",
    "You apply the final norm once more: the last hidden state has gone through it already.",
    (VALUES, "values = self.value_head(self.lm.transformer.ln_f(output.hidden_states[-1])).squeeze(-1)"),
)
wrong(
    "PolicyWithValueHead",
    "Every position gets the value of the last one.",
    (VALUES, VALUES + "\n        values = values[:, -1:].expand_as(values)"),
)
wrong(
    "PolicyWithValueHead",
    "The value head reads the mean over the text, so that a value knows the tokens to come.",
    (
        VALUES,
        (
            "hidden = output.hidden_states[-1].mean(dim=1, keepdim=True).expand_as(output.hidden_states[-1])\n"
            "        values = self.value_head(hidden).squeeze(-1)"
        ),
    ),
)
wrong(
    "PolicyWithValueHead",
    "Your values are shifted by one position. `forward` leaves every position at its place.",
    (VALUES, VALUES + ".roll(-1, dims=-1)"),
)
wrong(
    "PolicyWithValueHead",
    "The attention mask is not handed to the language model.",
    ("attention_mask=attention_mask,\n            position_ids", "position_ids"),
)
wrong(
    "PolicyWithValueHead",
    "You make the attention mask yourself, out of the ids: an EOS inside a text is taken for padding.",
    (
        "attention_mask=attention_mask,\n            position_ids",
        "attention_mask=(input_ids != self.lm.config.eos_token_id).long(),\n            position_ids",
    ),
)
wrong(
    "PolicyWithValueHead",
    "position_ids are not handed to the language model: the padding on the left is numbered.",
    ("            position_ids=position_ids,\n", ""),
)
wrong(
    "PolicyWithValueHead",
    "Without position_ids all positions are numbered, the padding included: GPT-2 does not look at the mask to number.",
    (DEFAULT_POSITION_IDS, "pass"),
)
wrong(
    "PolicyWithValueHead",
    "Your position_ids number the first real token 1. It is number 0.",
    (POSITION_IDS, "position_ids = attention_mask.long().cumsum(dim=-1)"),
)
wrong(
    "PolicyWithValueHead",
    "You count position_ids from the attention mask even when some are given.",
    (DEFAULT_POSITION_IDS, POSITION_IDS),
)
wrong(
    "PolicyWithValueHead",
    "logits_to_keep is not handed on: all logits are computed and returned.",
    ("            logits_to_keep=logits_to_keep,\n", ""),
)
wrong(
    "PolicyWithValueHead",
    "logits_to_keep shortens the values, too.",
    (VALUES, VALUES + "[:, -logits_to_keep:]"),
)
wrong(
    "PolicyWithValueHead",
    "You keep the first logits. logits_to_keep counts from the end.",
    ("            logits_to_keep=logits_to_keep,\n", ""),
    (BOTH, "return output.logits[:, : logits_to_keep or None], values"),
)
wrong(
    "PolicyWithValueHead",
    "You run the backbone twice, once for the logits and once for the values.",
    (
        VALUES,
        (
            "hidden = self.lm.base_model(\n            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids\n"
            "        ).last_hidden_state\n        values = self.value_head(hidden).squeeze(-1)"
        ),
    ),
)
wrong(
    "PolicyWithValueHead",
    "The critic has a backbone of its own, a second copy.",
    (
        LANGUAGE_MODEL,
        LANGUAGE_MODEL
        + "\n        self.critic = AutoModel.from_pretrained(base_model_name, dtype=torch.float32)",
    ),
    (
        VALUES,
        (
            "hidden = self.critic(\n            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids\n"
            "        ).last_hidden_state\n        values = self.value_head(hidden).squeeze(-1)"
        ),
    ),
    imports="from transformers import AutoModel",
)
wrong(
    "PolicyWithValueHead",
    "You cut the hidden states off from the graph before the value head: the critic cannot move the backbone.",
    (VALUES, "values = self.value_head(output.hidden_states[-1].detach()).squeeze(-1)"),
)
wrong(
    "PolicyWithValueHead",
    "You cut the values off from the graph: nothing of the critic can learn.",
    (VALUES, VALUES + ".detach()"),
)
wrong(
    "PolicyWithValueHead",
    "You cut the logits off from the graph: the policy cannot learn.",
    (BOTH, "return output.logits.detach(), values"),
)
wrong(
    "PolicyWithValueHead",
    "You freeze the language model: only the value head could learn.",
    (LANGUAGE_MODEL, LANGUAGE_MODEL + "\n        self.lm.requires_grad_(False)"),
)
wrong(
    "PolicyWithValueHead",
    "The language model runs without gradients: only the value head could learn.",
    ("output = self.lm(", "torch.set_grad_enabled(False)\n        output = self.lm("),
    (VALUES, "torch.set_grad_enabled(True)\n        " + VALUES),
)
wrong(
    "PolicyWithValueHead",
    "You load the state dict into the whole policy, where each name starts with `lm.`. It belongs to a part of it.",
    (LOAD, "self.load_state_dict(state_dict)"),
)
wrong(
    "PolicyWithValueHead",
    "You load the state dict into the whole policy with strict=False: no name fits, so nothing is loaded, silently.",
    (LOAD, "self.load_state_dict(state_dict, strict=False)"),
)
wrong(
    "PolicyWithValueHead",
    "You load with strict=False: of a state dict with other names nothing is loaded, silently.",
    (LOAD, "self.lm.load_state_dict(state_dict, strict=False)"),
)
wrong(
    "PolicyWithValueHead",
    "You load the state dict into the backbone without its LM head.",
    (LOAD, "self.lm.base_model.load_state_dict(state_dict)"),
)
wrong(
    "PolicyWithValueHead",
    "load_from_sft sets the value head back to zero.",
    (LOAD, LOAD + "\n        nn.init.zeros_(self.value_head[-1].weight)"),
)
wrong(
    "PolicyWithValueHead",
    "You take the tensors of the state dict themselves instead of a copy: whoever holds it trains along.",
    (LOAD, "self.lm.load_state_dict(state_dict, assign=True)"),
)
wrong(
    "PolicyWithValueHead",
    "You change the attention mask in place.",
    (BOTH, "attention_mask[:, 0] = 1\n        return output.logits, values"),
)
wrong(
    "PolicyWithValueHead",
    "You change position_ids in place.",
    (BOTH, "position_ids.add_(1)\n        return output.logits, values"),
)
wrong(
    "PolicyWithValueHead",
    "You look at the first row alone: when it has no padding, the padding of the others is numbered.",
    (
        DEFAULT_POSITION_IDS,
        f"if position_ids is None and attention_mask[0, 0] == 0:\n            {POSITION_IDS}",
    ),
)
wrong(
    "PolicyWithValueHead",
    "One row without padding is enough, and the padding of all others is numbered.",
    (
        DEFAULT_POSITION_IDS,
        f"if position_ids is None and (attention_mask[:, 0] == 0).all():\n            {POSITION_IDS}",
    ),
)
wrong(
    "PolicyWithValueHead",
    "You leave the checkpoint's generation_config as it is: what it recommends for sampling is not the policy.",
    ("        self.lm.generation_config = GenerationConfig()\n", ""),
)
wrong(
    "PolicyWithValueHead",
    "load_from_sft refuses names that are too many, and not that some are missing: those weights stay as they were.",
    (
        LOAD,
        "if self.lm.load_state_dict(state_dict, strict=False).unexpected_keys:\n"
        '            raise ValueError("names that do not fit")',
    ),
)
wrong(
    "PolicyWithValueHead",
    "load_from_sft refuses missing names, and not those that are too many: weights are left out, silently.",
    (
        LOAD,
        "if self.lm.load_state_dict(state_dict, strict=False).missing_keys:\n"
        '            raise ValueError("names that do not fit")',
    ),
)
wrong(
    "PolicyWithValueHead",
    "load_from_sft refuses a state dict only when none of its names fits. A single one that does not is enough.",
    (
        LOAD,
        "if not state_dict.keys() & self.lm.state_dict().keys():\n"
        '            raise ValueError("names that do not fit")\n'
        "        self.lm.load_state_dict(state_dict, strict=False)",
    ),
)
right(
    "PolicyWithValueHead",
    "the backbone and the LM head called one after the other",
    ("output = self.lm(", "hidden = self.lm.base_model("),
    (
        "            logits_to_keep=logits_to_keep,\n            output_hidden_states=True,\n            use_cache=False,\n        )",
        "        ).last_hidden_state",
    ),
    (VALUES, "values = self.value_head(hidden)[..., 0]"),
    (BOTH, "return self.lm.get_output_embeddings()(hidden[:, -logits_to_keep:]), values"),
)
right(
    "PolicyWithValueHead",
    "a wide head in a module of its own, without biases, its gelu the approximation by tanh",
    (
        "self.value_head = nn.Sequential(\n            nn.Linear(hidden_size, hidden_size), nn.GELU(), nn.Linear(hidden_size, 1)\n        )",
        (
            "class Head(nn.Module):\n"
            "            def __init__(self):\n"
            "                super().__init__()\n"
            "                self.hidden = nn.Linear(hidden_size, 4 * hidden_size)\n"
            "                self.out = nn.Linear(4 * hidden_size, 1, bias=False)\n"
            "\n"
            "            def forward(self, x):\n"
            '                return self.out(F.gelu(self.hidden(x), approximate="tanh"))\n'
            "\n"
            "        self.value_head = Head()"
        ),
    ),
    ("nn.init.zeros_(self.value_head[-1].weight)\n", "nn.init.zeros_(self.value_head.out.weight)\n"),
    ("        nn.init.zeros_(self.value_head[-1].bias)\n", ""),
    differs=True,
)
right(
    "PolicyWithValueHead",
    "all logits computed and cut, values 0 on padding, not in eval mode, generation settings of its own",
    ("            logits_to_keep=logits_to_keep,\n", ""),
    ("= GenerationConfig()", "= GenerationConfig(do_sample=True, top_k=0)"),
    ("        self.eval()  # as from_pretrained leaves a model\n", ""),
    (VALUES, VALUES + " * attention_mask"),
    (BOTH, "return (output.logits[:, -logits_to_keep:] if logits_to_keep > 0 else output.logits), values"),
)
right(
    "PolicyWithValueHead",
    "dropout in the head, padding numbered 1",
    (HEAD, "nn.Linear(hidden_size, hidden_size), nn.GELU(), nn.Dropout(0.1), nn.Linear(hidden_size, 1)"),
    (POSITION_IDS, "position_ids = (attention_mask.cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)"),
    (
        VALUES,
        (
            "last_hidden_state = output.hidden_states[len(output.hidden_states) - 1]\n"
            "        values = self.value_head(last_hidden_state).view(input_ids.shape)"
        ),
    ),
    (
        LOAD,
        "self.lm.load_state_dict({name: weight.clone() for name, weight in state_dict.items()}, strict=True)",
    ),
)

# --- 3.2 gather_logprobs --------------------------------------------------------------------------

SHIFTED_IDS = "next_ids = input_ids[:, 1:]"
LOG_SOFTMAX = "F.log_softmax(logits[:, :-1], dim=-1)"
GATHER = "return logprobs.gather(-1, next_ids.unsqueeze(-1)).squeeze(-1)"

wrong(
    "gather_logprobs",
    "You return a column for every token: nothing is shifted. Nothing predicts the first token, and what the last position "
    "predicts is not there.",
    (SHIFTED_IDS, "next_ids = input_ids"),
    (LOG_SOFTMAX, "F.log_softmax(logits, dim=-1)"),
)
wrong(
    "gather_logprobs",
    "You return a column for every token, the first one filled with 0.",
    (
        GATHER,
        "result = logprobs.gather(-1, next_ids.unsqueeze(-1)).squeeze(-1)\n    return F.pad(result, (1, 0))",
    ),
)
wrong(
    "gather_logprobs",
    "You drop the last column and do not shift: each position is read at the token that it has seen already.",
    (SHIFTED_IDS, "next_ids = input_ids[:, :-1]"),
)
wrong(
    "gather_logprobs",
    "You read each token at its own position, whose logits have seen this token already.",
    (LOG_SOFTMAX, "F.log_softmax(logits[:, 1:], dim=-1)"),
)
wrong(
    "gather_logprobs",
    "Your shift goes the wrong way: the logits of a position are read at the token before it.",
    (SHIFTED_IDS, "next_ids = input_ids[:, :-1]"),
    (LOG_SOFTMAX, "F.log_softmax(logits[:, 1:], dim=-1)"),
)
wrong(
    "gather_logprobs",
    "You shift twice: each position is read two tokens later, and a column is missing.",
    (SHIFTED_IDS, "next_ids = input_ids[:, 2:]"),
    (LOG_SOFTMAX, "F.log_softmax(logits[:, :-2], dim=-1)"),
)
wrong(
    "gather_logprobs",
    "You return probabilities: the logarithm is missing.",
    (LOG_SOFTMAX, "F.softmax(logits[:, :-1], dim=-1)"),
)
wrong(
    "gather_logprobs",
    "You return the logits themselves. They are not normalised: the probabilities of a position have to add up to 1.",
    (LOG_SOFTMAX, "logits[:, :-1]"),
)
wrong(
    "gather_logprobs",
    "You normalise over the positions. Which axis holds the tokens that can come next?",
    (LOG_SOFTMAX, "F.log_softmax(logits[:, :-1], dim=1)"),
)
wrong(
    "gather_logprobs",
    "You normalise over the texts of the batch. Which axis holds the tokens that can come next?",
    (LOG_SOFTMAX, "F.log_softmax(logits[:, :-1], dim=0)"),
)
wrong(
    "gather_logprobs",
    "You take the softmax twice: log_softmax expects logits, not probabilities.",
    (LOG_SOFTMAX, "F.log_softmax(logits[:, :-1].softmax(dim=-1), dim=-1)"),
)
wrong(
    "gather_logprobs",
    "Your sign is that of a loss: cross-entropy is minus the log-probability.",
    (GATHER, "return -logprobs.gather(-1, next_ids.unsqueeze(-1)).squeeze(-1)"),
)
wrong(
    "gather_logprobs",
    "Your logarithm has base 2. Nats are asked for: the natural logarithm.",
    (LOG_SOFTMAX, "F.softmax(logits[:, :-1], dim=-1).log2()"),
)
wrong(
    "gather_logprobs",
    "Your logarithm has base 10. Nats are asked for: the natural logarithm.",
    (LOG_SOFTMAX, "F.softmax(logits[:, :-1], dim=-1).log10()"),
)
wrong(
    "gather_logprobs",
    "You divide the logits by a temperature. Log-probabilities here are those of the model as it is.",
    (LOG_SOFTMAX, "F.log_softmax(logits[:, :-1] / 0.9, dim=-1)"),
)
wrong(
    "gather_logprobs",
    "You divide the log-probabilities by a temperature, after the softmax: what comes out is not normalised.",
    (LOG_SOFTMAX, "F.log_softmax(logits[:, :-1], dim=-1) / 0.9"),
)
wrong(
    "gather_logprobs",
    "You compute the softmax in half precision: two or three digits are left.",
    (LOG_SOFTMAX, "F.log_softmax(logits[:, :-1].half(), dim=-1).to(logits.dtype)"),
)
wrong(
    "gather_logprobs",
    "You compute the softmax in bfloat16: two digits are left.",
    (LOG_SOFTMAX, "F.log_softmax(logits[:, :-1].bfloat16(), dim=-1).to(logits.dtype)"),
)
wrong(
    "gather_logprobs",
    "You return the log-probability of the likeliest token, whichever token was really there.",
    (GATHER, "return logprobs.max(dim=-1).values"),
)
wrong(
    "gather_logprobs",
    "You give the likeliest token 0 and measure all others from it: the sum over the vocabulary is missing.",
    (LOG_SOFTMAX, "logits[:, :-1] - logits[:, :-1].amax(dim=-1, keepdim=True)"),
)
wrong(
    "gather_logprobs",
    "You leave out token 0, as if it were padding. The ids do not say what padding is: that is the mask's business.",
    (GATHER, "return logprobs.gather(-1, next_ids.unsqueeze(-1)).squeeze(-1) * (next_ids != 0)"),
)
wrong(
    "gather_logprobs",
    "You sum from the start of the text on: the log-probability of each single token is asked for.",
    (GATHER, "return logprobs.gather(-1, next_ids.unsqueeze(-1)).squeeze(-1).cumsum(dim=-1)"),
)
wrong(
    "gather_logprobs",
    "You average over the text: the log-probability of each single token is asked for.",
    (
        GATHER,
        (
            "result = logprobs.gather(-1, next_ids.unsqueeze(-1)).squeeze(-1)\n"
            "    return result.mean(dim=-1, keepdim=True).expand_as(result)"
        ),
    ),
)
wrong(
    "gather_logprobs",
    "You read the tokens of the first text in every row of the batch.",
    (SHIFTED_IDS, "next_ids = input_ids[:1, 1:].expand(len(input_ids), -1)"),
)
wrong(
    "gather_logprobs",
    "Your .squeeze() without an axis removes every axis of length 1, also that of the batch or of the tokens.",
    (GATHER, "return logprobs.gather(-1, next_ids.unsqueeze(-1)).squeeze()"),
)
wrong(
    "gather_logprobs",
    "You take the logarithm of a softmax: for a very unlikely token the probability is rounded to 0, and its logarithm is "
    "-inf.",
    (LOG_SOFTMAX, "F.softmax(logits[:, :-1], dim=-1).log()"),
)
wrong(
    "gather_logprobs",
    "You add a small number inside the logarithm, which cuts off the log-probability of unlikely tokens.",
    (LOG_SOFTMAX, "(F.softmax(logits[:, :-1], dim=-1) + 1e-10).log()"),
)
wrong(
    "gather_logprobs",
    "You normalise with exp and sum yourself: exp of a large logit is infinite. The largest logit has to be taken off "
    "before.",
    (LOG_SOFTMAX, "logits[:, :-1] - logits[:, :-1].exp().sum(dim=-1, keepdim=True).log()"),
)
wrong(
    "gather_logprobs",
    "You cut the result off from the graph: no gradient reaches the logits.",
    (GATHER, "return logprobs.gather(-1, next_ids.unsqueeze(-1)).squeeze(-1).detach()"),
)
wrong(
    "gather_logprobs",
    "Your gradient leaves out the normalisation, which you cut off from the graph.",
    (LOG_SOFTMAX, "logits[:, :-1] - logits[:, :-1].logsumexp(dim=-1, keepdim=True).detach()"),
)
wrong(
    "gather_logprobs",
    "You change the logits in place: the caller's tensor changes.",
    (
        LOG_SOFTMAX,
        "F.log_softmax(logits[:, :-1], dim=-1)\n    logits.data -= logits.data.amax(dim=-1, keepdim=True)",
    ),
)
wrong(
    "gather_logprobs",
    "You cut log-probabilities off at -100. However unlikely a token is, its log-probability is a number.",
    (GATHER, "return logprobs.gather(-1, next_ids.unsqueeze(-1)).squeeze(-1).clamp(min=-100)"),
)
right(
    "gather_logprobs",
    "cross_entropy with another sign",
    body("""
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), input_ids[:, 1:], reduction="none")
    return -losses
    """),
)
right(
    "gather_logprobs",
    "the logit less logsumexp, shifted afterwards",
    body("""
    normaliser = logits.logsumexp(dim=-1)[:, :-1]
    chosen = torch.take_along_dim(logits[:, :-1], input_ids[:, 1:, None], dim=-1)[..., 0]
    return chosen - normaliser
    """),
)
right(
    "gather_logprobs",
    "one-hot and a sum, in float64",
    body("""
    logprobs = torch.log_softmax(logits.double(), dim=-1)[:, :-1]
    is_token = F.one_hot(input_ids[:, 1:], logits.shape[-1])
    return (logprobs * is_token).sum(dim=-1)
    """),
)
right(
    "gather_logprobs",
    "row by row and token by token",
    body("""
    rows = []
    for row_logits, row_ids in zip(logits, input_ids):
        row = [row_logits[t].log_softmax(0)[row_ids[t + 1]] for t in range(len(row_ids) - 1)]
        rows.append(torch.stack(row))
    return torch.stack(rows)
    """),
)
right(
    "gather_logprobs",
    "a categorical distribution",
    body("""
    distribution = torch.distributions.Categorical(logits=logits[:, :-1])
    return distribution.log_prob(input_ids[:, 1:])
    """),
)

# --- 3.3 shape_token_rewards ----------------------------------------------------------------------

PENALTY = "-kl_coef * (old_logprobs - ref_logprobs)"
IS_LAST = "is_last = valid & (tokens_left == 1)"
SCORE = "is_last * rm_score.unsqueeze(-1)"
TOKEN_REWARDS = f"token_rewards = {PENALTY} + {SCORE}"
ZERO_OUTSIDE = "return token_rewards.where(valid, 0.0)"

wrong(
    "shape_token_rewards",
    "Your penalty has the wrong sign: leaving the reference is rewarded.",
    (PENALTY, "kl_coef * (old_logprobs - ref_logprobs)"),
)
wrong(
    "shape_token_rewards",
    "kl_coef is missing: the penalty counts in full.",
    (PENALTY, "-(old_logprobs - ref_logprobs)"),
)
wrong(
    "shape_token_rewards",
    "There is no penalty: only the score is left.",
    (PENALTY, "0.0 * old_logprobs"),
)
wrong(
    "shape_token_rewards",
    "Your penalty is never a bonus: you cut negative differences off. One token may be liked less than the reference likes "
    "it, and the mean over many tokens needs these, too.",
    (PENALTY, "-kl_coef * (old_logprobs - ref_logprobs).clamp(min=0)"),
)
wrong(
    "shape_token_rewards",
    "Your penalty is the absolute difference. Its sign belongs to the estimate: in the mean over many tokens the two signs "
    "have to cancel.",
    (PENALTY, "-kl_coef * (old_logprobs - ref_logprobs).abs()"),
)
wrong(
    "shape_token_rewards",
    "Your penalty is half the squared difference (the estimate k2). The plain difference is asked for.",
    (PENALTY, "-kl_coef * 0.5 * (old_logprobs - ref_logprobs) ** 2"),
)
wrong(
    "shape_token_rewards",
    "Your penalty is the estimate k3, which is never negative. The plain difference is asked for.",
    (PENALTY, "-kl_coef * ((ref_logprobs - old_logprobs).expm1() - (ref_logprobs - old_logprobs))"),
)
wrong(
    "shape_token_rewards",
    "Your penalty is the difference of two probabilities. That of their logarithms is asked for.",
    (PENALTY, "-kl_coef * (old_logprobs.exp() - ref_logprobs.exp())"),
)
wrong(
    "shape_token_rewards",
    "You weigh the difference by the token's probability. The token was sampled from the policy, so this weight is in "
    "the mean already.",
    (PENALTY, "-kl_coef * old_logprobs.exp() * (old_logprobs - ref_logprobs)"),
)
wrong(
    "shape_token_rewards",
    "You charge the log-probability of the policy alone: the reference is missing.",
    (PENALTY, "-kl_coef * old_logprobs"),
)
wrong(
    "shape_token_rewards",
    "The penalty of the whole response stands at its last token. Each token pays its own.",
    (
        PENALTY,
        "-kl_coef * is_last * ((old_logprobs - ref_logprobs) * valid).sum(dim=-1, keepdim=True)",
    ),
)
wrong(
    "shape_token_rewards",
    "Every token pays the mean penalty of its response. Each token pays its own.",
    (
        PENALTY,
        "-kl_coef * ((old_logprobs - ref_logprobs) * valid).sum(-1, keepdim=True) / valid.sum(-1, keepdim=True)",
    ),
)
wrong(
    "shape_token_rewards",
    "The score stands at every token of the response.",
    (SCORE, "valid * rm_score.unsqueeze(-1)"),
)
wrong(
    "shape_token_rewards",
    "The score is spread evenly over the tokens of the response. It belongs to the last one as a whole.",
    (SCORE, "valid * rm_score.unsqueeze(-1) / valid.sum(-1, keepdim=True)"),
)
wrong(
    "shape_token_rewards",
    "The score stands at the first token of the response.",
    (IS_LAST, "is_last = valid & (valid.cumsum(-1) == 1)"),
)
wrong(
    "shape_token_rewards",
    "The score stands at the token before the last one.",
    (IS_LAST, "is_last = valid & (tokens_left == 2)"),
)
wrong(
    "shape_token_rewards",
    "The score is subtracted.",
    (SCORE, "-1.0 * is_last * rm_score.unsqueeze(-1)"),
)
wrong(
    "shape_token_rewards",
    "You multiply the score by kl_coef, too.",
    (SCORE, "kl_coef * is_last * rm_score.unsqueeze(-1)"),
)
wrong(
    "shape_token_rewards",
    "The score is missing: only the penalty is left.",
    (SCORE, "0.0 * rm_score.unsqueeze(-1)"),
)
wrong(
    "shape_token_rewards",
    "The score takes the place of the last token's penalty. It joins it.",
    (TOKEN_REWARDS, f"token_rewards = torch.where(is_last, rm_score.unsqueeze(-1), {PENALTY})"),
)
wrong(
    "shape_token_rewards",
    "You scale the score with 1 - kl_coef. Score and penalty are added, not blended.",
    (SCORE, "is_last * (1 - kl_coef) * rm_score.unsqueeze(-1)"),
)
wrong(
    "shape_token_rewards",
    "Your scores run along the response instead of along the batch: token t gets the score of response t.",
    (SCORE, "is_last * (rm_score if len(rm_score) == is_last.shape[1] else rm_score.unsqueeze(-1))"),
)
wrong(
    "shape_token_rewards",
    "Your scores do not fit the responses: [batch] beside [batch, response]. Which axis is missing?",
    (SCORE, "is_last * rm_score"),
)
wrong(
    "shape_token_rewards",
    "Every response gets the mean score of the batch.",
    (SCORE, "is_last * rm_score.mean()"),
)
wrong(
    "shape_token_rewards",
    "You take the mean off the scores. Whitening is a later step, and it is done with the advantages.",
    (SCORE, "is_last * (rm_score - (rm_score.mean() if len(rm_score) > 1 else 0.0)).unsqueeze(-1)"),
)
wrong(
    "shape_token_rewards",
    "The score stands in the last column, which is padding in a shorter response.",
    (IS_LAST, "is_last = torch.zeros_like(valid)\n    is_last[:, -1] = True"),
)
wrong(
    "shape_token_rewards",
    "The score stands one token behind the response, on the padding, when there is padding.",
    (
        IS_LAST,
        (
            "end = valid.sum(-1).clamp(max=valid.shape[1] - 1)\n"
            "    is_last = F.one_hot(end, valid.shape[1]).bool()"
        ),
    ),
)
wrong(
    "shape_token_rewards",
    "The score is given only where a 1 of the mask is followed by a 0: a response that reached its limit has no such place.",
    (IS_LAST, "is_last = valid & ~torch.cat([valid[:, 1:], valid[:, -1:]], dim=1)"),
)
wrong(
    "shape_token_rewards",
    "The score is given at each response's last token, counted in the longest response of the batch.",
    (IS_LAST, "is_last = torch.zeros_like(valid)\n    is_last[:, valid.sum(-1).max() - 1] = True"),
)
wrong(
    "shape_token_rewards",
    "You use the number of 1s, less one, as the index of the last one: right only where the mask starts with a 1.",
    (
        IS_LAST,
        "is_last = F.one_hot((valid.sum(-1) - 1).clamp(min=0), valid.shape[1]).bool() & valid.any(-1, keepdim=True)",
    ),
)
wrong(
    "shape_token_rewards",
    "You look for the first 0 of the mask and step one back: a mask that starts with the prompt has its first 0 there.",
    (
        IS_LAST,
        (
            "first_zero = torch.where(valid.all(-1), valid.shape[1], valid.long().argmin(-1))\n"
            "    is_last = F.one_hot((first_zero - 1) % valid.shape[1], valid.shape[1]).bool()"
        ),
    ),
)
wrong(
    "shape_token_rewards",
    "A response without a token gets its score at the last column.",
    (
        ZERO_OUTSIDE,
        (
            "token_rewards = token_rewards.where(valid, 0.0)\n"
            "    token_rewards[:, -1] += torch.where(valid.any(-1), 0.0, rm_score)\n    return token_rewards"
        ),
    ),
)
wrong(
    "shape_token_rewards",
    "A response without a token gets its score at the first column.",
    (
        ZERO_OUTSIDE,
        (
            "token_rewards = token_rewards.where(valid, 0.0)\n"
            "    token_rewards[:, 0] += torch.where(valid.any(-1), 0.0, rm_score)\n    return token_rewards"
        ),
    ),
)
wrong(
    "shape_token_rewards",
    "Your rewards have the mask's own type, so that an integer mask cuts off everything after the decimal point.",
    (ZERO_OUTSIDE, "return token_rewards.where(valid, 0.0).to(response_mask.dtype)"),
)
wrong(
    "shape_token_rewards",
    "You compute 1 - mask, which does not work for bools.",
    (ZERO_OUTSIDE, "return token_rewards.masked_fill((1 - response_mask).bool(), 0.0)"),
)
wrong(
    "shape_token_rewards",
    "You compute the penalty in the old log-probabilities in place: the caller's tensor changes.",
    (
        TOKEN_REWARDS,
        f"token_rewards = old_logprobs.sub_(ref_logprobs).mul_(-kl_coef) + {SCORE}",
    ),
)
wrong(
    "shape_token_rewards",
    "You change the mask in place.",
    (
        ZERO_OUTSIDE,
        "result = token_rewards.where(valid, 0.0)\n    response_mask[is_last] = 0\n    return result",
    ),
)
wrong(
    "shape_token_rewards",
    "The penalty is not masked: padded positions pay, too.",
    (ZERO_OUTSIDE, "return token_rewards"),
)
wrong(
    "shape_token_rewards",
    "You limit the score. A very good response has to be worth what the reward says.",
    ("is_last * rm_score.unsqueeze(-1)", "is_last * rm_score.clamp(-5, 5).unsqueeze(-1)"),
)
wrong(
    "shape_token_rewards",
    "You limit the penalty. The further a token goes from the reference, the more it costs.",
    ("-kl_coef * (old_logprobs - ref_logprobs)", "-kl_coef * (old_logprobs - ref_logprobs).clamp(-5, 5)"),
)
wrong(
    "shape_token_rewards",
    "You have changed the default of `kl_coef` in the signature.",
    ("kl_coef: float = 0.05", "kl_coef: float = 0.1"),
)
right(
    "shape_token_rewards",
    "row by row, the last index from nonzero",
    body("""
    result = torch.zeros_like(old_logprobs)
    for row in range(len(rm_score)):
        places = response_mask[row].nonzero().flatten()
        if len(places) == 0:
            continue
        result[row, places] = kl_coef * (ref_logprobs - old_logprobs)[row, places]
        result[row, places[-1]] += rm_score[row]
    return result
    """),
)
right(
    "shape_token_rewards",
    "the largest index times the mask, scatter_add",
    body("""
    real = response_mask.to(old_logprobs.dtype)
    places = torch.arange(response_mask.shape[1], device=response_mask.device)
    last = (real * places).argmax(dim=-1, keepdim=True)
    score = rm_score[:, None] * real.gather(1, last)
    return (-kl_coef * (old_logprobs - ref_logprobs) * real).scatter_add(1, last, score)
    """),
)
right(
    "shape_token_rewards",
    "the last 1 is the first 1 of the flipped mask",
    body("""
    real = response_mask.float()
    from_the_right = real.flip(dims=[1]).argmax(dim=1)
    last = response_mask.shape[1] - 1 - from_the_right
    penalty = kl_coef * (old_logprobs - ref_logprobs)
    rewards = torch.where(real > 0, -penalty, torch.zeros_like(penalty))
    rewards[torch.arange(len(last)), last] += rm_score * (real.sum(1) > 0)
    return rewards
    """),
)
right(
    "shape_token_rewards",
    "a 1 followed by a 0 in a mask with one more column, in float64",
    body("""
    valid = torch.nn.functional.pad(response_mask.long(), (0, 1))
    counts = valid.flip(1).cumsum(1).flip(1)
    is_last = ((valid == 1) & (counts == 1))[:, :-1].double()
    rewards = is_last * rm_score.double()[:, None] - kl_coef * (old_logprobs.double() - ref_logprobs.double())
    return rewards * response_mask
    """),
)

# --- 3.3 compute_gae ------------------------------------------------------------------------------

TD_ERROR = "rewards[:, t] + gamma * next_value - values[:, t]"
RUNNING_SUM = "td_error + gamma * lam * next_advantage"
NEXT_VALUE = "next_value = values[:, t].where(valid[:, t], 0.0)"
NEXT_ADVANTAGE = "next_advantage = advantage.where(valid[:, t], 0.0)"
RETURNS = "returns = (advantages + values).where(valid, 0.0)"

wrong(
    "compute_gae",
    "Your TD error leaves out the value of the next state.",
    (TD_ERROR, "rewards[:, t] - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error leaves out the value of the state before the token.",
    (TD_ERROR, "rewards[:, t] + gamma * next_value"),
)
wrong(
    "compute_gae",
    "Your advantages sum rewards alone: no value enters them.",
    (TD_ERROR, "rewards[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error leaves out the reward.",
    (TD_ERROR, "gamma * next_value - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error has the opposite sign: when a token went better than the critic expected, its advantage is positive.",
    (TD_ERROR, "values[:, t] - rewards[:, t] - gamma * next_value"),
)
wrong(
    "compute_gae",
    "Your TD error adds the value of the state before the token. It is what the critic expected already: which sign does "
    "an expectation have in a surprise?",
    (TD_ERROR, "rewards[:, t] + gamma * next_value + values[:, t]"),
)
wrong(
    "compute_gae",
    "The two values in your TD error are exchanged: which of the two states is the earlier one?",
    (TD_ERROR, "rewards[:, t] + gamma * values[:, t] - next_value"),
)
wrong(
    "compute_gae",
    "The value of the next state is not discounted by gamma in your TD error.",
    (TD_ERROR, "rewards[:, t] + next_value - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error discounts both values by gamma. The state before the token is not in the future.",
    (TD_ERROR, "rewards[:, t] + gamma * (next_value - values[:, t])"),
)
wrong(
    "compute_gae",
    "Your TD error discounts the reward, too. The reward of a token comes with the token, not one step later.",
    (TD_ERROR, "gamma * (rewards[:, t] + next_value) - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error discounts the next value by lambda. Lambda blends TD errors; what discounts the future?",
    (TD_ERROR, "rewards[:, t] + lam * next_value - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error discounts the next value by gamma and by lambda. Lambda has no place in a single TD error.",
    (TD_ERROR, "rewards[:, t] + gamma * lam * next_value - values[:, t]"),
)
wrong(
    "compute_gae",
    "Your TD error takes the reward of the following token.",
    (
        TD_ERROR,
        "(rewards[:, t + 1] if t + 1 < rewards.shape[1] else 0.0 * rewards[:, t]) + gamma * next_value - values[:, t]",
    ),
)
wrong(
    "compute_gae",
    "Your running sum is not discounted by lambda.",
    (RUNNING_SUM, "td_error + gamma * next_advantage"),
)
wrong(
    "compute_gae",
    "Your running sum is not discounted by gamma.",
    (RUNNING_SUM, "td_error + lam * next_advantage"),
)
wrong(
    "compute_gae",
    "Your running sum is not discounted at all: neither by gamma nor by lambda.",
    (RUNNING_SUM, "td_error + next_advantage"),
)
wrong(
    "compute_gae",
    "Your running sum counts later TD errors by 1 - lambda. How much should one count when lambda is 0?",
    (RUNNING_SUM, "td_error + gamma * (1 - lam) * next_advantage"),
)
wrong(
    "compute_gae",
    "Your advantage is a weighted mean of the TD error and what follows: the TD error itself must not be scaled.",
    (RUNNING_SUM, "(1 - gamma * lam) * td_error + gamma * lam * next_advantage"),
)
wrong(
    "compute_gae",
    "Your running sum is forgotten at every token: each advantage is one TD error alone.",
    (RUNNING_SUM, "td_error"),
)
wrong(
    "compute_gae",
    "Your sum counts the discount from the start of the response. It starts anew at each token.",
    body("""
    valid = mask.bool()
    next_values = torch.cat([(values * mask)[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    td_errors = (rewards + gamma * next_values - values).where(valid, 0.0)
    discount = (gamma * lam) ** torch.arange(rewards.shape[1])
    advantages = (td_errors * discount).flip(1).cumsum(1).flip(1).where(valid, 0.0)
    return advantages, (advantages + values).where(valid, 0.0)
    """),
)
wrong(
    "compute_gae",
    "Your loop runs from the first token to the last. An advantage is made of what comes later, so it has to know the end "
    "first.",
    ("reversed(range(rewards.shape[1]))", "range(rewards.shape[1])"),
)
wrong(
    "compute_gae",
    "Your loop leaves out the last token.",
    ("reversed(range(rewards.shape[1]))", "reversed(range(rewards.shape[1] - 1))"),
)
wrong(
    "compute_gae",
    "Your loop leaves out the first token.",
    ("reversed(range(rewards.shape[1]))", "range(rewards.shape[1] - 1, 0, -1)"),
)
wrong(
    "compute_gae",
    "After the last token you use its own value again. The response is over: there is no state after it.",
    (
        "next_value = next_advantage = torch.zeros_like(rewards[:, 0])",
        "next_advantage = torch.zeros_like(rewards[:, 0])\n    next_value = values[:, -1]",
    ),
)
wrong(
    "compute_gae",
    "The last real token of every row gets its own value as the value of what follows. The response is over there, by EOS "
    "or by its limit: no state follows.",
    (
        "advantages = torch.zeros_like(rewards)",
        (
            "ends = valid & ~torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], dim=1)\n"
            "    advantages = torch.zeros_like(rewards)"
        ),
    ),
    (TD_ERROR, "rewards[:, t] + gamma * values[:, t].where(ends[:, t], next_value) - values[:, t]"),
)
wrong(
    "compute_gae",
    "The value of a padded position enters the TD error of the last real token.",
    (NEXT_VALUE, "next_value = values[:, t]"),
)
wrong(
    "compute_gae",
    "The running sum of the padded positions reaches the last real token.",
    (NEXT_ADVANTAGE, "next_advantage = advantage"),
)
wrong(
    "compute_gae",
    "You mask your result and not the recursion: values and running sum come from the padding into the last real token.",
    (NEXT_VALUE, "next_value = values[:, t]"),
    (NEXT_ADVANTAGE, "next_advantage = advantage"),
    (RETURNS, "advantages = advantages.where(valid, 0.0)\n    " + RETURNS),
)
wrong(
    "compute_gae",
    "You mask the rewards and leave the values of padded positions in the recursion.",
    (
        "advantages = torch.zeros_like(rewards)",
        "rewards = rewards * mask\n    advantages = torch.zeros_like(rewards)",
    ),
    (NEXT_VALUE, "next_value = values[:, t]"),
    (NEXT_ADVANTAGE, "next_advantage = advantage"),
)
wrong(
    "compute_gae",
    "You mask the values and leave the rewards of padded positions in the recursion.",
    (
        "advantages = torch.zeros_like(rewards)",
        "values = values * mask\n    advantages = torch.zeros_like(rewards)",
    ),
    (NEXT_ADVANTAGE, "next_advantage = advantage"),
)
wrong(
    "compute_gae",
    "At a padded position you keep the last value that you saw, which lies further right: also a padded one.",
    (
        "next_value = next_advantage = torch.zeros_like(rewards[:, 0])",
        (
            "next_advantage = torch.zeros_like(rewards[:, 0])\n"
            "    next_value = values[:, -1].where(~valid[:, -1], 0.0)"
        ),
    ),
    (NEXT_VALUE, "next_value = values[:, t].where(valid[:, t], next_value)"),
)
wrong(
    "compute_gae",
    "You cut the last real token of a padded response off: the mask that belongs to the next state is applied to this "
    "token.",
    (
        RETURNS,
        "shifted = torch.cat([valid[:, 1:], valid[:, -1:]], dim=1)\n"
        "    advantages = advantages.where(shifted, 0.0)\n    " + RETURNS,
    ),
)
wrong(
    "compute_gae",
    "Every row is cut at the length of the shortest one.",
    ("valid = mask.bool()", "valid = mask.bool() & (torch.arange(mask.shape[1]) < mask.sum(-1).min())"),
)
wrong(
    "compute_gae",
    "Your loop runs over the rows of the batch instead of the tokens of a response.",
    body("""
    valid = mask.bool()
    advantages = torch.zeros_like(rewards)
    next_value = next_advantage = torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        td_error = rewards[t] + gamma * next_value - values[t]
        next_advantage = (td_error + gamma * lam * next_advantage).where(valid[t], 0.0)
        next_value = values[t].where(valid[t], 0.0)
        advantages[t] = next_advantage
    return advantages, (advantages + values).where(valid, 0.0)
    """),
)
wrong(
    "compute_gae",
    "Your running sum is one number for the whole batch: what one row carries along reaches the others.",
    (RUNNING_SUM, "td_error + gamma * lam * next_advantage.mean()"),
)
wrong(
    "compute_gae",
    "Your returns are the advantages: the value is missing that they are measured from.",
    (RETURNS, "returns = advantages.clone()"),
)
wrong(
    "compute_gae",
    "Your returns subtract the values. They were subtracted in the advantage already: undo that.",
    (RETURNS, "returns = (advantages - values).where(valid, 0.0)"),
)
wrong(
    "compute_gae",
    "Your returns are advantage plus reward. The advantage was measured from the critic's value, not from the reward.",
    (RETURNS, "returns = (advantages + rewards).where(valid, 0.0)"),
)
wrong(
    "compute_gae",
    "Your returns are the discounted sums of the rewards. The target of the critic here goes with the advantages, and so "
    "depends on lambda.",
    (
        RETURNS,
        (
            "returns, later = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])\n"
            "    for t in reversed(range(rewards.shape[1])):\n"
            "        later = (rewards[:, t] + gamma * later).where(valid[:, t], 0.0)\n"
            "        returns[:, t] = later"
        ),
    ),
)
wrong(
    "compute_gae",
    "Your returns are one-step targets: reward plus the value that follows. With lambda above 0 they look further.",
    (
        RETURNS,
        (
            "following = torch.cat([(values * mask)[:, 1:], torch.zeros_like(values[:, :1])], dim=1)\n"
            "    returns = (rewards + gamma * following).where(valid, 0.0)"
        ),
    ),
)
wrong(
    "compute_gae",
    "Your returns add the value of the next state: it is one step late.",
    (
        RETURNS,
        (
            "following = torch.cat([(values * mask)[:, 1:], torch.zeros_like(values[:, :1])], dim=1)\n"
            "    returns = (advantages + following).where(valid, 0.0)"
        ),
    ),
)
wrong(
    "compute_gae",
    "You whiten the advantages, and the returns are built from the whitened ones. Whitening comes later, and the critic's "
    "target is not on that scale.",
    (RETURNS, "advantages = masked_whiten(advantages, mask)\n    " + RETURNS),
)
wrong(
    "compute_gae",
    "You whiten the advantages here. Whitening is a step of its own, after this function.",
    (RETURNS, RETURNS + "\n    advantages = masked_whiten(advantages, mask)"),
)
wrong(
    "compute_gae",
    "You take the mask's own type for the advantages, so that an integer mask cuts off everything after the decimal point.",
    ("torch.zeros_like(rewards)\n", "torch.zeros_like(mask)\n"),
)
wrong(
    "compute_gae",
    "Your code does arithmetic with the mask that does not work for bools.",
    ("valid = mask.bool()", "valid = (1 - mask) == 0"),
)
wrong(
    "compute_gae",
    "A gradient flows through advantages and returns into the values.",
    ("@torch.no_grad()\n", ""),
)
wrong(
    "compute_gae",
    "A gradient flows through your returns into the values.",
    ("@torch.no_grad()\n", ""),
    (RETURNS, "advantages = advantages.detach()\n    " + RETURNS),
)
wrong(
    "compute_gae",
    "You set the padding of rewards and values to 0 in place: the caller's tensors change.",
    (
        "advantages = torch.zeros_like(rewards)",
        "rewards *= valid\n    values *= valid\n    advantages = torch.zeros_like(rewards)",
    ),
)
wrong(
    "compute_gae",
    "You write the advantages into the rewards: the caller's tensor changes.",
    ("advantages = torch.zeros_like(rewards)", "advantages = rewards"),
)
wrong(
    "compute_gae",
    "Your returns are not 0 on the padding: the values of padded positions are left there.",
    (RETURNS, "returns = advantages + values"),
)
wrong(
    "compute_gae",
    "Your advantages and returns are not 0 on the padding.",
    ("advantages[:, t] = next_advantage", "advantages[:, t] = advantage"),
    (RETURNS, "returns = advantages + values"),
)
wrong(
    "compute_gae",
    "You limit the advantages. How much better a token was than expected has no limit.",
    (RETURNS, "advantages = advantages.clamp(-50, 50)\n    " + RETURNS),
)
wrong(
    "compute_gae",
    "You limit the rewards. A very good response has to be worth what the reward says.",
    ("valid = mask.bool()", "valid, rewards = mask.bool(), rewards.clamp(-20, 20)"),
)
for name, default, other in (("gamma", "1.0", "0.99"), ("lam", "0.95", "1.0")):
    wrong(
        "compute_gae",
        f"You have changed the default of `{name}` in the signature.",
        (f"    {name}: float = {default}", f"    {name}: float = {other}"),
    )
right(
    "compute_gae",
    "row by row, without a mask in the recursion",
    body("""
    advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for row in range(len(rewards)):
        length = int(mask[row].sum())
        running, following = 0.0, 0.0
        for t in range(length - 1, -1, -1):
            running = rewards[row, t] + gamma * following - values[row, t] + gamma * lam * running
            following = values[row, t]
            advantages[row, t] = running
            returns[row, t] = running + values[row, t]
    return advantages, returns
    """),
)
right(
    "compute_gae",
    "rewards and values masked before a recursion without a mask",
    body("""
    mask = mask.to(rewards.dtype)
    rewards, values = rewards * mask, values * mask
    running = 0.0
    reversed_advantages = []
    for t in range(rewards.shape[1] - 1, -1, -1):
        next_value = values[:, t + 1] if t + 1 < rewards.shape[1] else 0.0
        running = rewards[:, t] + gamma * next_value - values[:, t] + gamma * lam * running
        reversed_advantages.append(running)
    advantages = torch.stack(reversed_advantages[::-1], dim=1) * mask
    return advantages, (advantages + values) * mask
    """),
)
right(
    "compute_gae",
    "a matrix of discounts, in float64",
    body("""
    real = mask.double()
    kept = values.double() * real
    following = torch.cat([kept[:, 1:], torch.zeros_like(kept[:, :1])], dim=1)
    td_errors = (rewards.double() * real + gamma * following - kept) * real
    steps = torch.arange(rewards.shape[1])
    distance = steps[:, None] - steps[None, :]
    discounts = torch.where(distance >= 0, (gamma * lam) ** distance.clamp(min=0).double(), 0.0)
    advantages = td_errors @ discounts * real
    return advantages.to(rewards.dtype), ((advantages + kept) * real).to(rewards.dtype)
    """),
)
right(
    "compute_gae",
    "the recursion of lambda-returns, advantages from them",
    body("""
    valid = mask.bool()
    targets = torch.zeros_like(rewards)
    target = value = torch.zeros(len(rewards), dtype=rewards.dtype, device=rewards.device)
    for t in range(rewards.shape[1])[::-1]:
        target = rewards[:, t] + gamma * ((1 - lam) * value + lam * target)
        target = torch.where(valid[:, t], target, torch.zeros_like(target))
        value = torch.where(valid[:, t], values[:, t], torch.zeros_like(target))
        targets[:, t] = target
    return (targets - values).masked_fill(~valid, 0.0), targets
    """),
)
right(
    "compute_gae",
    "a flag that says whether the next position is real, results as a list",
    body("""
    real = mask.float()
    goes_on = torch.cat([real[:, 1:], torch.zeros_like(real[:, :1])], dim=1)
    following = torch.roll(values, -1, dims=1)
    td_errors = rewards + gamma * following * goes_on - values
    advantages = td_errors.clone()
    for t in reversed(range(rewards.shape[1] - 1)):
        advantages[:, t] += gamma * lam * goes_on[:, t] * advantages[:, t + 1]
    return [advantages * real, (advantages + values) * real]
    """),
)

# --- 3.3 masked_whiten ----------------------------------------------------------------------------

MEAN = "mean = masked_mean(x, mask)"
VARIANCE = "variance = masked_mean((x - mean) ** 2, mask)"
WHITENED = "whitened = (x - mean) / (variance + eps).sqrt()"
KEPT = "return whitened.where(mask.bool(), 0.0)"

wrong(
    "masked_whiten",
    "You give the numbers back as they are.",
    (WHITENED, "whitened = x"),
)
wrong(
    "masked_whiten",
    "You scale and do not shift: the mean is left in.",
    (WHITENED, "whitened = x / (variance + eps).sqrt()"),
)
wrong(
    "masked_whiten",
    "You add the mean back after the scaling. That is for rewards sometimes; advantages have to have mean 0.",
    (WHITENED, "whitened = (x - mean) / (variance + eps).sqrt() + mean"),
)
wrong(
    "masked_whiten",
    "You scale first and then take off the mean of the numbers as they were before.",
    (WHITENED, "whitened = x / (variance + eps).sqrt() - mean"),
)
wrong(
    "masked_whiten",
    "You shift and do not scale: the spread stays as it was.",
    (WHITENED, "whitened = x - mean"),
)
wrong(
    "masked_whiten",
    "You divide by the variance. Its unit is the square of that of x.",
    (WHITENED, "whitened = (x - mean) / (variance + eps)"),
)
wrong(
    "masked_whiten",
    "You multiply by the standard deviation.",
    (WHITENED, "whitened = (x - mean) * (variance + eps).sqrt()"),
)
wrong(
    "masked_whiten",
    "Your variance is measured from 0, not from the mean.",
    (VARIANCE, "variance = masked_mean(x**2, mask)"),
)
wrong(
    "masked_whiten",
    "You divide by the mean absolute deviation, not by the standard deviation.",
    (VARIANCE, "variance = masked_mean((x - mean).abs(), mask) ** 2"),
)
wrong(
    "masked_whiten",
    "You divide by the largest deviation, not by the standard deviation.",
    (VARIANCE, "variance = ((x - mean).abs() * mask).max() ** 2"),
)
wrong(
    "masked_whiten",
    "You scale to the range from the smallest to the largest number. Mean 0 and variance 1 are asked for.",
    (WHITENED, "whitened = (x - x[mask.bool()].min()) / (x[mask.bool()].max() - x[mask.bool()].min() + eps)"),
)
wrong(
    "masked_whiten",
    "Your variance is a sum: it is not divided by the number of tokens.",
    (VARIANCE, "variance = ((x - mean) ** 2 * mask).sum()"),
)
wrong(
    "masked_whiten",
    "You whiten each row on its own: a response that is better than the others no longer is.",
    (
        MEAN,
        (
            "real = mask.to(x.dtype)\n"
            "    n_tokens = real.sum(dim=-1, keepdim=True).clamp(min=1)\n"
            "    mean = (x * real).sum(dim=-1, keepdim=True) / n_tokens"
        ),
    ),
    (VARIANCE, "variance = ((x - mean) ** 2 * real).sum(dim=-1, keepdim=True) / n_tokens"),
)
wrong(
    "masked_whiten",
    "You take off the mean of each row and divide by one standard deviation of them all.",
    (
        MEAN,
        (
            "real = mask.to(x.dtype)\n"
            "    mean = (x * real).sum(dim=-1, keepdim=True) / real.sum(dim=-1, keepdim=True).clamp(min=1)"
        ),
    ),
)
wrong(
    "masked_whiten",
    "You whiten each column, a position of the responses, on its own.",
    (
        MEAN,
        (
            "real = mask.to(x.dtype)\n"
            "    n_tokens = real.sum(dim=0, keepdim=True).clamp(min=1)\n"
            "    mean = (x * real).sum(dim=0, keepdim=True) / n_tokens"
        ),
    ),
    (VARIANCE, "variance = ((x - mean) ** 2 * real).sum(dim=0, keepdim=True) / n_tokens"),
)
wrong(
    "masked_whiten",
    "Your mean and your variance are those of all positions: the padding is in both.",
    (MEAN, "mean = x.mean()"),
    (VARIANCE, "variance = x.var(correction=0)"),
)
wrong(
    "masked_whiten",
    "The padding is in your mean.",
    (MEAN, "mean = x.mean()"),
)
wrong(
    "masked_whiten",
    "The padding is in your variance.",
    (VARIANCE, "variance = ((x - mean) ** 2).mean()"),
)
wrong(
    "masked_whiten",
    "Your mean sums the real tokens alone, and divides by the number of all positions.",
    (MEAN, "mean = (x * mask).sum() / mask.numel()"),
)
wrong(
    "masked_whiten",
    "Your variance sums the real tokens alone, and divides by the number of all positions.",
    (VARIANCE, "variance = ((x - mean) ** 2 * mask).sum() / mask.numel()"),
)
wrong(
    "masked_whiten",
    "You set the padding to 0 and then average over all positions: these 0s count.",
    (MEAN, "x = x * mask\n    mean = x.mean()"),
    (VARIANCE, "variance = ((x - mean) ** 2).mean()"),
)
wrong(
    "masked_whiten",
    "You set the padding to 0 before the mean is taken off, so that in the variance each padded position counts as 0 minus "
    "the mean.",
    (MEAN, "x = x * mask\n    " + MEAN),
    (VARIANCE, "variance = ((x - mean) ** 2).sum() / mask.sum()"),
)
wrong(
    "masked_whiten",
    "The sum in your mean has the padding in it; only the number of tokens is counted on the mask.",
    (MEAN, "mean = x.sum() / mask.sum()"),
)
wrong(
    "masked_whiten",
    "You average the means of the rows, so that a token of a short response counts more.",
    (MEAN, "mean = ((x * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)).mean()"),
)
wrong(
    "masked_whiten",
    "You index with the mask as it comes. An integer mask picks rows 0 and 1, not positions.",
    (MEAN, "mean = x[mask].mean()"),
    (VARIANCE, "variance = x[mask].var(correction=0)"),
)
wrong(
    "masked_whiten",
    "You compute 1 - mask, which does not work for bools.",
    (KEPT, "return whitened.masked_fill((1 - mask).bool(), 0.0)"),
)
wrong(
    "masked_whiten",
    "Nothing keeps your denominator from 0: eps is not used.",
    (WHITENED, "whitened = (x - mean) / variance.sqrt()"),
)
wrong(
    "masked_whiten",
    "You use the sample variance as torch computes it: for a single token it is 0 divided by 0.",
    (VARIANCE, "variance = x[mask.bool()].var()"),
)
wrong(
    "masked_whiten",
    "With a single token you give up and return the numbers as they are.",
    (MEAN, "if mask.sum() < 2:\n        return x * mask\n    " + MEAN),
)
wrong(
    "masked_whiten",
    "You change x in place: the caller's tensor changes.",
    (WHITENED, "whitened = x.sub_(mean).div_((variance + eps).sqrt())"),
)
wrong(
    "masked_whiten",
    "You change x in place: the caller's tensor changes.",
    (MEAN, "x *= mask\n    " + MEAN),
)
wrong(
    "masked_whiten",
    "You leave numbers on the padding.",
    (KEPT, "return whitened"),
)
wrong(
    "masked_whiten",
    "You leave the original numbers on the padding.",
    (KEPT, "return whitened.where(mask.bool(), x)"),
)
wrong(
    "masked_whiten",
    "You limit the whitened numbers to 3 standard deviations. An outlier has to stay one.",
    (KEPT, "return whitened.clamp(-3, 3).where(mask.bool(), 0.0)"),
)
wrong(
    "masked_whiten",
    "You have written a number where `eps` belongs.",
    (WHITENED, "whitened = (x - mean) / (variance + 1e-8).sqrt()"),
)
wrong(
    "masked_whiten",
    "You have written a number where `eps` belongs, and one so large that the variance is no longer 1.",
    (WHITENED, "whitened = (x - mean) / (variance + 1e-2).sqrt()"),
)
wrong(
    "masked_whiten",
    "Your variance is a difference of two large numbers: where all numbers are equal, rounding makes it negative.",
    (VARIANCE, "variance = masked_mean(x * x, mask) - mean**2"),
)
right(
    "masked_whiten",
    "the sample variance, guarded for a single token",
    (VARIANCE, "variance = ((x - mean) ** 2 * mask).sum() / (mask.sum() - 1).clamp(min=1)"),
    differs=True,
)
right(
    "masked_whiten",
    "the real tokens picked out and put back",
    body("""
    valid = mask.bool()
    picked = x[valid]
    result = torch.zeros_like(x)
    result[valid] = (picked - picked.mean()) * torch.rsqrt(picked.var(unbiased=False) + eps)
    return result
    """),
)
right(
    "masked_whiten",
    "eps added to the standard deviation, the mask multiplied in",
    body("""
    real = mask.float()
    n_tokens = real.sum()
    mean = (x * real).sum() / n_tokens
    centred = (x - mean) * real
    std = (centred.pow(2).sum() / n_tokens) ** 0.5
    return centred / (std + eps)
    """),
)
right(
    "masked_whiten",
    "the mean of the squares less the square of the mean, in float64",
    body("""
    real = mask.double()
    numbers = x.double()
    mean = (numbers * real).sum() / real.sum()
    variance = ((numbers**2 * real).sum() / real.sum() - mean**2).clamp(min=0)
    return ((numbers - mean) / torch.sqrt(variance + eps) * real).to(x.dtype)
    """),
)

# --- 3.4 ppo_losses -------------------------------------------------------------------------------

LOG_RATIO = "log_ratio = (new_logprobs - old_logprobs).where(mask.bool(), 0.0)"
RATIO = "ratio = log_ratio.exp()"
UNCLIPPED = "unclipped = -advantages * ratio\n"
CLIPPED = "clipped = -advantages * ratio.clamp(1 - clip_range, 1 + clip_range)"
WORSE = "torch.maximum(unclipped, clipped)"
POLICY_LOSS = f"policy_loss = masked_mean({WORSE}, mask)"
VALUES_CLIPPED = (
    "values_clipped = old_values + (new_values - old_values).clamp(-clip_range_value, clip_range_value)"
)
SQUARED_ERROR = "squared_error = torch.maximum((new_values - returns) ** 2, (values_clipped - returns) ** 2)"
VALUE_LOSS = "value_loss = 0.5 * masked_mean(squared_error, mask)"
APPROX_KL = "approx_kl = masked_mean((ratio - 1) - log_ratio, mask)"
CLIPFRAC = "clipfrac = masked_mean(((ratio - 1).abs() > clip_range).float(), mask)"
TOTAL = "return policy_loss + vf_coef * value_loss, info"
OLD_DETACHED = "old_logprobs, old_values = old_logprobs.detach(), old_values.detach()"
TARGETS_DETACHED = "advantages, returns = advantages.detach(), returns.detach()"

wrong(
    "ppo_losses",
    "Your policy loss has the wrong sign. It is minimised: what went well has to make it smaller.",
    (POLICY_LOSS, "policy_loss = -masked_mean(torch.maximum(unclipped, clipped), mask)"),
)
wrong(
    "ppo_losses",
    "Your policy loss rises with what went well, since the minus in front of the advantage is missing in both candidates.",
    (UNCLIPPED, "unclipped = advantages * ratio\n"),
    (CLIPPED, "clipped = advantages * ratio.clamp(1 - clip_range, 1 + clip_range)"),
)
wrong(
    "ppo_losses",
    "The advantages are missing in your policy loss: every token is pushed up alike.",
    (UNCLIPPED, "unclipped = -ratio\n"),
    (CLIPPED, "clipped = -ratio.clamp(1 - clip_range, 1 + clip_range)"),
)
wrong(
    "ppo_losses",
    "You whiten the advantages here. They are used as they are given: whitening once, before the epochs, is enough.",
    (LOG_RATIO, "advantages = masked_whiten(advantages, mask)\n    " + LOG_RATIO),
)
wrong(
    "ppo_losses",
    "You use the returns in place of the advantages.",
    (UNCLIPPED, "unclipped = -returns * ratio\n"),
    (CLIPPED, "clipped = -returns * ratio.clamp(1 - clip_range, 1 + clip_range)"),
)
wrong(
    "ppo_losses",
    "Your policy loss is a sum over the tokens, not their mean.",
    (POLICY_LOSS, "policy_loss = (torch.maximum(unclipped, clipped) * mask).sum()"),
)
wrong(
    "ppo_losses",
    "Your policy loss is the plain policy gradient: advantage times log-probability. The old policy is not in it.",
    (POLICY_LOSS, "policy_loss = masked_mean(-advantages * new_logprobs, mask)"),
)
wrong(
    "ppo_losses",
    "Your ratio is upside down: how much likelier is the token now than it was?",
    (RATIO, "ratio = (-log_ratio).exp()"),
    (APPROX_KL, "approx_kl = masked_mean((1 / ratio - 1) - log_ratio, mask)"),
    (CLIPFRAC, "clipfrac = masked_mean(((1 / ratio - 1).abs() > clip_range).float(), mask)"),
)
wrong(
    "ppo_losses",
    "Your ratio is the difference of the log-probabilities: the exponential is missing.",
    (RATIO, "ratio = log_ratio"),
)
wrong(
    "ppo_losses",
    "Your ratio divides two log-probabilities. The ratio of two probabilities is asked for.",
    (RATIO, "ratio = (new_logprobs / old_logprobs).where(mask.bool(), 1.0)"),
)
wrong(
    "ppo_losses",
    "Your ratio is 1 plus the log-ratio, which is right near 1 only.",
    (RATIO, "ratio = 1 + log_ratio"),
)
wrong(
    "ppo_losses",
    "Your ratio compares the new log-probabilities with themselves: it is always 1, and the old policy is ignored.",
    (LOG_RATIO, "log_ratio = (new_logprobs - new_logprobs.detach()).where(mask.bool(), 0.0)"),
)
wrong(
    "ppo_losses",
    "Your ratio is that of the whole response, not of each token: you sum the log-ratios.",
    (RATIO, "ratio = log_ratio.sum(dim=-1, keepdim=True).exp().expand_as(log_ratio)"),
)
wrong(
    "ppo_losses",
    "Your policy loss has no clip.",
    (WORSE, "unclipped"),
)
wrong(
    "ppo_losses",
    "Your policy loss knows the clipped candidate only: a token that has moved the wrong way gets no gradient back.",
    (WORSE, "clipped"),
)
wrong(
    "ppo_losses",
    "You take the smaller of the two losses. The minimum in the paper is of gains, before the sign is turned: what is it of "
    "losses?",
    (WORSE, "torch.minimum(unclipped, clipped)"),
)
wrong(
    "ppo_losses",
    "You choose between the clipped and the unclipped ratio before the advantage comes in: for a negative advantage the "
    "choice is the other one.",
    (
        POLICY_LOSS,
        (
            "worse = torch.minimum(ratio, ratio.clamp(1 - clip_range, 1 + clip_range))\n"
            "    policy_loss = masked_mean(-advantages * worse, mask)"
        ),
    ),
)
wrong(
    "ppo_losses",
    "You clip at the top only.",
    (CLIPPED, "clipped = -advantages * ratio.clamp(max=1 + clip_range)"),
)
wrong(
    "ppo_losses",
    "You clip at the bottom only.",
    (CLIPPED, "clipped = -advantages * ratio.clamp(min=1 - clip_range)"),
)
wrong(
    "ppo_losses",
    "You clip the ratio with clip_range_value. That is the range of the values.",
    (CLIPPED, "clipped = -advantages * ratio.clamp(1 - clip_range_value, 1 + clip_range_value)"),
)
wrong(
    "ppo_losses",
    "Your clip range is 0.2, whatever clip_range says.",
    (CLIPPED, "clipped = -advantages * ratio.clamp(0.8, 1.2)"),
)
wrong(
    "ppo_losses",
    "You clip the log-ratio instead of the ratio.",
    (CLIPPED, "clipped = -advantages * log_ratio.clamp(-clip_range, clip_range).exp()"),
)
wrong(
    "ppo_losses",
    "You clip the ratio around 0: it stays between -clip_range and clip_range.",
    (CLIPPED, "clipped = -advantages * ratio.clamp(-clip_range, clip_range)"),
)
wrong(
    "ppo_losses",
    "You clip the product of advantage and ratio. The ratio alone is clipped.",
    (CLIPPED, "clipped = (-advantages * ratio).clamp(-1 - clip_range, 1 + clip_range)"),
)
wrong(
    "ppo_losses",
    "The 0.5 in your value loss is missing.",
    (VALUE_LOSS, "value_loss = masked_mean(squared_error, mask)"),
)
wrong(
    "ppo_losses",
    "value_loss is multiplied by vf_coef already: the entry of info is the loss before that.",
    ('"value_loss": value_loss.item()', '"value_loss": vf_coef * value_loss.item()'),
)
wrong(
    "ppo_losses",
    "Your value loss is the absolute error, not the squared one.",
    (
        SQUARED_ERROR,
        "squared_error = torch.maximum((new_values - returns).abs(), (values_clipped - returns).abs())",
    ),
)
wrong(
    "ppo_losses",
    "Your value loss compares the values with the advantages. What should the critic have said?",
    (
        SQUARED_ERROR,
        "squared_error = torch.maximum((new_values - advantages) ** 2, (values_clipped - advantages) ** 2)",
    ),
)
wrong(
    "ppo_losses",
    "Your value loss compares the old values with the returns: nothing in it can learn.",
    (SQUARED_ERROR, "squared_error = (old_values - returns) ** 2 + 0 * new_values"),
)
wrong(
    "ppo_losses",
    "Your value loss compares the new values with the old ones, not with the returns.",
    (
        SQUARED_ERROR,
        "squared_error = torch.maximum((new_values - old_values) ** 2, (values_clipped - old_values) ** 2)",
    ),
)
wrong(
    "ppo_losses",
    "Your value loss has no clip.",
    (SQUARED_ERROR, "squared_error = (new_values - returns) ** 2"),
)
wrong(
    "ppo_losses",
    "Your value loss knows the clipped value only: a value that has moved the wrong way gets no gradient back.",
    (SQUARED_ERROR, "squared_error = (values_clipped - returns) ** 2"),
)
wrong(
    "ppo_losses",
    "Your value loss takes the smaller of the two errors.",
    (
        SQUARED_ERROR,
        "squared_error = torch.minimum((new_values - returns) ** 2, (values_clipped - returns) ** 2)",
    ),
)
wrong(
    "ppo_losses",
    "You clip around the new values. The old ones are the fixed point: how far may the new ones go from there?",
    (
        VALUES_CLIPPED,
        "values_clipped = new_values + (old_values - new_values).clamp(-clip_range_value, clip_range_value)",
    ),
)
wrong(
    "ppo_losses",
    "You clip the values themselves to the range from -clip_range_value to clip_range_value. Their distance to the old "
    "values is what is clipped.",
    (VALUES_CLIPPED, "values_clipped = new_values.clamp(-clip_range_value, clip_range_value)"),
)
wrong(
    "ppo_losses",
    "You clip the change of the values and forget to add it to the old ones.",
    (VALUES_CLIPPED, "values_clipped = (new_values - old_values).clamp(-clip_range_value, clip_range_value)"),
)
wrong(
    "ppo_losses",
    "You clip the values with clip_range. That is the range of the ratio.",
    (
        VALUES_CLIPPED,
        "values_clipped = old_values + (new_values - old_values).clamp(-clip_range, clip_range)",
    ),
)
wrong(
    "ppo_losses",
    "You clip the values on one side only.",
    (VALUES_CLIPPED, "values_clipped = old_values + (new_values - old_values).clamp(max=clip_range_value)"),
)
wrong(
    "ppo_losses",
    "You clip the values by a factor, as the ratio is clipped. For values it is a distance.",
    (
        VALUES_CLIPPED,
        "values_clipped = old_values * (new_values / old_values).clamp(1 - clip_range_value, 1 + clip_range_value)",
    ),
)
wrong(
    "ppo_losses",
    "Your total leaves vf_coef out.",
    (TOTAL, "return policy_loss + value_loss, info"),
)
wrong(
    "ppo_losses",
    "Your total subtracts the value loss: the critic would learn to be wrong.",
    (TOTAL, "return policy_loss - vf_coef * value_loss, info"),
)
wrong(
    "ppo_losses",
    "Your total is the policy loss alone: the critic learns nothing.",
    (TOTAL, "return policy_loss, info"),
)
wrong(
    "ppo_losses",
    "You multiply the value loss by 0.5 once more in the total.",
    (TOTAL, "return policy_loss + vf_coef * 0.5 * value_loss, info"),
)
wrong(
    "ppo_losses",
    "You add approx_kl to the total. The penalty is in the token rewards already; here it is a number to watch.",
    (TOTAL, "return policy_loss + vf_coef * value_loss + approx_kl, info"),
)
wrong(
    "ppo_losses",
    "Your approx_kl is the mean of new less old log-probability. It has the wrong sign, and can be negative.",
    (APPROX_KL, "approx_kl = masked_mean(log_ratio, mask)"),
)
wrong(
    "ppo_losses",
    "Your approx_kl is the estimate k1, which can be negative. The docstring asks for another one.",
    (APPROX_KL, "approx_kl = masked_mean(-log_ratio, mask)"),
)
wrong(
    "ppo_losses",
    "Your approx_kl is the estimate k2, half the squared log-ratio. The docstring asks for another one.",
    (APPROX_KL, "approx_kl = masked_mean(0.5 * log_ratio**2, mask)"),
)
wrong(
    "ppo_losses",
    "Your approx_kl has old and new policy exchanged. Which of them has the tokens been sampled from?",
    (APPROX_KL, "approx_kl = masked_mean((1 / ratio - 1) + log_ratio, mask)"),
)
wrong(
    "ppo_losses",
    "Your approx_kl has the ratio as a factor: it estimates the KL in the other direction, as if the tokens came from the "
    "new policy.",
    (APPROX_KL, "approx_kl = masked_mean(ratio * log_ratio - (ratio - 1), mask)"),
)
wrong(
    "ppo_losses",
    "Your approx_kl has the opposite sign: it is never positive.",
    (APPROX_KL, "approx_kl = masked_mean(log_ratio - (ratio - 1), mask)"),
)
wrong(
    "ppo_losses",
    "Your approx_kl forgets the 1: it is the mean of ratio less log-ratio.",
    (APPROX_KL, "approx_kl = masked_mean(ratio - log_ratio, mask)"),
)
wrong(
    "ppo_losses",
    "Your clipfrac is computed after the clip, where no ratio is beyond the range any more.",
    (
        CLIPFRAC,
        "clipfrac = masked_mean(((ratio.clamp(1 - clip_range, 1 + clip_range) - 1).abs() > 2 * clip_range).float(), mask)",
    ),
)
wrong(
    "ppo_losses",
    "Your clipfrac counts only tokens at which the clipped loss was chosen. A ratio beyond the range counts with both signs "
    "of the advantage.",
    (CLIPFRAC, "clipfrac = masked_mean((clipped > unclipped).float(), mask)"),
)
wrong(
    "ppo_losses",
    "Your clipfrac counts ratios above the range only.",
    (CLIPFRAC, "clipfrac = masked_mean((ratio > 1 + clip_range).float(), mask)"),
)
wrong(
    "ppo_losses",
    "Your clipfrac compares the log-ratio with clip_range, not the ratio.",
    (CLIPFRAC, "clipfrac = masked_mean((log_ratio.abs() > clip_range).float(), mask)"),
)
wrong(
    "ppo_losses",
    "Your clipfrac counts the tokens that are not clipped.",
    (CLIPFRAC, "clipfrac = masked_mean(((ratio - 1).abs() <= clip_range).float(), mask)"),
)
wrong(
    "ppo_losses",
    "Your clipfrac uses clip_range_value.",
    (CLIPFRAC, "clipfrac = masked_mean(((ratio - 1).abs() > clip_range_value).float(), mask)"),
)
wrong(
    "ppo_losses",
    "Your clipfrac is a number of tokens, not a share of them.",
    (CLIPFRAC, "clipfrac = (((ratio - 1).abs() > clip_range) & mask.bool()).sum().float()"),
)
wrong(
    "ppo_losses",
    "Your policy loss sums the real tokens and divides by the number of all positions.",
    (POLICY_LOSS, f"policy_loss = {WORSE}.where(mask.bool(), 0.0).mean()"),
)
wrong(
    "ppo_losses",
    "Your policy loss averages within each response first: a token of a short response counts more.",
    (
        POLICY_LOSS,
        f"policy_loss = (({WORSE} * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()",
    ),
)
wrong(
    "ppo_losses",
    "Your policy loss divides by the number of responses, not of tokens.",
    (
        POLICY_LOSS,
        f"policy_loss = ({WORSE} * mask).sum(-1).mean()",
    ),
)
wrong(
    "ppo_losses",
    "Your policy loss sums over padding, too.",
    (POLICY_LOSS, f"policy_loss = {WORSE}.sum() / mask.sum()"),
)
wrong(
    "ppo_losses",
    "Your policy loss is the mean over all positions, padding included.",
    (POLICY_LOSS, f"policy_loss = {WORSE}.mean()"),
)
wrong(
    "ppo_losses",
    "Your value loss sums the real tokens and divides by the number of all positions.",
    (VALUE_LOSS, "value_loss = 0.5 * squared_error.where(mask.bool(), 0.0).mean()"),
)
wrong(
    "ppo_losses",
    "Your value loss averages within each response first: a token of a short response counts more.",
    (VALUE_LOSS, "value_loss = 0.5 * ((squared_error * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()"),
)
wrong(
    "ppo_losses",
    "Your value loss sums over padding, too.",
    (VALUE_LOSS, "value_loss = 0.5 * squared_error.sum() / mask.sum()"),
)
wrong(
    "ppo_losses",
    "Your value loss is the mean over all positions, padding included.",
    (VALUE_LOSS, "value_loss = 0.5 * squared_error.mean()"),
)
wrong(
    "ppo_losses",
    "The padding is in your approx_kl.",
    (LOG_RATIO, "log_ratio = new_logprobs - old_logprobs"),
    (APPROX_KL, "approx_kl = ((ratio - 1) - log_ratio).mean()"),
)
wrong(
    "ppo_losses",
    "Your approx_kl is masked, and divided by the number of all positions.",
    (APPROX_KL, "approx_kl = ((ratio - 1) - log_ratio).mean()"),
)
wrong(
    "ppo_losses",
    "The padding is in your clipfrac.",
    (LOG_RATIO, "log_ratio = new_logprobs - old_logprobs"),
    (CLIPFRAC, "clipfrac = ((ratio - 1).abs() > clip_range).float().mean()"),
)
wrong(
    "ppo_losses",
    "Your clipfrac is masked, and divided by the number of all positions.",
    (CLIPFRAC, "clipfrac = ((ratio - 1).abs() > clip_range).float().mean()"),
)
wrong(
    "ppo_losses",
    "The padding is in approx_kl and in clipfrac.",
    (LOG_RATIO, "log_ratio = new_logprobs - old_logprobs"),
    (APPROX_KL, "approx_kl = ((ratio - 1) - log_ratio).mean()"),
    (CLIPFRAC, "clipfrac = ((ratio - 1).abs() > clip_range).float().mean()"),
)
wrong(
    "ppo_losses",
    "You compute 1 - mask, which does not work for bools.",
    (LOG_RATIO, "log_ratio = (new_logprobs - old_logprobs).masked_fill((1 - mask).bool(), 0.0)"),
)
wrong(
    "ppo_losses",
    "Your ratio is cut off from the graph: no gradient reaches the new log-probabilities.",
    (RATIO, "ratio = log_ratio.detach().exp()"),
)
wrong(
    "ppo_losses",
    "Your new values are cut off from the graph: no gradient reaches the critic.",
    (
        SQUARED_ERROR,
        "new_values, values_clipped = new_values.detach(), values_clipped.detach()\n    " + SQUARED_ERROR,
    ),
)
wrong(
    "ppo_losses",
    "Your total carries no gradient: it is made of plain numbers, or gradients were off when it was computed.",
    (TOTAL, "return torch.tensor(policy_loss.item() + vf_coef * value_loss.item()), info"),
)
wrong(
    "ppo_losses",
    "A gradient reaches the old log-probabilities. They are those of the policy that sampled, and stay as they are.",
    (OLD_DETACHED, "old_values = old_values.detach()"),
)
wrong(
    "ppo_losses",
    "A gradient reaches the old values. They are where the clip is measured from, and stay as they are.",
    (OLD_DETACHED, "old_logprobs = old_logprobs.detach()"),
)
wrong(
    "ppo_losses",
    "A gradient reaches the advantages. They say how good a token was, and are nothing to be learned here.",
    (TARGETS_DETACHED, "returns = returns.detach()"),
)
wrong(
    "ppo_losses",
    "A gradient reaches the returns: the target would come toward the critic.",
    (TARGETS_DETACHED, "advantages = advantages.detach()"),
)
wrong(
    "ppo_losses",
    "A gradient reaches advantages and returns. Both are constants of the update.",
    (TARGETS_DETACHED, "pass"),
)
wrong(
    "ppo_losses",
    "A gradient reaches all that comes from the rollout: old log-probabilities, old values, advantages and returns.",
    (OLD_DETACHED, "pass"),
    (TARGETS_DETACHED, "pass"),
)
wrong(
    "ppo_losses",
    "You set the padding of the advantages to 0 in place: the next epoch gets another tensor.",
    (LOG_RATIO, "advantages *= mask\n    " + LOG_RATIO),
)
wrong(
    "ppo_losses",
    "You put the entries of info in as tensors.",
    ("policy_loss.item()", "policy_loss"),
    ("value_loss.item()", "value_loss"),
    ("approx_kl.item()", "approx_kl"),
    ("clipfrac.item()", "clipfrac"),
)
wrong(
    "ppo_losses",
    "You choose between the clipped and the unclipped policy loss for the whole batch at once: the means are compared, not "
    "the tokens.",
    (POLICY_LOSS, "policy_loss = torch.maximum(masked_mean(unclipped, mask), masked_mean(clipped, mask))"),
)
wrong(
    "ppo_losses",
    "You choose between the clipped and the unclipped value loss for the whole batch at once: the means are compared, not "
    "the tokens.",
    (
        SQUARED_ERROR,
        "errors = masked_mean((new_values - returns) ** 2, mask), masked_mean((values_clipped - returns) ** 2, mask)",
    ),
    (VALUE_LOSS, "value_loss = 0.5 * torch.maximum(*errors)"),
)
wrong(
    "ppo_losses",
    "You limit the log-ratio before you take its exponential: a token that is far off looks nearer than it is.",
    (RATIO, "log_ratio = log_ratio.clamp(-2, 2)\n    ratio = log_ratio.exp()"),
)
wrong(
    "ppo_losses",
    "You limit the ratio even where it is not clipped: the worse of the two candidates has no limit.",
    (RATIO, "ratio = log_ratio.clamp(-2, 2).exp()"),
)
wrong(
    "ppo_losses",
    "You limit the log-ratio to 5 on both sides: a token that is very far off looks nearer than it is.",
    (RATIO, "log_ratio = log_ratio.clamp(-5, 5)\n    ratio = log_ratio.exp()"),
)
wrong(
    "ppo_losses",
    "You limit the advantages. They are used as they are given.",
    (LOG_RATIO, "advantages = advantages.clamp(-10, 10)\n    " + LOG_RATIO),
)
wrong(
    "ppo_losses",
    "You limit the squared error of the values. Only how far a value leaves the old one is clipped.",
    (SQUARED_ERROR, SQUARED_ERROR + ".clamp(max=10.0)"),
)
for name, default, other in (
    ("clip_range", "0.2", "0.1"),
    ("clip_range_value", "0.2", "0.4"),
    ("vf_coef", "0.5", "1.0"),
):
    wrong(
        "ppo_losses",
        f"You have changed the default of `{name}` in the signature.",
        (f"    {name}: float = {default}", f"    {name}: float = {other}"),
    )
wrong(
    "ppo_losses",
    "There is a bonus for entropy in your total. It is the sum of policy loss and value loss alone.",
    (TOTAL, "return policy_loss + vf_coef * value_loss + 0.01 * masked_mean(new_logprobs, mask), info"),
)
right(
    "ppo_losses",
    "gains and their minimum, the mask multiplied in",
    body("""
    mask = mask.float()
    n_tokens = mask.sum()
    advantages, returns = advantages.detach(), returns.detach()
    log_ratio = new_logprobs - old_logprobs.detach()
    ratio = torch.exp(log_ratio)
    gain = torch.min(advantages * ratio, advantages * torch.clamp(ratio, 1 - clip_range, 1 + clip_range))
    policy_loss = -(gain * mask).sum() / n_tokens
    old = old_values.detach()
    clipped = torch.clamp(new_values, old - clip_range_value, old + clip_range_value)
    worse = torch.max((new_values - returns).pow(2), (clipped - returns).pow(2))
    value_loss = 0.5 * (worse * mask).sum() / n_tokens
    approx_kl = (((ratio - 1.0) - log_ratio) * mask).sum() / n_tokens
    is_beyond = ((ratio < 1 - clip_range) | (ratio > 1 + clip_range)).float()
    clipfrac = (is_beyond * mask).sum() / n_tokens
    info = dict(
        policy_loss=float(policy_loss),
        value_loss=float(value_loss),
        approx_kl=float(approx_kl),
        clipfrac=float(clipfrac),
    )
    return policy_loss + vf_coef * value_loss, info
    """),
)
right(
    "ppo_losses",
    "the log-ratio kept from overflowing, far beyond what a policy reaches",
    (RATIO, "ratio = log_ratio.clamp(-20, 20).exp()"),
)
right(
    "ppo_losses",
    "the real tokens picked out first, in float64",
    body("""
    valid = mask.bool()
    new_logprobs, new_values = new_logprobs[valid].double(), new_values[valid].double()
    old_logprobs, old_values, advantages, returns = (
        x[valid].detach().double() for x in (old_logprobs, old_values, advantages, returns)
    )
    log_ratio = new_logprobs - old_logprobs
    ratio = log_ratio.exp()
    policy_loss = torch.stack([-advantages * ratio, -advantages * ratio.clip(1 - clip_range, 1 + clip_range)]).amax(0)
    step = (new_values - old_values).clip(-clip_range_value, clip_range_value)
    errors = torch.stack([new_values - returns, old_values + step - returns])
    value_loss = errors.square().max(dim=0).values.mean() / 2
    info = {
        "approx_kl": (torch.expm1(log_ratio) - log_ratio).mean().item(),
        "clipfrac": ((ratio - 1).abs() > clip_range).double().mean().item(),
        "value_loss": value_loss.item(),
        "policy_loss": policy_loss.mean().item(),
        "ratio": ratio.mean().item(),
    }
    return (policy_loss.mean() + vf_coef * value_loss).float(), info
    """),
)
right(
    "ppo_losses",
    "token by token",
    body("""
    policy_terms, value_terms, kl_terms, beyond = [], [], [], 0
    rows, columns = new_logprobs.shape
    for i in range(rows):
        for t in range(columns):
            if not mask[i, t]:
                continue
            log_ratio = new_logprobs[i, t] - old_logprobs[i, t].detach()
            ratio, advantage = log_ratio.exp(), advantages[i, t].detach()
            if advantage >= 0:
                policy_terms.append(-advantage * ratio.clamp(max=1 + clip_range))
            else:
                policy_terms.append(-advantage * ratio.clamp(min=1 - clip_range))
            old, target = old_values[i, t].detach(), returns[i, t].detach()
            near = torch.clamp(new_values[i, t], old - clip_range_value, old + clip_range_value)
            value_terms.append(torch.maximum((new_values[i, t] - target) ** 2, (near - target) ** 2))
            kl_terms.append((ratio - 1 - log_ratio).item())
            beyond += bool((ratio - 1).abs() > clip_range)
    n_tokens = len(policy_terms)
    policy_loss = torch.stack(policy_terms).mean()
    value_loss = 0.5 * torch.stack(value_terms).mean()
    info = {
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "approx_kl": sum(kl_terms) / n_tokens,
        "clipfrac": beyond / n_tokens,
    }
    return policy_loss + vf_coef * value_loss, info
    """),
)
