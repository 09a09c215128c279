"""The bank's part about `trainer.py`."""

from . import body, right, wrong

# --- 8.1 kl_k1, kl_k2, kl_k3 ----------------------------------------------------------------------

ESTIMATORS = {
    "kl_k1": "logprobs - ref_logprobs",
    "kl_k2": "0.5 * (logprobs - ref_logprobs) ** 2",
    "kl_k3": "(ref_logprobs - logprobs).expm1() - (ref_logprobs - logprobs)",
}
for name, formula in ESTIMATORS.items():
    for says, change in (
        ("You return the mean. Each token has an estimate of its own.", f"return ({formula}).mean()"),
        ("You return the sum. Each token has an estimate of its own.", f"return ({formula}).sum()"),
        (
            "You add up the last axis. Each token has an estimate of its own.",
            f"return ({formula}).sum(dim=-1)",
        ),
        (
            "You average over the last axis and hand the mean to every token.",
            f"return ({formula}).mean(dim=-1, keepdim=True).expand_as(logprobs)",
        ),
        (
            "You weight each token with its probability. The samples come from the policy: likely tokens come more often.",
            f"return logprobs.exp() * ({formula})",
        ),
        ("The estimate is detached: no gradient passes through.", f"return ({formula}).detach()"),
        (
            "You compute without gradients: nothing passes through.",
            f"with torch.no_grad():\n    return {formula}",
        ),
        (
            "No gradient reaches ref_logprobs: you cut it off.",
            f"ref_logprobs = ref_logprobs.detach()\nreturn {formula}",
        ),
        (
            "No gradient reaches logprobs: you cut it off.",
            f"logprobs = logprobs.detach()\nreturn {formula}",
        ),
        (
            "Your estimate has the wrong sign.",
            f"return -({formula})",
        ),
        (
            "You limit the log-ratio to a range around 0. What is far apart has to count as it is.",
            f"logprobs = ref_logprobs + (logprobs - ref_logprobs).clamp(-2, 2)\nreturn {formula}",
        ),
        (
            "You go over to single precision: numbers in double precision lose digits.",
            f"logprobs, ref_logprobs = logprobs.float(), ref_logprobs.float()\nreturn {formula}",
        ),
        (
            "You write into `logprobs`: the caller's numbers are changed.",
            f"estimate = {formula}\nlogprobs.data.copy_(estimate.detach())\nreturn estimate",
        ),
        (
            "You write into `ref_logprobs`: the caller's numbers are changed.",
            f"estimate = {formula}\nref_logprobs.data.mul_(0.5)\nreturn estimate",
        ),
        (
            "You go through the probabilities and forget the logarithm.",
            f"logprobs, ref_logprobs = logprobs.exp(), ref_logprobs.exp()\nreturn {formula}",
        ),
        (
            "You normalise over the tokens of a row. These are log-probabilities already, each of another place.",
            f"logprobs, ref_logprobs = logprobs.log_softmax(-1), ref_logprobs.log_softmax(-1)\nreturn {formula}",
        ),
        ("Your function returns zeros.", f"return 0 * ({formula})"),
    ):
        wrong(name, says, body(change))

wrong(
    "kl_k1",
    "You return the distance without its sign. This estimator is negative where the policy likes a token less.",
    body("return (logprobs - ref_logprobs).abs()"),
)
wrong(
    "kl_k1",
    "You limit the estimate to 0 from below. A KL is not negative, but an estimate from one token may be.",
    body("return (logprobs - ref_logprobs).clamp(min=0)"),
)
wrong(
    "kl_k1",
    "You return the ratio of the probabilities. The estimate is in nats: its logarithm.",
    body("return (logprobs - ref_logprobs).exp()"),
)
wrong(
    "kl_k1",
    "You return the ratio of the probabilities less one. The estimate is in nats.",
    body("return (logprobs - ref_logprobs).expm1()"),
)
wrong(
    "kl_k1",
    "You return half of the log-ratio. Half is for `kl_k2`.",
    body("return (logprobs - ref_logprobs) / 2"),
)
wrong(
    "kl_k1", "You square the log-ratio. That is for `kl_k2`.", body("return (logprobs - ref_logprobs) ** 2")
)
wrong("kl_k1", "You divide the two log-probabilities.", body("return logprobs / ref_logprobs"))
wrong("kl_k1", "You add the two log-probabilities.", body("return logprobs + ref_logprobs"))
wrong("kl_k1", "Your function returns the policy's log-probabilities.", body("return logprobs * 1"))
wrong("kl_k1", "This is the third estimator.", body(f"return {ESTIMATORS['kl_k3']}"))

wrong("kl_k2", "You forget the half.", body("return (logprobs - ref_logprobs) ** 2"))
wrong(
    "kl_k2",
    "You halve the log-ratio before you square it.",
    body("return (0.5 * (logprobs - ref_logprobs)) ** 2"),
)
wrong("kl_k2", "You forget the square.", body("return 0.5 * (logprobs - ref_logprobs)"))
wrong(
    "kl_k2",
    "You take half the distance in place of half the square.",
    body("return 0.5 * (logprobs - ref_logprobs).abs()"),
)
wrong(
    "kl_k2",
    "You square the ratio in place of its logarithm.",
    body("return 0.5 * (logprobs - ref_logprobs).exp() ** 2"),
)
wrong(
    "kl_k2",
    "You square the ratio less one in place of its logarithm.",
    body("return 0.5 * (logprobs - ref_logprobs).expm1() ** 2"),
)
wrong(
    "kl_k2",
    "You square each log-probability by itself.",
    body("return 0.5 * (logprobs**2 - ref_logprobs**2)"),
)
wrong("kl_k2", "This is the first estimator.", body("return logprobs - ref_logprobs"))
wrong("kl_k2", "This is the third estimator.", body(f"return {ESTIMATORS['kl_k3']}"))
wrong("kl_k2", "You raise to the third power.", body("return 0.5 * (logprobs - ref_logprobs) ** 3"))
wrong("kl_k2", "You double the square. It is halved.", body("return 2 * (logprobs - ref_logprobs) ** 2"))
wrong(
    "kl_k2",
    "Large log-ratios count by their size in your estimate, and not by their square.",
    body("return torch.nn.functional.huber_loss(logprobs, ref_logprobs, reduction='none')"),
)

wrong(
    "kl_k3",
    "Your `r` is upside down: it is the policy's probability over the reference's.",
    body("log_r = logprobs - ref_logprobs\nreturn log_r.expm1() - log_r"),
)
wrong(
    "kl_k3",
    "You forget the one: where the models agree, your estimate is not 0.",
    body("log_r = ref_logprobs - logprobs\nreturn log_r.exp() - log_r"),
)
wrong(
    "kl_k3",
    "You add the logarithm. It has to be taken away.",
    body("log_r = ref_logprobs - logprobs\nreturn log_r.expm1() + log_r"),
)
wrong(
    "kl_k3",
    "The logarithm is missing: half of the estimate.",
    body("return (ref_logprobs - logprobs).expm1()"),
)
wrong(
    "kl_k3",
    "Your `r` is upside down in one of its two places.",
    body("log_r = ref_logprobs - logprobs\nreturn (-log_r).expm1() - log_r"),
)
wrong("kl_k3", "This is the first estimator.", body("return logprobs - ref_logprobs"))
wrong("kl_k3", "This is the second estimator.", body("return 0.5 * (logprobs - ref_logprobs) ** 2"))
wrong(
    "kl_k3",
    "You halve the estimate. Half is for `kl_k2`.",
    body("log_r = ref_logprobs - logprobs\nreturn 0.5 * (log_r.expm1() - log_r)"),
)
wrong(
    "kl_k3",
    "You take the ratio of the log-probabilities for the ratio of the probabilities.",
    body("r = ref_logprobs / logprobs\nreturn (r - 1) - (ref_logprobs - logprobs)"),
)
wrong(
    "kl_k3",
    "You multiply by `r`: that estimate is for samples of the reference.",
    body("log_r = ref_logprobs - logprobs\nreturn log_r.exp() * log_r - log_r.expm1()"),
)
wrong(
    "kl_k3",
    "You take `log r` for `r`.",
    body("log_r = ref_logprobs - logprobs\nreturn (log_r - 1) - log_r"),
)
wrong(
    "kl_k3",
    "No gradient passes through `r`: it is detached.",
    body("log_r = ref_logprobs - logprobs\nreturn log_r.detach().expm1() - log_r"),
)
wrong(
    "kl_k3",
    "The logarithm has base 2 in your estimate. It is the natural one: the estimate is in nats.",
    body("log_r = ref_logprobs - logprobs\nreturn log_r.expm1() - log_r / 0.6931472"),
)

for name, formula in ESTIMATORS.items():
    right(
        name,
        "token by token, in a loop",
        body(f"""
        pairs, shape = zip(logprobs.reshape(-1), ref_logprobs.reshape(-1)), logprobs.shape
        return torch.stack([{formula} for logprobs, ref_logprobs in pairs]).reshape(shape)
        """),
    )
    right(
        name,
        "in double precision",
        body(f"logprobs, ref_logprobs = logprobs.double(), ref_logprobs.double()\nreturn {formula}"),
    )
right("kl_k1", "the other way round, with a minus", body("return -(ref_logprobs - logprobs)"))
right("kl_k1", "torch.sub", body("return torch.sub(logprobs, ref_logprobs)"))
right(
    "kl_k2",
    "the half outside, square by multiplication",
    body("log_ratio = ref_logprobs - logprobs\nreturn log_ratio * log_ratio / 2"),
)
right("kl_k2", "square()", body("return (logprobs - ref_logprobs).square().mul(0.5)"))
right(
    "kl_k3",
    "with exp and a minus one",
    body("log_ratio = logprobs - ref_logprobs\nreturn torch.exp(-log_ratio) - 1 + log_ratio"),
)
right(
    "kl_k3",
    "log-ratios limited very far out, as some libraries do",
    body("log_r = (ref_logprobs - logprobs).clamp(-20, 20)\nreturn (log_r.exp() - log_r) - 1"),
)
wrong(
    "kl_k1",
    "You limit log-ratios from below: a token that the reference finds far likelier counts too little.",
    body("return (logprobs - ref_logprobs).clamp(min=-5)"),
)
wrong(
    "kl_k2",
    "Beyond a log-ratio of 3 your estimate grows like a straight line. It is a square everywhere.",
    body("far = (logprobs - ref_logprobs).abs()\nreturn torch.where(far < 3, 0.5 * far**2, 3 * far - 4.5)"),
)

# --- 8.2 AdaptiveKLController ---------------------------------------------------------------------

C = "AdaptiveKLController"
ERROR = "error = min(max(current_kl / self.target - 1, -0.2), 0.2)"
FACTOR = "self.value *= 1 + error * n_steps / self.horizon"
wrong(
    C,
    "The price goes the wrong way: KL that is too high becomes cheaper.",
    (FACTOR, FACTOR.replace("1 +", "1 -")),
)
wrong(
    C,
    "The error has the wrong sign, so the price goes the wrong way.",
    (ERROR, ERROR.replace("current_kl / self.target - 1", "1 - current_kl / self.target")),
)
wrong(C, "The error is not limited.", (ERROR, "error = current_kl / self.target - 1"))
wrong(C, "The error is limited from above only.", (ERROR, "error = min(current_kl / self.target - 1, 0.2)"))
wrong(C, "The error is limited from below only.", (ERROR, "error = max(current_kl / self.target - 1, -0.2)"))
wrong(C, "The error is cut off below 0: the price can only rise.", (ERROR, ERROR.replace("-0.2", "0.0")))
wrong(C, "The error is limited too narrowly.", (ERROR, ERROR.replace("-0.2), 0.2", "-0.1), 0.1")))
wrong(C, "The error is limited too widely.", (ERROR, ERROR.replace("-0.2), 0.2", "-1.0), 1.0")))
wrong(
    C,
    "You limit the ratio of KL and target, and then take the one away: the error is nearly -1.",
    (ERROR, "error = min(max(current_kl / self.target, -0.2), 0.2) - 1"),
)
wrong(
    C,
    "You limit the ratio around 0 and forget to take the one away.",
    (ERROR, "error = min(max(current_kl / self.target, -0.2), 0.2)"),
)
wrong(
    C,
    "Your limits are swapped: the error is always the same number.",
    (ERROR, "error = max(min(current_kl / self.target - 1, -0.2), 0.2)"),
)
wrong(
    C,
    "Your error is a number of nats. It has to be a share of the target.",
    (ERROR, "error = min(max(current_kl - self.target, -0.2), 0.2)"),
)
wrong(
    C,
    "Your error is a share of the KL that was measured. It has to be a share of the target.",
    (ERROR, "error = min(max(1 - self.target / max(current_kl, 1e-8), -0.2), 0.2)"),
)
wrong(
    C,
    "Target and measured KL are swapped in your ratio.",
    (ERROR, "error = min(max(self.target / max(current_kl, 1e-8) - 1, -0.2), 0.2)"),
)
wrong(
    C,
    "Your error is the logarithm of the ratio.",
    (
        ERROR,
        "import math\n        error = min(max(math.log(max(current_kl, 1e-8) / self.target), -0.2), 0.2)",
    ),
)
wrong(C, "Your error has lost its sign.", (ERROR, "error = min(abs(current_kl / self.target - 1), 0.2)"))
wrong(C, "Your error is squared.", (ERROR, "error = min((current_kl / self.target - 1) ** 2, 0.2)"))
wrong(
    C,
    "Your error is its sign alone: the price moves by the whole limit, however near the target is.",
    (ERROR, "error = 0.2 if current_kl > self.target else -0.2 if current_kl < self.target else 0.0"),
)
wrong(C, "n_steps has no effect on your price.", (FACTOR, "self.value *= 1 + error / self.horizon"))
wrong(C, "The horizon has no effect on your price.", (FACTOR, "self.value *= 1 + error * n_steps"))
wrong(C, "Neither n_steps nor the horizon has an effect on your price.", (FACTOR, "self.value *= 1 + error"))
wrong(C, "n_steps and horizon are upside down.", (FACTOR, "self.value *= 1 + error * self.horizon / n_steps"))
wrong(
    C,
    "You divide whole numbers without their rest: the price never moves.",
    (FACTOR, "self.value *= 1 + error * (n_steps // self.horizon)"),
)
wrong(
    C,
    "You add to the price. The change is a share of the price that there is.",
    (FACTOR, "self.value += error * n_steps / self.horizon"),
)
wrong(
    C,
    "You set the price to the factor. It is the price that is multiplied by it.",
    (FACTOR, "self.value = 1 + error * n_steps / self.horizon"),
)
wrong(
    C,
    "You multiply the price by the change. It is multiplied by one plus the change.",
    (FACTOR, "self.value *= error * n_steps / self.horizon"),
)
wrong(
    C,
    "Each update starts from the price at the start. It has to go on from the last one.",
    ("self.value = init_kl_coef", "self.value = self.init = init_kl_coef"),
    (FACTOR, "self.value = self.init * (1 + error * n_steps / self.horizon)"),
)
wrong(
    C,
    "Your update returns the new price and does not keep it.",
    (FACTOR, "return self.value * (1 + error * n_steps / self.horizon)"),
)
wrong(C, "Your update does nothing.", (FACTOR, "pass"))
wrong(
    C,
    "The one stands inside the bracket that is scaled: the price grows without any error.",
    (FACTOR, "self.value *= 1 + (1 + error) * n_steps / self.horizon"),
)
wrong(
    C,
    "The price is limited to what it was at the start.",
    ("self.value = init_kl_coef", "self.value = self.init = init_kl_coef"),
    (FACTOR, "self.value = min(self.init, self.value * (1 + error * n_steps / self.horizon))"),
)
wrong(
    C,
    "The price may not fall below what it was at the start.",
    ("self.value = init_kl_coef", "self.value = self.init = init_kl_coef"),
    (FACTOR, "self.value = max(self.init, self.value * (1 + error * n_steps / self.horizon))"),
)
wrong(
    C, "The price at the start is a fixed number of yours.", ("self.value = init_kl_coef", "self.value = 0.2")
)
wrong(
    C,
    "Target and price at the start are swapped.",
    ("self.value = init_kl_coef", "self.value = target"),
    ("self.target = target", "self.target = init_kl_coef"),
)
wrong(
    C,
    "Target and horizon are swapped.",
    ("self.target = target", "self.target = horizon"),
    ("self.horizon = horizon", "self.horizon = target"),
)
wrong(C, "The target is a fixed number of yours.", ("self.target = target", "self.target = 6.0"))
wrong(C, "The horizon is a fixed number of yours.", ("self.horizon = horizon", "self.horizon = 10_000"))
wrong(
    C,
    "Your price belongs to the class: all controllers share it.",
    ("self.value = init_kl_coef", "type(self).value = init_kl_coef"),
    (FACTOR, "type(self).value *= 1 + error * n_steps / self.horizon"),
)
wrong(
    C,
    "The samples of all updates are added up. Each update counts its own.",
    ("self.horizon = horizon", "self.horizon = horizon\n        self.seen = 0"),
    (FACTOR, "self.seen += n_steps\n        self.value *= 1 + error * self.seen / self.horizon"),
)
wrong(
    C,
    "You average the KL over the updates. Each update goes by the KL of its own batch.",
    ("self.horizon = horizon", "self.horizon = horizon\n        self.mean = target"),
    (ERROR, "self.mean = 0.5 * (self.mean + current_kl)\n        current_kl = self.mean\n        " + ERROR),
)
wrong(
    C,
    "You take the absolute value of the KL. An estimate far below 0 makes the price fall.",
    (ERROR, "current_kl = abs(current_kl)\n        " + ERROR),
)
wrong(
    C,
    "Your price has a floor of its own.",
    (FACTOR, "self.value = max(self.value * (1 + error * n_steps / self.horizon), 1e-2)"),
)
wrong(
    C,
    "Your price is never above 1.",
    (FACTOR, "self.value = min(self.value * (1 + error * n_steps / self.horizon), 1.0)"),
)
wrong(
    C,
    "The price moves only when the KL is far from its target.",
    (FACTOR, "if abs(error) >= 0.2:\n            " + FACTOR),
)
right(
    C,
    "the exponential of the change, as the paper has it",
    (FACTOR, "import math\n        self.value *= math.exp(error * n_steps / self.horizon)"),
    differs=True,
)
right(
    C,
    "with torch",
    (
        ERROR,
        "error = float(torch.clamp(torch.tensor(current_kl / self.target - 1, dtype=torch.float64), -0.2, 0.2))",
    ),
)
right(
    C,
    "with ifs, and other names",
    ("self.target = target", "self.goal = target"),
    ("self.horizon = horizon", "self.window = horizon"),
    (
        ERROR,
        """off = (current_kl - self.goal) / self.goal
        if off > 0.2:
            off = 0.2
        elif off < -0.2:
            off = -0.2""",
    ),
    (FACTOR, "self.value = self.value + self.value * off * n_steps / self.window"),
)
right(
    C,
    "with numpy",
    (ERROR, "error = float(np.clip(current_kl / self.target - 1, -0.2, 0.2))"),
    imports="import numpy as np",
)

# --- 8.3 PPOTrainer: generate ---------------------------------------------------------------------

T = "PPOTrainer"
ONE_BY_ONE = "return [self.generate(query, return_prompt, **generation_kwargs)[0] for query in query_tensor]"
SAID = "full_ids = self.model.lm.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)"
CUT = "return full_ids if return_prompt else full_ids[:, len(query_tensor) :]"
wrong(T, "return_prompt has no effect: the query is always there.", (CUT, "return full_ids"))
wrong(
    T,
    "return_prompt has no effect: the query is never there.",
    (CUT, "return full_ids[:, len(query_tensor) :]"),
)
wrong(
    T,
    "return_prompt is upside down.",
    (CUT, "return full_ids[:, len(query_tensor) :] if return_prompt else full_ids"),
)
wrong(
    T,
    "You cut off one token too many: the first one of the response is gone.",
    (CUT, CUT.replace("len(query_tensor) :", "len(query_tensor) + 1 :")),
)
wrong(
    T,
    "You cut off one token too few: the last one of the query is left.",
    (CUT, CUT.replace("len(query_tensor) :", "len(query_tensor) - 1 :")),
)
wrong(
    T,
    "For one query a row is asked for, and you return a flat tensor.",
    (CUT, CUT + "[0]"),
    (ONE_BY_ONE, ONE_BY_ONE.replace(")[0]", ")")),
)
wrong(
    T,
    "For a list you return rows. Each entry is a flat tensor.",
    (ONE_BY_ONE, ONE_BY_ONE.replace(")[0]", ")")),
)
wrong(
    T,
    "The EOS is gone from the end of your response. It belongs to it.",
    (
        CUT,
        "full_ids = full_ids[:, :-1] if full_ids[0, -1] == self.tokenizer.eos_token_id else full_ids\n        "
        + CUT,
    ),
)
wrong(
    T,
    "The attention mask is 0 where the pad id stands. Here that is the EOS, and in a query it is real.",
    (SAID, SAID.replace("torch.ones_like(ids)", "(ids != self.tokenizer.pad_token_id).long()")),
)
wrong(
    T,
    "Every EOS in the query is left out before the policy reads it.",
    (
        "ids = query_tensor.to(self.model.lm.device).unsqueeze(0)",
        "ids = query_tensor[query_tensor != self.tokenizer.eos_token_id].unsqueeze(0)",
    ),
)
wrong(T, "generation_kwargs do not reach `generate`.", ("            **generation_kwargs,\n", ""))
wrong(
    T,
    "generation_kwargs do not reach the queries of a list.",
    (ONE_BY_ONE, ONE_BY_ONE.replace(", **generation_kwargs", ", max_new_tokens=6, do_sample=False")),
)
wrong(
    T,
    "return_prompt does not reach the queries of a list.",
    (ONE_BY_ONE, ONE_BY_ONE.replace("query, return_prompt", "query")),
)
wrong(
    T,
    "You always sample. The caller says whether.",
    (
        "            **generation_kwargs,\n",
        '            **generation_kwargs,\n            "do_sample": True,\n',
    ),
)
wrong(
    T,
    "You sample unless the caller says otherwise. Nothing is added to what the caller says.",
    ("        settings = {\n", '        settings = {\n            "do_sample": True,\n'),
)
wrong(
    T,
    "You never sample. The caller says whether.",
    (
        "            **generation_kwargs,\n",
        '            **generation_kwargs,\n            "do_sample": False,\n',
    ),
)
wrong(
    T,
    "You limit the samples to the likeliest tokens. Nothing is added to what the caller says.",
    ("            **generation_kwargs,\n", '            **generation_kwargs,\n            "top_k": 50,\n'),
)
wrong(
    T,
    "You change the temperature. Nothing is added to what the caller says.",
    (
        "            **generation_kwargs,\n",
        '            **generation_kwargs,\n            "temperature": 0.3,\n',
    ),
)
wrong(
    T,
    "The EOS of the tokenizer wins over the one that the caller asks for.",
    (
        '            "eos_token_id": self.tokenizer.eos_token_id,\n            "pad_token_id": self.tokenizer.pad_token_id,\n            **generation_kwargs,\n',
        '            **generation_kwargs,\n            "eos_token_id": self.tokenizer.eos_token_id,\n            "pad_token_id": self.tokenizer.pad_token_id,\n',
    ),
)
wrong(
    T,
    "Nobody tells the language model where a response ends: the EOS id is missing.",
    ('            "eos_token_id": self.tokenizer.eos_token_id,\n', '            "eos_token_id": None,\n'),
)
wrong(
    T,
    "Your responses to a list are padded: each of them ends with its own EOS.",
    (
        ONE_BY_ONE,
        """rows = [self.generate(query, return_prompt, **generation_kwargs)[0] for query in query_tensor]
            return list(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.pad_token_id))""",
    ),
)
wrong(
    T,
    "You pad the queries of a list on the right: the response then follows the padding.",
    (
        ONE_BY_ONE,
        """lengths = [len(query) for query in query_tensor]
            ids = torch.nn.utils.rnn.pad_sequence(query_tensor, batch_first=True, padding_value=self.tokenizer.pad_token_id)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(q) for q in query_tensor], batch_first=True)
            eos = self.tokenizer.eos_token_id
            out = self.model.lm.generate(
                input_ids=ids, attention_mask=mask, **{"eos_token_id": eos, "pad_token_id": eos, **generation_kwargs}
            )[:, ids.shape[1] :].tolist()
            out = [row[: row.index(eos) + 1] if eos in row else row for row in out]
            start = [q.tolist() if return_prompt else [] for q in query_tensor]
            return [torch.tensor(before + row) for before, row in zip(start, out)]""",
    ),
)
wrong(
    T,
    "All queries of a list get the response to the first one.",
    (
        ONE_BY_ONE,
        ONE_BY_ONE.replace(
            "self.generate(query, return_prompt", "self.generate(query_tensor[0], return_prompt"
        ),
    ),
)
right(
    T,
    "a list at once, padded on the left",
    (
        ONE_BY_ONE,
        """pad, eos = self.tokenizer.pad_token_id, generation_kwargs.get("eos_token_id", self.tokenizer.eos_token_id)
            width = max(len(query) for query in query_tensor)
            ids = torch.stack([torch.cat([q.new_full((width - len(q),), pad), q]) for q in query_tensor])
            mask = torch.stack([torch.cat([q.new_zeros(width - len(q)), torch.ones_like(q)]) for q in query_tensor])
            settings = {"pad_token_id": pad, "eos_token_id": eos, **generation_kwargs}
            found = []
            for query, row in zip(query_tensor, self.model.lm.generate(input_ids=ids, attention_mask=mask, **settings)):
                response = row[width:].tolist()
                response = response[: response.index(eos) + 1] if eos in response else response
                found.append(torch.tensor((query.tolist() if return_prompt else []) + response))
            return found""",
    ),
)

# --- 8.3 PPOTrainer: step -------------------------------------------------------------------------

PASSES = "for _ in range(config.ppo_epochs):"
FIXED = """                self.model, full_ids, full_mask, n_response
            )
"""
FRESH = """                        self.model, full_ids[rows], full_mask[rows], n_response
"""
OF_POLICY = "new_logprobs, old_logprobs[rows], advantages[rows],"
OF_CRITIC = "new_values, old_values[rows], returns[rows], mask[rows],"
COEFFICIENTS = "config.cliprange, config.cliprange_value, config.vf_coef,"
SHARE = "share = mask[rows].sum() / mask[update].sum()"
BACKWARD = "                    (share * loss).backward()\n"
ZERO = "                self.optimizer.zero_grad()\n"
CLIP = "                torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)\n"
MOVE = "                self.optimizer.step()\n"
SHAPE = "shape_token_rewards(score, old_logprobs, ref_logprobs, mask, kl_coef)"
WHITEN = "        advantages = masked_whiten(advantages, mask)\n"
GAE = "compute_gae(token_rewards, old_values, mask, config.gamma, config.lam)"
ORDER = "order = torch.randperm(config.batch_size, device=mask.device)"
STOP = "approx_kl > 1.5 * config.target_kl"
MEAN_KL = 'approx_kl = sum(info["approx_kl"] for info in of_this_pass) / len(of_this_pass)'
KL = "kl = kl_k1(old_logprobs, ref_logprobs).where(mask.bool(), 0.0).sum(dim=-1).mean().item()"
TELL = "self.kl_ctl.update(kl, config.batch_size)"
NO_GRAD = "        with torch.no_grad():\n            old_logprobs"

# what stays fixed
wrong(
    T,
    "The passes for what stays fixed record gradients: nobody goes backward through them.",
    (NO_GRAD, "        with torch.enable_grad():\n            old_logprobs"),
)
wrong(
    T,
    "The reference's log-probabilities are those of the policy: there is no KL at all.",
    ("(self.ref_model, full_ids, full_mask, n_response)", "(self.model, full_ids, full_mask, n_response)"),
)
wrong(
    T,
    "Your old log-probabilities and values are those of the reference.",
    (FIXED, FIXED.replace("self.model", "self.ref_model")),
)
wrong(T, "There is no KL in your token rewards.", (SHAPE, SHAPE.replace("ref_logprobs", "old_logprobs")))
wrong(
    T,
    "The KL is charged with the wrong sign: going away from the reference is rewarded.",
    (SHAPE, SHAPE.replace("old_logprobs, ref_logprobs", "ref_logprobs, old_logprobs")),
)
wrong(
    T,
    "Your price is always the one at the start. The controller has the price of now.",
    ("kl_coef = self.kl_ctl.value", "kl_coef = config.init_kl_coef"),
)
wrong(
    T,
    "The price does not reach the token rewards: they use their own default.",
    (SHAPE, SHAPE.replace(", kl_coef", "")),
)
wrong(T, "The scores do not reach your token rewards.", (SHAPE, SHAPE.replace("score,", "0 * score,")))
wrong(
    T,
    "You subtract the mean of the scores. The critic is there for that.",
    (SHAPE, SHAPE.replace("score,", "score - score.mean(),")),
)
wrong(T, "You limit the scores.", (SHAPE, SHAPE.replace("score,", "score.clamp(-5, 5),")))
wrong(
    T,
    "gamma and lam do not reach `compute_gae`.",
    (GAE, "compute_gae(token_rewards, old_values, mask)"),
)
wrong(T, "lam does not reach `compute_gae`.", (GAE, GAE.replace(", config.lam", "")))
wrong(
    T,
    "gamma and lam are swapped in your call of `compute_gae`.",
    (GAE, GAE.replace("config.gamma, config.lam", "config.lam, config.gamma")),
)
wrong(T, "The old values do not reach your advantages.", (GAE, GAE.replace("old_values", "0 * old_values")))
wrong(T, "You do not whiten the advantages.", (WHITEN, ""))
wrong(
    T,
    "You whiten the advantages over the padding too.",
    (WHITEN, WHITEN.replace("mask)", "torch.ones_like(mask))")),
)
wrong(
    T,
    "You centre the advantages and do not scale them.",
    (WHITEN, "        advantages = advantages - masked_mean(advantages, mask)\n"),
)
wrong(
    T,
    "You whiten the advantages of each mini-batch by itself. They are white over the whole batch.",
    (WHITEN, ""),
    (OF_POLICY, OF_POLICY.replace("advantages[rows]", "masked_whiten(advantages[rows], mask[rows])")),
)
wrong(
    T,
    "You whiten the returns too. The critic's target stays on the scale of the rewards.",
    (WHITEN, WHITEN + "        returns = masked_whiten(returns, mask)\n"),
)
wrong(
    T,
    "Your returns are made from white advantages.",
    (WHITEN, WHITEN + "        returns = advantages + old_values\n"),
)
wrong(
    T,
    "You whiten the token rewards before the advantages are computed.",
    (
        "        advantages, returns = compute_gae",
        "        token_rewards = masked_whiten(token_rewards, mask)\n        advantages, returns = compute_gae",
    ),
)
wrong(
    T,
    "You limit the advantages.",
    (WHITEN, WHITEN.replace("mask)", "mask).clamp(-1.5, 1.5)")),
)
wrong(
    T,
    "Advantages and returns are swapped.",
    ("advantages, returns = compute_gae", "returns, advantages = compute_gae"),
)

# passes, updates, mini-batches
wrong(T, "You go through the batch once too often.", (PASSES, PASSES.replace("ppo_epochs", "ppo_epochs + 1")))
wrong(T, "You go through the batch once too few.", (PASSES, "for _ in range(max(1, config.ppo_epochs - 1)):"))
wrong(T, "You go through the batch once. ppo_epochs says how often.", (PASSES, "for _ in range(1):"))
wrong(
    T,
    "You go through the batch in the order in which it came, in every pass.",
    (ORDER, "order = torch.arange(config.batch_size, device=mask.device)"),
)
wrong(
    T,
    "You shuffle once, and every pass has the same order.",
    (ORDER, "order = first_order"),
    (
        "        infos = []\n",
        "        infos = []\n        first_order = torch.randperm(config.batch_size, device=mask.device)\n",
    ),
)
wrong(
    T,
    "You draw rows with replacement: in a pass, some come twice and some never.",
    (ORDER, "order = torch.randint(config.batch_size, (config.batch_size,), device=mask.device)"),
)
wrong(
    T,
    "The last mini-batch of each pass is left out.",
    (
        "for rows in update.split(config.mini_batch_size):",
        "for rows in update.split(config.mini_batch_size)[: max(1, len(update) // config.mini_batch_size - 1)]:",
    ),
)
wrong(
    T,
    "mini_batch_size has no effect: all responses of an update are read at once.",
    ("for rows in update.split(config.mini_batch_size):", "for rows in [update]:"),
)
wrong(
    T,
    "gradient_accumulation_steps has no effect: the optimiser moves after each mini-batch.",
    (
        "order.split(config.mini_batch_size * config.gradient_accumulation_steps)",
        "order.split(config.mini_batch_size)",
    ),
)
wrong(
    T,
    "The optimiser moves once in a pass, whatever the sizes are.",
    ("order.split(config.mini_batch_size * config.gradient_accumulation_steps)", "[order]"),
)
wrong(
    T,
    "mini_batch_size and gradient_accumulation_steps are swapped.",
    (
        "for rows in update.split(config.mini_batch_size):",
        "for rows in update.split(config.gradient_accumulation_steps):",
    ),
)
wrong(
    T,
    "The gradients of the mini-batches are added up without a weight: the sum is too large.",
    (SHARE, "share = 1.0"),
)
wrong(
    T,
    "All mini-batches weigh the same. One with few tokens has to weigh less.",
    (SHARE, "share = 1 / config.gradient_accumulation_steps"),
)
wrong(
    T,
    "All mini-batches weigh the same. One with few tokens has to weigh less.",
    (SHARE, "share = len(rows) / len(update)"),
)
wrong(
    T,
    "A mini-batch's share is that of the whole batch in your code. It is that of its own update.",
    (SHARE, "share = mask[rows].sum() / mask.sum()"),
)
wrong(
    T,
    "All mini-batches weigh the same. One with few tokens has to weigh less.",
    (SHARE, "share = mask[rows].numel() / mask[update].numel()"),
)
wrong(
    T,
    "A mini-batch's share is upside down.",
    (SHARE, "share = mask[update].sum() / mask[rows].sum()"),
)
wrong(
    T,
    "Your share counts the tokens of the queries too. The losses are means over response tokens.",
    (SHARE, "share = full_mask[rows].sum() / full_mask[update].sum()"),
)
wrong(T, "Gradients are never set back to zero.", (ZERO, ""))
wrong(
    T,
    "Gradients are set back to zero once, before the first update. The later ones add up.",
    (ZERO, ""),
    ("        infos = []\n", "        infos = []\n        self.optimizer.zero_grad()\n"),
)
wrong(
    T,
    "Gradients are set back to zero once in each pass. Updates of one pass add up.",
    (ZERO, ""),
    (
        "            of_this_pass = []\n",
        "            of_this_pass = []\n            self.optimizer.zero_grad()\n",
    ),
)
wrong(
    T,
    "Gradients are set back to zero in each mini-batch: only the last one of an update counts.",
    (ZERO, ""),
    (BACKWARD, "                    self.optimizer.zero_grad()\n" + BACKWARD),
)
wrong(
    T,
    "The optimiser makes a step for each mini-batch, on gradients that are still adding up.",
    (MOVE, ""),
    (BACKWARD, BACKWARD + "                    self.optimizer.step()\n"),
)
wrong(T, "The optimiser never makes a step.", (MOVE, ""))
wrong(
    T,
    "You make a new optimiser in each step. The trainer has one, which remembers.",
    (
        "        infos = []\n",
        "        infos = []\n        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)\n",
    ),
)
wrong(T, "The gradient is not clipped when the optimiser moves.", (CLIP, ""))
wrong(T, "The gradient norm is always limited to 1.", (CLIP, CLIP.replace("config.max_grad_norm", "1.0")))
wrong(
    T,
    "You clip after each mini-batch. The norm that counts is that of their sum, when the optimiser moves.",
    (CLIP, ""),
    (BACKWARD, BACKWARD + "    " + CLIP),
)
wrong(
    T,
    "Only the gradient of the language model is clipped.",
    (CLIP, CLIP.replace("self.model.parameters()", "self.model.lm.parameters()")),
)
wrong(
    T,
    "You clip each number of the gradient by itself.",
    (CLIP, CLIP.replace("clip_grad_norm_", "clip_grad_value_")),
)
wrong(T, "You climb the loss.", (BACKWARD, BACKWARD.replace("share * loss", "-share * loss")))
wrong(
    T,
    "Your model goes into training mode before the update: dropout is on, and no ratio starts at 1.",
    ("        infos = []\n", "        infos = []\n        self.model.train()\n"),
)

# the losses of a mini-batch
wrong(
    T,
    "Your old log-probabilities are the new ones without gradient: every ratio is 1 for ever.",
    (OF_POLICY, OF_POLICY.replace("old_logprobs[rows]", "new_logprobs.detach()")),
)
wrong(
    T,
    "Your ratio compares the policy with the reference.",
    (OF_POLICY, OF_POLICY.replace("old_logprobs[rows]", "ref_logprobs[rows]")),
)
wrong(
    T,
    "New and old log-probabilities are swapped.",
    (OF_POLICY, "old_logprobs[rows], new_logprobs, advantages[rows],"),
)
wrong(
    T,
    "The advantages of a mini-batch are those of the first rows of the batch, and not of its own.",
    (OF_POLICY, OF_POLICY.replace("advantages[rows]", "advantages[: len(rows)]")),
)
wrong(
    T,
    "The returns of a mini-batch are those of the first rows of the batch, and not of its own.",
    (OF_CRITIC, OF_CRITIC.replace("returns[rows]", "returns[: len(rows)]")),
)
wrong(
    T,
    "The old log-probabilities of a mini-batch are those of the first rows of the batch, and not of its own.",
    (OF_POLICY, OF_POLICY.replace("old_logprobs[rows]", "old_logprobs[: len(rows)]")),
)
wrong(
    T,
    "The mask of a mini-batch is that of the first rows of the batch, and not of its own.",
    (OF_CRITIC, OF_CRITIC.replace("mask[rows]", "mask[: len(rows)]")),
)
wrong(
    T,
    "The policy reads other rows than those whose advantages you use.",
    (
        FRESH,
        FRESH.replace("full_ids[rows], full_mask[rows]", "full_ids[rows.flip(0)], full_mask[rows.flip(0)]"),
    ),
)
wrong(
    T,
    "The critic learns the advantages.",
    (OF_CRITIC, OF_CRITIC.replace("returns[rows]", "advantages[rows]")),
)
wrong(
    T,
    "The critic learns the token rewards.",
    (OF_CRITIC, OF_CRITIC.replace("returns[rows]", "token_rewards[rows]")),
)
wrong(
    T,
    "Your old values are the new ones without gradient: the limit for the values has no effect.",
    (OF_CRITIC, OF_CRITIC.replace("old_values[rows]", "new_values.detach()")),
)
wrong(
    T,
    "The losses are averaged over the padding too.",
    (OF_CRITIC, OF_CRITIC.replace("mask[rows]", "torch.ones_like(mask[rows])")),
)
wrong(
    T,
    "The policy reads padding as text: it gets a mask of ones in the update.",
    (FRESH, FRESH.replace("full_mask[rows]", "torch.ones_like(full_mask[rows])")),
)
wrong(
    T,
    "cliprange and cliprange_value are swapped.",
    (COEFFICIENTS, "config.cliprange_value, config.cliprange, config.vf_coef,"),
)
wrong(
    T,
    "cliprange limits the values too.",
    (COEFFICIENTS, "config.cliprange, config.cliprange, config.vf_coef,"),
)
wrong(T, "No coefficient of the config reaches `ppo_losses`.", (COEFFICIENTS, ""))
wrong(
    T,
    "vf_coef of the config does not reach `ppo_losses`.",
    (COEFFICIENTS, "config.cliprange, config.cliprange_value,"),
)
wrong(
    T,
    "cliprange of the config does not reach `ppo_losses`.",
    (COEFFICIENTS, "0.2, config.cliprange_value, config.vf_coef,"),
)
wrong(
    T,
    "Advantages are computed anew in each pass, with the critic that has just moved.",
    (
        "            of_this_pass = []\n",
        """            of_this_pass = []
            with torch.no_grad():
                _, moved = response_logprobs_and_values(self.model, full_ids, full_mask, n_response)
            advantages, returns = compute_gae(token_rewards, moved, mask, config.gamma, config.lam)
            advantages = masked_whiten(advantages, mask)
""",
    ),
)
wrong(
    T,
    "Old log-probabilities are read anew in each pass. They stay those of the policy that sampled.",
    (
        "            of_this_pass = []\n",
        """            of_this_pass = []
            with torch.no_grad():
                old_logprobs, _ = response_logprobs_and_values(self.model, full_ids, full_mask, n_response)
""",
    ),
)
wrong(
    T,
    "Old values are read anew in each pass. They stay those of the critic when the step began.",
    (
        "            of_this_pass = []\n",
        """            of_this_pass = []
            with torch.no_grad():
                _, old_values = response_logprobs_and_values(self.model, full_ids, full_mask, n_response)
""",
    ),
)

# target_kl
wrong(
    T,
    "target_kl has no effect.",
    ("            if config.target_kl is not None and " + STOP + ":\n                break\n", ""),
)
wrong(T, "The update ends at target_kl. The limit is further out.", (STOP, STOP.replace("1.5 * ", "")))
wrong(T, "The limit is twice target_kl in your code.", (STOP, STOP.replace("1.5", "2")))
wrong(
    T, "The update ends while the policy is near, and goes on when it is far.", (STOP, STOP.replace(">", "<"))
)
wrong(
    T,
    "The update ends in the middle of a pass. A pass that has begun is gone through to its end.",
    (
        MOVE,
        MOVE
        + """                if config.target_kl is not None and info["approx_kl"] > 1.5 * config.target_kl:
                    break
""",
    ),
)
wrong(
    T,
    "What counts is the mean approx_kl of the pass. You look at the last mini-batch alone.",
    (MEAN_KL, 'approx_kl = of_this_pass[-1]["approx_kl"]'),
)
wrong(
    T,
    "What counts is the mean approx_kl of the pass. You look at the first mini-batch alone.",
    (MEAN_KL, 'approx_kl = of_this_pass[0]["approx_kl"]'),
)
wrong(
    T,
    "What counts is the mean approx_kl of the pass. You add up its mini-batches.",
    (MEAN_KL, 'approx_kl = sum(info["approx_kl"] for info in of_this_pass)'),
)
wrong(
    T,
    "What counts is the mean approx_kl of this pass. You take the mean of all passes so far.",
    (MEAN_KL, 'approx_kl = sum(info["approx_kl"] for info in infos) / len(infos)'),
)
wrong(
    T,
    "target_kl is held against the KL to the reference. It is about the policy that sampled.",
    (MEAN_KL, "approx_kl = (old_logprobs - ref_logprobs).where(mask.bool(), 0.0).sum(-1).mean().item()"),
)
wrong(
    T,
    "Without target_kl your update ends at some limit of your own.",
    (
        "            if config.target_kl is not None and " + STOP + ":\n",
        "            if approx_kl > 1.5 * (config.target_kl or 0.1):\n",
    ),
)

# the controller and the stats
wrong(
    T,
    "The controller is never told the KL.",
    ("        if config.adap_kl_ctrl:\n            " + TELL + "\n", ""),
)
wrong(
    T,
    "The controller is told although the price is fixed.",
    ("        if config.adap_kl_ctrl:\n            " + TELL, "        " + TELL),
)
wrong(
    T,
    "adap_kl_ctrl is upside down.",
    ("if config.adap_kl_ctrl:", "if not config.adap_kl_ctrl:"),
)
wrong(T, "The controller is told that one sample was measured.", (TELL, "self.kl_ctl.update(kl, 1)"))
wrong(
    T,
    "The controller counts responses, and you tell it the tokens.",
    (TELL, "self.kl_ctl.update(kl, int(mask.sum()))"),
)
wrong(
    T,
    "The controller is told the size of a mini-batch.",
    (TELL, "self.kl_ctl.update(kl, config.mini_batch_size)"),
)
wrong(T, "The arguments of the controller are swapped.", (TELL, "self.kl_ctl.update(config.batch_size, kl)"))
wrong(
    T,
    "The controller is told how far this update has moved the policy. It is the KL to the reference that has a price.",
    (TELL, "self.kl_ctl.update(approx_kl, config.batch_size)"),
)
wrong(
    T,
    "The controller is told the KL times its price. A distance is in nats, whatever it costs.",
    (TELL, "self.kl_ctl.update(kl_coef * kl, config.batch_size)"),
)
wrong(
    T,
    "The controller is told in each pass. It hears of each batch once.",
    (
        "            infos += of_this_pass\n",
        "            infos += of_this_pass\n            "
        + KL
        + "\n            if config.adap_kl_ctrl:\n                self.kl_ctl.update(kl, 4)\n",
    ),
    ("        if config.adap_kl_ctrl:\n            " + TELL + "\n", ""),
)
wrong(
    T,
    "The price changes before the rewards of this batch are made. What the controller makes of a batch is the price of the "
    "next one.",
    ("        if config.adap_kl_ctrl:\n            " + TELL + "\n", ""),
    (
        "        kl_coef = self.kl_ctl.value\n",
        "        "
        + KL
        + "\n        if config.adap_kl_ctrl:\n            self.kl_ctl.update(kl, config.batch_size)\n        kl_coef = self.kl_ctl.value\n",
    ),
)

wrong(
    T,
    "The price in the stats is that of the next batch. It is the one that these rewards were made with.",
    ("self._stats(infos, kl, kl_coef,", "self._stats(infos, kl, self.kl_ctl.value,"),
)
wrong(
    T,
    "Your KL is a mean over tokens. It is a sum over each response, and a mean over the responses.",
    (KL, "kl = masked_mean(kl_k1(old_logprobs, ref_logprobs), mask).item()"),
)
wrong(
    T,
    "Your KL is the sum over the whole batch. It is a mean over the responses.",
    (KL, KL.replace(".mean()", ".sum()")),
)
wrong(T, "The padding is counted in your KL.", (KL, KL.replace(".where(mask.bool(), 0.0)", "")))
wrong(
    T,
    "Your KL has the wrong sign.",
    (KL, KL.replace("old_logprobs, ref_logprobs", "ref_logprobs, old_logprobs")),
)
wrong(
    T,
    "Your KL is that of the third estimator. The rewards are charged with the first one.",
    (KL, KL.replace("kl_k1", "kl_k3")),
)
wrong(
    T,
    "Your KL is cut off at 0. An estimate may be negative, and the controller has to hear it.",
    (KL, KL.replace("kl_k1(old_logprobs, ref_logprobs)", "kl_k1(old_logprobs, ref_logprobs).clamp(min=0)")),
)
wrong(
    T,
    "Your KL is that of the policy after the update. It is about the policy that sampled.",
    (
        KL,
        """with torch.no_grad():
            moved, _ = response_logprobs_and_values(self.model, full_ids, full_mask, n_response)
        """
        + KL.replace("old_logprobs", "moved"),
    ),
)
wrong(
    T,
    "The losses in your stats are those of the last pass alone.",
    ("            infos += of_this_pass\n", "            infos = of_this_pass\n"),
)
wrong(
    T,
    "The losses in your stats leave out the pass that ended the update, unless it is the first one.",
    ("            infos += of_this_pass\n", ""),
    (
        "            if config.target_kl is not None",
        "            ends = config.target_kl is not None and approx_kl > 1.5 * config.target_kl\n"
        "            infos += [] if infos and ends else of_this_pass\n"
        "            if config.target_kl is not None",
    ),
)
wrong(
    T,
    "The controller is told the absolute value of the KL. An estimate may be below 0, and it has to hear that.",
    ("self.kl_ctl.update(kl,", "self.kl_ctl.update(abs(kl),"),
)
wrong(
    T,
    "The losses in your stats are those of the first mini-batch alone.",
    ("self._stats(infos,", "self._stats(infos[:1],"),
)
wrong(
    T,
    "The losses in your stats are those of the last mini-batch alone.",
    ("self._stats(infos,", "self._stats(infos[-1:],"),
)
wrong(T, "Your stats are not logged.", ("return self._log(stats)", "return stats"))
wrong(
    T,
    "Your stats are logged in each pass. They belong to a step.",
    (
        "            infos += of_this_pass\n",
        "            infos += of_this_pass\n            self._log({'ppo/kl': 0.0})\n",
    ),
)
wrong(T, "Your step returns nothing.", ("return self._log(stats)", "self._log(stats)"))
wrong(
    T,
    "The reference becomes the policy behind each step. It stays what it was at the very beginning.",
    (
        "return self._log(stats)",
        "self.ref_model.load_state_dict(self.model.state_dict())\n        return self._log(stats)",
    ),
)
wrong(
    T,
    "Your step writes into the queries of the caller.",
    (
        "        n_response = mask.shape[1]\n",
        "        n_response = mask.shape[1]\n        queries[0].zero_()\n",
    ),
)
wrong(
    T,
    "Your step writes into the scores of the caller.",
    (
        "        n_response = mask.shape[1]\n",
        "        n_response = mask.shape[1]\n        for one in scores:\n            one.sub_(score.mean())\n",
    ),
)

right(
    T,
    "counting mini-batches, rows shuffled by Python, token sums in place of shares, gradients set back behind each step",
    (ZERO, ""),
    ("        infos = []\n", "        infos = []\n        self.optimizer.zero_grad()\n"),
    (ORDER, "order = torch.tensor(random.sample(range(config.batch_size), config.batch_size))"),
    (
        SHARE + "\n" + BACKWARD,
        "n_tokens = int(mask[update].sum())\n                    (loss * int(mask[rows].sum()) / n_tokens).backward()\n",
    ),
    (MOVE, MOVE + "                self.optimizer.zero_grad()\n"),
    imports="import random",
)
right(
    T,
    "one backward pass through the weighted sum of the mini-batches",
    (ZERO, ZERO + "                total = 0.0\n"),
    (BACKWARD, "                    total = total + share * loss\n"),
    (CLIP, "                total.backward()\n" + CLIP),
)
right(
    T,
    "white by the sample variance, as some libraries do",
    (
        WHITEN,
        "        valid = advantages[mask.bool()]\n        advantages = (advantages - valid.mean()) / (valid.std() + 1e-8)\n",
    ),
    differs=True,
)
right(
    T,
    "what stays fixed is read in mini-batches, and each mini-batch is cut to its longest response",
    (
        """            old_logprobs, old_values = response_logprobs_and_values(
                self.model, full_ids, full_mask, n_response
            )
""",
        """            read = [
                response_logprobs_and_values(self.model, ids, mask_of, n_response)
                for ids, mask_of in zip(full_ids.split(config.mini_batch_size), full_mask.split(config.mini_batch_size))
            ]
            old_logprobs, old_values = (torch.cat([each[i] for each in read]) for i in (0, 1))
""",
    ),
    (
        """                    new_logprobs, new_values = response_logprobs_and_values(
                        self.model, full_ids[rows], full_mask[rows], n_response
                    )
""",
        """                    cut = int(mask[rows].sum(-1).max())
                    end = full_ids.shape[1] - n_response + cut
                    new_logprobs, new_values = response_logprobs_and_values(
                        self.model, full_ids[rows, :end], full_mask[rows, :end], cut
                    )
""",
    ),
    (OF_POLICY, "new_logprobs, old_logprobs[rows, :cut], advantages[rows, :cut],"),
    (OF_CRITIC, "new_values, old_values[rows, :cut], returns[rows, :cut], mask[rows, :cut],"),
)
right(
    T,
    "the stats by hand, with the promised names alone; the KL by einsum, and told as a tensor",
    (KL, 'kl = torch.einsum("bt,bt->", old_logprobs - ref_logprobs, mask.float()) / len(mask)'),
    (
        "stats = self._stats(infos, kl, kl_coef, score, full_mask, mask, old_logprobs, old_values, returns)",
        """mean = {name: sum(info[name] for info in infos) / len(infos) for name in infos[0]}
        stats = {
            "ppo/kl": float(kl), "objective/kl": float(kl), "objective/kl_coef": kl_coef,
            "ppo/mean_scores": float(score.mean()), "ppo/loss/policy": mean["policy_loss"],
            "ppo/loss/value": mean["value_loss"],
            "ppo/loss/total": mean["policy_loss"] + config.vf_coef * mean["value_loss"],
            "ppo/policy/approxkl": mean["approx_kl"], "ppo/policy/clipfrac": mean["clipfrac"],
        }""",
    ),
)
