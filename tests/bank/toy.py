"""Wrong and correct implementations of the exercises in `toy.py`."""

from . import body, right, wrong

# --- 7.1 ToyLanguageModel -------------------------------------------------------------------------

LM = "ToyLanguageModel"
EMBEDDING = "self.embedding = nn.Embedding(vocab_size, embed_dim)"
LSTM = "self.lstm = nn.LSTM(embed_dim, hidden_dim, num_layers, batch_first=True)"
LM_HEAD = "self.lm_head = nn.Linear(hidden_dim, vocab_size)"
LOGITS = "logits, _ = self(input_ids[:, :-1])"
LOG_SOFTMAX = "F.log_softmax(logits, dim=-1)"
GATHER = "return logprobs.gather(-1, input_ids[:, 1:].unsqueeze(-1)).squeeze(-1)"
READ_PROMPT = "logits, hidden = self(prompt_ids)"
DISTRIBUTION = "Categorical(logits=logits[:, -1] / temperature)"
DRAWN = "next_ids = distribution.sample()"
SCORED = "distribution.log_prob(next_ids).masked_fill(ended, 0.0)"
PADDED = "            next_ids = next_ids.masked_fill(ended, PAD)\n"
ENDED = "ended |= next_ids == EOS"
NEXT = "logits, hidden = self(ids[-1], hidden)"
BEGIN_ENDED = "ended = torch.zeros(len(prompt_ids), dtype=torch.bool, device=prompt_ids.device)"

wrong(
    LM,
    "Your LSTM takes its first dimension for time: the rows of a batch are read one after the other, as one text.",
    (LSTM, LSTM.replace(", batch_first=True", "")),
)
wrong(LM, "Your LSTM has one layer, whatever num_layers says.", (LSTM, LSTM.replace("num_layers, ", "1, ")))
wrong(LM, "Your LSTM has two layers, whatever num_layers says.", (LSTM, LSTM.replace("num_layers, ", "2, ")))
wrong(
    LM,
    "Your LSTM reads from both sides: what comes later is known before it is predicted.",
    (LSTM, LSTM.replace("batch_first=True", "batch_first=True, bidirectional=True")),
    (LM_HEAD, LM_HEAD.replace("hidden_dim", "2 * hidden_dim")),
)
wrong(
    LM,
    "There is dropout between the layers of your LSTM.",
    (LSTM, LSTM.replace("batch_first=True", "batch_first=True, dropout=0.1 * (num_layers > 1)")),
)
wrong(
    LM,
    "The LSTM is as wide as the embedding; hidden_dim is its width.",
    (LSTM, LSTM.replace("hidden_dim", "embed_dim")),
    (LM_HEAD, LM_HEAD.replace("hidden_dim", "embed_dim")),
)
wrong(LM, "Your head has no bias.", (LM_HEAD, LM_HEAD.replace("vocab_size)", "vocab_size, bias=False)")))
wrong(
    LM,
    "The vocabulary has 30 tokens in your model, whatever vocab_size says.",
    (EMBEDDING, EMBEDDING.replace("vocab_size", "30")),
    (LM_HEAD, LM_HEAD.replace("vocab_size", "30")),
)
wrong(
    LM,
    "Your embedding has a padding index: the vector of PAD is 0 and learns nothing, though PAD is a token like any other.",
    (EMBEDDING, EMBEDDING.replace("embed_dim)", "embed_dim, padding_idx=PAD)")),
)
wrong(
    LM,
    "Your LSTM has no biases.",
    (LSTM, LSTM.replace("batch_first=True", "batch_first=True, bias=False")),
)
wrong(
    LM,
    "A default of your __init__ is not that of the signature that you were given.",
    ("hidden_dim: int = 128", "hidden_dim: int = 64"),
)
wrong(
    LM,
    "Each token is scored with the logits at its own position. Those are about the token after it.",
    (LOGITS, "logits, _ = self(input_ids[:, 1:])"),
)
wrong(
    LM,
    "You score the tokens that went in, not those that follow them.",
    (GATHER, GATHER.replace("input_ids[:, 1:]", "input_ids[:, :-1]")),
)
wrong(
    LM,
    "The first token is scored too, with the logits behind it: one column too many.",
    (LOGITS, "logits, _ = self(input_ids)"),
    (GATHER, GATHER.replace("input_ids[:, 1:]", "input_ids")),
)
wrong(LM, "You return probabilities, not their logarithms.", (GATHER, GATHER + ".exp()"))
wrong(LM, "You return logits: nothing has normalised them.", (LOG_SOFTMAX, "logits"))
wrong(
    LM,
    "The logarithm of a softmax is minus infinity where the softmax is rounded to 0.",
    (LOG_SOFTMAX, "F.softmax(logits, dim=-1).log()"),
)
wrong(
    LM,
    "You add a small number before the logarithm: unlikely tokens are all equally unlikely then.",
    (LOG_SOFTMAX, "(F.softmax(logits, dim=-1) + 1e-8).log()"),
)
wrong(
    LM,
    "Your softmax runs along the positions, not along the vocabulary.",
    (LOG_SOFTMAX, "F.log_softmax(logits, dim=1)"),
)
wrong(
    LM,
    "You return the largest log-probability at each position, whatever token is there.",
    (GATHER, "return logprobs.max(dim=-1).values"),
)
wrong(
    LM,
    "You return the log-probabilities of all tokens. The one that is there is asked for.",
    (GATHER, "return logprobs"),
)
wrong(
    LM,
    "You add up the log-probabilities of a row. One for each token is asked for.",
    (GATHER, GATHER + ".sum(-1)"),
)
wrong(
    LM,
    "Your result keeps a last dimension of 1.",
    (GATHER, GATHER.removesuffix(".squeeze(-1)")),
)
wrong(
    LM,
    "You squeeze all dimensions of size 1: a batch of one row loses its own.",
    (GATHER, GATHER.removesuffix("(-1)") + "()"),
)
wrong(
    LM,
    "You return a negative log-likelihood: the sign is turned around.",
    (GATHER, GATHER.replace("return ", "return -")),
)
wrong(
    LM,
    "PAD gets log-probability 0 from you. Which tokens count is the business of the mask.",
    (GATHER, GATHER + ".masked_fill(input_ids[:, 1:] == PAD, 0.0)"),
)
wrong(
    LM,
    "Your log-probabilities are cut off from the gradient: nothing can be trained with them.",
    (GATHER, GATHER + ".detach()"),
)
wrong(
    LM,
    "Your log-probabilities are limited from below: tokens that are less likely than that get no gradient.",
    (GATHER, GATHER + ".clamp(min=-20.0)"),
)
wrong(
    LM,
    "Only the last token of the prompt is read before you begin to sample.",
    (READ_PROMPT, "logits, hidden = self(prompt_ids[:, -1:])"),
)
wrong(
    LM,
    "The state of the LSTM is not handed on: each token is drawn from the one before it alone.",
    (NEXT, "logits, hidden = self(ids[-1])"),
)
wrong(
    LM,
    "You hand on the state of the prompt for ever: what has been drawn since is forgotten.",
    (NEXT, "logits, _ = self(ids[-1], hidden)"),
)
wrong(
    LM,
    "You read the whole text again on top of the state that has read it already.",
    (NEXT, "logits, hidden = self(torch.cat(ids, dim=-1), hidden)"),
)
wrong(
    LM,
    "You always take the likeliest token. A response is a sample.",
    (DRAWN, "next_ids = logits[:, -1].argmax(-1)"),
)
wrong(
    LM,
    "One token is drawn for all rows.",
    (DRAWN, "next_ids = distribution.sample()[:1].expand(len(prompt_ids)).clone()"),
)
wrong(
    LM,
    "Your samples come from a uniform distribution, not from the model.",
    (DRAWN, "next_ids = torch.randint(logits.shape[-1], (len(prompt_ids),))"),
)
wrong(
    LM,
    "You cut off the unlikely tokens before you draw. A response is a sample of the whole distribution.",
    (
        DRAWN,
        "kept = (logits[:, -1] / temperature).topk(3, dim=-1)\n"
        "            drawn = Categorical(logits=kept.values).sample().unsqueeze(-1)\n"
        "            next_ids = kept.indices.gather(-1, drawn).squeeze(-1)",
    ),
)
wrong(LM, "The temperature is not used.", (DISTRIBUTION, "Categorical(logits=logits[:, -1])"))
wrong(
    LM,
    "You multiply the logits by the temperature. A low one has to sharpen the distribution.",
    (DISTRIBUTION, "Categorical(logits=logits[:, -1] * temperature)"),
)
wrong(
    LM,
    "You divide the probabilities by the temperature, where it cancels.",
    (DISTRIBUTION, "Categorical(probs=logits[:, -1].softmax(-1) / temperature)"),
)
wrong(
    LM,
    "You take the logits for probabilities: they are not, before a softmax.",
    (DISTRIBUTION, "Categorical(probs=(logits[:, -1] / temperature).exp().clamp(max=1.0))"),
)
wrong(
    LM,
    "The log-probabilities are those of temperature 1, and the samples are not.",
    (SCORED, "Categorical(logits=logits[:, -1]).log_prob(next_ids).masked_fill(ended, 0.0)"),
)
wrong(
    LM,
    "You keep probabilities, not their logarithms.",
    (SCORED, "distribution.log_prob(next_ids).exp().masked_fill(ended, 0.0)"),
)
wrong(
    LM,
    "Behind the end of a row the log-probabilities are not 0.",
    (SCORED, "distribution.log_prob(next_ids)"),
)
wrong(
    LM,
    "The EOS has log-probability 0 in your answer. It is drawn like any other token.",
    (SCORED, "distribution.log_prob(next_ids).masked_fill(ended | (next_ids == EOS), 0.0)"),
)
wrong(LM, "Behind its EOS a row goes on with tokens: PAD belongs there.", (PADDED, ""))
wrong(
    LM,
    "Behind the end of a row you put EOS, not PAD.",
    (PADDED, PADDED.replace("ended, PAD", "ended, EOS")),
)
wrong(
    LM,
    "Rows never end: nothing remembers that an EOS was drawn.",
    (ENDED, "pass"),
)
wrong(
    LM,
    "A row is remembered as ended for one step only.",
    (ENDED, "ended = next_ids == EOS"),
)
wrong(
    LM,
    "All rows end as soon as one of them does.",
    (ENDED, "ended |= (next_ids == EOS).any()"),
)
wrong(
    LM,
    "You stop as soon as one row has ended; the others are cut.",
    (ENDED, "ended |= next_ids == EOS\n            if ended.any():\n                break"),
)
wrong(
    LM,
    "A row ends with its PAD in your code. PAD may be drawn like any other token.",
    (ENDED, "ended |= (next_ids == EOS) | (next_ids == PAD)"),
)
wrong(
    LM,
    "An EOS in the prompt ends your row before it has begun.",
    (BEGIN_ENDED, "ended = (prompt_ids == EOS).any(-1)"),
)
wrong(
    LM,
    "PAD cannot be drawn in your code: you sample from another distribution than the model's.",
    (
        DISTRIBUTION,
        "Categorical(logits=(logits[:, -1] / temperature).index_fill(-1, torch.tensor([PAD]), -1e9))",
    ),
)
wrong(
    LM,
    "EOS is dropped from your answer: PAD stands where it was drawn.",
    (PADDED, "            was = next_ids == EOS\n" + PADDED),
    (ENDED, "ended |= was\n            ids[-1] = ids[-1].masked_fill(was.unsqueeze(-1), PAD)"),
)
wrong(
    LM,
    "Your response has one token too many.",
    ("for _ in range(max_len):", "for _ in range(max_len + 1):"),
)
wrong(
    LM,
    "max_len counts the prompt in your code. It is the length of the response.",
    ("for _ in range(max_len):", "for _ in range(max(max_len - prompt_ids.shape[1], 1)):"),
)
wrong(
    LM,
    "You return the response alone. The prompt belongs in front of it.",
    ("return torch.cat(ids, dim=-1), torch", "return torch.cat(ids[1:], dim=-1), torch"),
)
wrong(
    LM,
    "Your log-probabilities are one number for each row.",
    ("torch.stack(logprobs, dim=-1)\n", "torch.stack(logprobs, dim=-1).sum(-1)\n"),
)
wrong(
    LM,
    "Your log-probabilities are [response, batch], the wrong way round.",
    ("torch.stack(logprobs, dim=-1)\n", "torch.stack(logprobs, dim=0)\n"),
)
wrong(
    LM,
    "A seed is set in your generate: every call draws the same.",
    (
        "        ids, logprobs = [prompt_ids], []\n",
        "        torch.manual_seed(0)\n        ids, logprobs = [prompt_ids], []\n",
    ),
)
wrong(
    LM,
    "Your generate leaves the model in evaluation mode.",
    (
        "        ids, logprobs = [prompt_ids], []\n",
        "        self.eval()\n        ids, logprobs = [prompt_ids], []\n",
    ),
)
right(LM, "logits of the whole row, the last one dropped", (LOGITS, "logits = self(input_ids)[0][:, :-1]"))
right(
    LM,
    "cross-entropy, negative",
    (
        GATHER,
        "return -F.cross_entropy(logits.transpose(1, 2), input_ids[:, 1:], reduction='none')",
    ),
)
right(
    LM,
    "logits minus their logsumexp",
    (LOG_SOFTMAX, "logits - logits.logsumexp(-1, keepdim=True)"),
)
right(
    LM,
    "the whole text is read anew for each token",
    (NEXT, "logits, _ = self(torch.cat(ids, dim=-1))"),
)
right(
    LM,
    "multinomial on the softmax, log_softmax for the number",
    (DISTRIBUTION, "(logits[:, -1] / temperature).log_softmax(-1)"),
    (DRAWN, "next_ids = torch.multinomial(distribution.exp(), 1).squeeze(-1)"),
    (SCORED, "distribution.gather(-1, next_ids.unsqueeze(-1)).squeeze(-1).masked_fill(ended, 0.0)"),
)
right(
    LM,
    "stops when all rows have ended",
    (NEXT, "if ended.all():\n                break\n            " + NEXT),
)
right(
    LM,
    "row by row",
    (
        """        ids, logprobs = [prompt_ids], []
        ended = torch.zeros(len(prompt_ids), dtype=torch.bool, device=prompt_ids.device)
        logits, hidden = self(prompt_ids)
        for _ in range(max_len):
            distribution = Categorical(logits=logits[:, -1] / temperature)
            next_ids = distribution.sample()
            logprobs.append(distribution.log_prob(next_ids).masked_fill(ended, 0.0))
            next_ids = next_ids.masked_fill(ended, PAD)
            ids.append(next_ids.unsqueeze(-1))
            ended |= next_ids == EOS
            logits, hidden = self(ids[-1], hidden)
        return torch.cat(ids, dim=-1), torch.stack(logprobs, dim=-1)
""",
        """        texts, numbers = [], []
        for row in prompt_ids:
            text, number = row.tolist(), []
            logits, hidden = self(row.unsqueeze(0))
            while len(number) < max_len:
                distribution = Categorical(logits=logits[0, -1] / temperature)
                token = distribution.sample()
                text.append(int(token))
                number.append(float(distribution.log_prob(token)))
                if token == EOS:
                    break
                logits, hidden = self(token.view(1, 1), hidden)
            missing = max_len - len(number)
            texts.append(text + [PAD] * missing)
            numbers.append(number + [0.0] * missing)
        return torch.tensor(texts), torch.tensor(numbers)
""",
    ),
)

# --- 7.2 rule_reward ------------------------------------------------------------------------------

RULE = "rule_reward"
LENGTH = "2.0 * math.exp(-((n_letters - 15) ** 2) / 50)"
DIVERSITY = "3.0 * len(set(text)) / max(n_letters, 1)"
RHYTHM = "3.0 * sum((a in VOWELS) != (b in VOWELS) for a, b in neighbours) / max(len(neighbours), 1)"
TOO_SHORT = "max(0, 3 - n_letters)"
REPETITION = "min(2.0, 0.5 * sum(a == b for a, b in neighbours))"
TOTAL = "return length + diversity + rhythm - too_short - repetition"

wrong(RULE, "Your best length is 10.", (LENGTH, LENGTH.replace("15", "10")))
wrong(RULE, "Your bell of the length is too narrow, or too wide.", (LENGTH, LENGTH.replace("/ 50", "/ 25")))
wrong(
    RULE,
    "You divide by the width before you square: the bell of the length is far too narrow or too wide.",
    (LENGTH, "2.0 * math.exp(-(((n_letters - 15) / 50) ** 2))"),
)
wrong(
    RULE,
    "The distance to the best length is not squared.",
    (LENGTH, "2.0 * math.exp(-abs(n_letters - 15) / 50)"),
)
wrong(
    RULE,
    "Your length is worth more the further it is from the best one: the sign in the exponent is missing.",
    (LENGTH, "2.0 * math.exp(min(((n_letters - 15) ** 2) / 50, 20.0))"),
)
wrong(RULE, "The best length is worth 1 in your code, not 2.", (LENGTH, LENGTH.replace("2.0 * ", "")))
wrong(RULE, "Your length is worth the same for all texts longer than the best one.", (LENGTH, LENGTH.replace("n_letters - 15", "min(n_letters, 15) - 15")))  # fmt: skip
wrong(
    RULE,
    "You count different letters. Diversity is their share among all letters.",
    (DIVERSITY, "3.0 * len(set(text))"),
)
wrong(RULE, "Diversity is worth 1 at most in your code, not 3.", (DIVERSITY, DIVERSITY.replace("3.0 * ", "")))
wrong(
    RULE,
    "You divide the different letters by the size of the alphabet.",
    (DIVERSITY, "3.0 * len(set(text)) / 26"),
)
wrong(
    RULE,
    "You count letters that occur once. A letter that repeats is one of the different letters too.",
    (DIVERSITY, "3.0 * sum(text.count(letter) == 1 for letter in text) / max(n_letters, 1)"),
)
wrong(RULE, "Your diversity rewards repetition: it is upside down.", (DIVERSITY, "3.0 * (1 - len(set(text)) / max(n_letters, 1)) * (n_letters > 0)"))  # fmt: skip
wrong(RULE, "A text without letters is divided by 0.", (DIVERSITY, "3.0 * len(set(text)) / n_letters"))
wrong(RULE, "A text of one letter is divided by its 0 neighbours.", (RHYTHM, RHYTHM.replace("max(len(neighbours), 1)", "len(neighbours)")))  # fmt: skip
wrong(
    RULE,
    "You count equal kinds of neighbours as rhythm: two vowels, or two consonants.",
    (RHYTHM, RHYTHM.replace("!=", "==")),
)
wrong(
    RULE,
    "You count only a vowel behind a consonant. A consonant behind a vowel alternates too.",
    (RHYTHM, RHYTHM.replace("(a in VOWELS) != (b in VOWELS)", "a not in VOWELS and b in VOWELS")),
)
wrong(RULE, "You divide the rhythm by the letters; there is one neighbour less.", (RHYTHM, RHYTHM.replace("max(len(neighbours), 1)", "max(n_letters, 1)")))  # fmt: skip
wrong(RULE, "Your rhythm is not divided by anything: long texts get more of it.", (RHYTHM, RHYTHM.replace(" / max(len(neighbours), 1)", "")))  # fmt: skip
wrong(RULE, "Rhythm is worth 1 at most in your code, not 3.", (RHYTHM, RHYTHM.replace("3.0 * ", "")))
wrong(
    RULE,
    "You look at every other pair of neighbours only.",
    ("list(zip(text, text[1:]))", "list(zip(text[::2], text[1::2]))"),
)
wrong(
    RULE, "y is a vowel for you, and not for the rule.", (RHYTHM, RHYTHM.replace("in VOWELS", 'in "aeiouy"'))
)
wrong(RULE, "You forgot a vowel.", (RHYTHM, RHYTHM.replace("in VOWELS", 'in "aeio"')))
wrong(
    RULE,
    "You count vowels. Rhythm is about neighbours.",
    (RHYTHM, "3.0 * sum(a in VOWELS for a in text) / max(n_letters, 1)"),
)
wrong(RULE, "A short text is not fined at all.", (TOO_SHORT, "0"))
wrong(
    RULE, "Every text shorter than 3 letters is fined by the same amount.", (TOO_SHORT, "3 * (n_letters < 3)")
)
wrong(RULE, "Your fine for short texts turns into a reward for long ones.", (TOO_SHORT, "3 - n_letters"))
wrong(
    RULE,
    "A short text gets a reward in your code, not a fine.",
    (TOTAL, TOTAL.replace("- too_short", "+ too_short")),
)
wrong(RULE, "Your limit of a short text is one letter off.", (TOO_SHORT, TOO_SHORT.replace("3", "4")))
wrong(RULE, "Repetition is not fined at all.", (REPETITION, "0.0"))
wrong(RULE, "A repetition costs 1 in your code, not 0.5.", (REPETITION, REPETITION.replace("0.5 * ", "")))
wrong(
    RULE,
    "The fine for repetition has no limit in your code.",
    (REPETITION, "0.5 * sum(a == b for a, b in neighbours)"),
)
wrong(
    RULE,
    "You limit the number of repetitions, not what they cost.",
    (REPETITION, "0.5 * min(2, sum(a == b for a, b in neighbours))"),
)
wrong(RULE, "Repetition is rewarded in your code.", (TOTAL, TOTAL.replace("- repetition", "+ repetition")))
wrong(
    RULE,
    "You take the larger of limit and fine: every text is fined.",
    (REPETITION, REPETITION.replace("min(", "max(")),
)
wrong(
    RULE,
    "You count letters that occurred anywhere before. A repetition is a letter that equals the one just before it.",
    (REPETITION, "min(2.0, 0.5 * (n_letters - len(set(text))))"),
)
wrong(
    RULE,
    "A run of equal letters is one repetition for you. Each letter that equals the one before it is one.",
    (REPETITION, "min(2.0, 0.5 * sum(a == b != c for c, a, b in zip(' ' + text, text, text[1:])))"),
)
wrong(
    RULE,
    "Your reward is clamped at 0: bad texts are all equally bad.",
    (TOTAL, TOTAL.replace("return ", "return max(0.0, ") + ")"),
)
wrong(
    RULE,
    "Your reward is divided by the number of rules.",
    (TOTAL, TOTAL.replace("return ", "return (") + ") / 5"),
)
wrong(RULE, "Your reward is a whole number.", (TOTAL, TOTAL.replace("return ", "return int(") + ")"))
right(
    RULE,
    "with a loop",
    body("""
    n = len(text)
    if n == 0:
        return 2.0 * math.exp(-4.5) - 3.0
    alternating = repeated = 0
    for i in range(1, n):
        alternating += (text[i] in "aeiou") is not (text[i - 1] in "aeiou")
        repeated += text[i] == text[i - 1]
    total = 2 * math.exp(-(n - 15) * (n - 15) / 50) + 3 * len(set(text)) / n
    if n > 1:
        total += 3 * alternating / (n - 1)
    if n < 3:
        total -= 3 - n
    return total - min(repeated / 2, 2)
    """),
)
right(
    RULE,
    "with tensors",
    body("""
    ids = torch.tensor(encode(text), dtype=torch.long)
    vowels = torch.isin(ids, torch.tensor(encode("aeiou")))
    n = len(ids)
    total = 2.0 * torch.exp(-torch.tensor((n - 15.0) ** 2 / 50, dtype=torch.float64)).item()
    total += 3.0 * len(ids.unique()) / max(n, 1)
    total += 3.0 * (vowels[1:] ^ vowels[:-1]).sum().item() / max(n - 1, 1)
    total -= max(0.0, 3.0 - n)
    return total - min(2.0, 0.5 * (ids[1:] == ids[:-1]).sum().item())
    """),
)
right(
    RULE,
    "runs of equal letters",
    (REPETITION, "min(2.0, 0.5 * sum(len(list(run)) - 1 for _, run in groupby(text)))"),
    imports="from itertools import groupby",
)

# --- 7.3 ValueNetwork -----------------------------------------------------------------------------

CRITIC = "ValueNetwork"
FIRST, SECOND = "hidden = F.relu(self.fc1(states))", "hidden = F.relu(self.fc2(hidden))"
THIRD = "return self.fc3(hidden).squeeze(-1)"
FC2, FC3 = "self.fc2 = nn.Linear(hidden_dim, hidden_dim)", "self.fc3 = nn.Linear(hidden_dim, 1)"

wrong(CRITIC, "There is no ReLU after the first layer.", (FIRST, "hidden = self.fc1(states)"))
wrong(CRITIC, "There is no ReLU after the second layer.", (SECOND, "hidden = self.fc2(hidden)"))
wrong(
    CRITIC,
    "There is no ReLU at all: three linear layers are then one.",
    (FIRST, "hidden = self.fc1(states)"),
    (SECOND, "hidden = self.fc2(hidden)"),
)
wrong(
    CRITIC,
    "There is a ReLU behind the last layer: no value can be below 0.",
    (THIRD, "return F.relu(self.fc3(hidden)).squeeze(-1)"),
)
wrong(CRITIC, "A tanh limits your values.", (THIRD, "return torch.tanh(self.fc3(hidden)).squeeze(-1)"))
wrong(CRITIC, "A sigmoid limits your values.", (THIRD, "return torch.sigmoid(self.fc3(hidden)).squeeze(-1)"))
wrong(CRITIC, "Your hidden layers use tanh.", (FIRST, FIRST.replace("F.relu", "torch.tanh")), (SECOND, SECOND.replace("F.relu", "torch.tanh")))  # fmt: skip
wrong(CRITIC, "The last dimension of 1 is left.", (THIRD, "return self.fc3(hidden)"))
wrong(
    CRITIC,
    "You squeeze all dimensions of size 1, that of a single state too.",
    (THIRD, "return self.fc3(hidden).squeeze()"),
)
wrong(CRITIC, "You squeeze another dimension than the last.", (THIRD, "return self.fc3(hidden).squeeze(0)"))
wrong(CRITIC, "There are two layers, not three.", (SECOND, "pass"), (FC2, "pass"))
wrong(CRITIC, "Your second layer goes back to the width of the embedding.", (FC2, "self.fc2 = nn.Linear(hidden_dim, embed_dim)"), (FC3, "self.fc3 = nn.Linear(embed_dim, 1)"))  # fmt: skip
wrong(CRITIC, "Your critic has one value for each hidden number.", (FC3, "self.fc3 = nn.Linear(hidden_dim, hidden_dim)"), (THIRD, "return self.fc3(hidden).mean(-1)"))  # fmt: skip
wrong(CRITIC, "The width of your hidden layers is fixed at 64.", ("self.fc1 = nn.Linear(embed_dim, hidden_dim)", "self.fc1 = nn.Linear(embed_dim, 64)"), (FC2, "self.fc2 = nn.Linear(64, 64)"), (FC3, "self.fc3 = nn.Linear(64, 1)"))  # fmt: skip
wrong(CRITIC, "Your last layer has no bias.", (FC3, "self.fc3 = nn.Linear(hidden_dim, 1, bias=False)"))
wrong(
    CRITIC,
    "There is dropout in your critic.",
    (SECOND, SECOND + "\n        hidden = F.dropout(hidden, 0.1, self.training)"),
)
wrong(
    CRITIC, "You cut the gradient between the layers.", (SECOND, "hidden = F.relu(self.fc2(hidden.detach()))")
)
wrong(CRITIC, "You average over the states before the last layer: one value for all of them.", (THIRD, "return self.fc3(hidden.mean(0, keepdim=True)).squeeze(-1).expand(hidden.shape[:-1])"))  # fmt: skip
wrong(CRITIC, "Your values are shifted by their mean over the batch.", (THIRD, "value = self.fc3(hidden).squeeze(-1)\n        return value - value.mean()"))  # fmt: skip
wrong(
    CRITIC,
    "One layer is used twice, and another one never.",
    (SECOND, "hidden = F.relu(self.fc2(F.relu(self.fc2(hidden))))"),
)
wrong(CRITIC, "A default of your __init__ is not that of the signature that you were given.", ("hidden_dim: int = 64", "hidden_dim: int = 128"))  # fmt: skip
right(
    CRITIC,
    "a Sequential",
    (
        "self.fc1 = nn.Linear(embed_dim, hidden_dim)",
        "self.net = nn.Sequential(nn.Linear(embed_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, hidden_dim), nn.ReLU(), "
        "nn.Linear(hidden_dim, 1))",
    ),
    (f"        {FC2}\n", ""),
    (f"        {FC3}\n", ""),
    (FIRST, "hidden = self.net(states)"),
    (f"        {SECOND}\n", ""),
    (THIRD, "return hidden[..., 0]"),
)
right(
    CRITIC,
    "clamp for ReLU",
    (FIRST, "hidden = self.fc1(states).clamp(min=0)"),
    (THIRD, "return self.fc3(hidden)[..., 0]"),
)

# --- 7.4 gae_with_dones ---------------------------------------------------------------------------

GAE = "gae_with_dones"
TD = "td_error = rewards[t] + gamma * next_value * goes_on - values[t]"
SUM = "next_advantage = td_error + gamma * lam * goes_on * next_advantage"
CARRY = "next_value = values[t]"
STORE = "advantages[t] = next_advantage"
GOES_ON = "goes_on = 1.0 - dones[t]"

wrong(
    GAE, "The value of the next step is missing in your TD error.", (TD, "td_error = rewards[t] - values[t]")
)
wrong(
    GAE,
    "Your TD error does not subtract the value of its own step.",
    (TD, "td_error = rewards[t] + gamma * next_value * goes_on"),
)
wrong(
    GAE,
    "The values have the wrong sign in your TD error.",
    (TD, "td_error = rewards[t] - gamma * next_value * goes_on + values[t]"),
)
wrong(
    GAE, "The value of the next step is not discounted.", (TD, TD.replace("gamma * next_value", "next_value"))
)
wrong(GAE, "You discount the value of the next step with gamma and lambda. lambda weighs TD errors.", (TD, TD.replace("gamma * next_value", "gamma * lam * next_value")))  # fmt: skip
wrong(GAE, "You discount the value of the next step with lambda in place of gamma.", (TD, TD.replace("gamma * next_value", "lam * next_value")))  # fmt: skip
wrong(
    GAE,
    "The value of the next episode leaks into the TD error of an episode that has ended.",
    (TD, TD.replace(" * goes_on", "")),
)
wrong(
    GAE,
    "The advantages of the next episode leak into the one that has ended.",
    (SUM, SUM.replace("goes_on * ", "")),
)
wrong(
    GAE,
    "Your dones stop nothing: all episodes are one.",
    (TD, TD.replace(" * goes_on", "")),
    (SUM, SUM.replace("goes_on * ", "")),
)
wrong(
    GAE,
    "dones is upside down in your code: an episode goes on where it ends.",
    (GOES_ON, "goes_on = dones[t]"),
)
wrong(
    GAE,
    "You look at the end of the next step, not of this one.",
    (GOES_ON, "goes_on = 1.0 - dones[min(t + 1, len(rewards) - 1)]"),
)
wrong(
    GAE, "You look at the end of the step before, not of this one.", (GOES_ON, "goes_on = 1.0 - dones[t - 1]")
)
wrong(GAE, "The reward of a step that is done does not count in your code.", (TD, "td_error = rewards[t] * goes_on + gamma * next_value * goes_on - values[t]"))  # fmt: skip
wrong(GAE, "A step that is done has advantage 0 in your code.", (TD, "td_error = (rewards[t] + gamma * next_value - values[t]) * goes_on"))  # fmt: skip
wrong(GAE, "The last step is always an end for you: next_value never counts.", ("    next_advantage = 0.0\n", "    next_advantage, next_value = 0.0, 0.0\n"))  # fmt: skip
wrong(GAE, "next_value counts although the last step is done.", (TD, TD.replace("next_value * goes_on", "next_value * (goes_on if t < len(rewards) - 1 else 1.0)")))  # fmt: skip
wrong(GAE, "next_value stays the value of the next step for ever.", (f"        {CARRY}\n", ""))
wrong(
    GAE,
    "The running sum also begins with next_value: it counts twice.",
    ("next_advantage = 0.0", "next_advantage = next_value"),
)
wrong(GAE, "lambda is missing in your sum.", (SUM, SUM.replace("gamma * lam", "gamma")))
wrong(GAE, "gamma is missing in your sum.", (SUM, SUM.replace("gamma * lam", "lam")))
wrong(GAE, "There is no sum in your code: these are TD errors.", (SUM, "next_advantage = td_error"))
wrong(GAE, "You weigh the TD error with 1 - lambda: that is an average, and GAE is a sum.", (SUM, SUM.replace("= td_error", "= (1 - lam) * td_error")))  # fmt: skip
wrong(
    GAE,
    "Your loop runs forwards: what comes later is not known yet.",
    ("reversed(range(len(rewards)))", "range(len(rewards))"),
)
wrong(
    GAE,
    "Your loop leaves out the first step.",
    ("reversed(range(len(rewards)))", "reversed(range(1, len(rewards)))"),
)
wrong(
    GAE,
    "Your loop leaves out the last step.",
    ("reversed(range(len(rewards)))", "reversed(range(max(len(rewards) - 1, 1)))"),
)
wrong(
    GAE,
    "You return the returns: the values are added to the advantages.",
    ("return advantages", "return advantages + values"),
)
wrong(GAE, "You return the TD errors, and the sum is lost.", (STORE, "advantages[t] = td_error"))
wrong(GAE, "Your advantages come in reverse order.", ("return advantages", "return advantages.flip(0)"))
wrong(GAE, "You whiten the advantages. That is done later, over the whole batch.", ("return advantages", "return (advantages - advantages.mean()) / (advantages.std() + 1e-8)"))  # fmt: skip
wrong(
    GAE,
    "You write the advantages into the rewards that you are handed.",
    ("torch.zeros_like(rewards)", "rewards"),
)
wrong(
    GAE,
    "You return two things. Advantages alone are asked for.",
    ("return advantages", "return advantages, advantages + values"),
)
wrong(GAE, "You return a list, not a tensor.", ("return advantages", "return advantages.tolist()"))
wrong(
    GAE,
    "You use the value of the same step as the one of the next.",
    (f"        {CARRY}\n", ""),
    (
        "        goes_on = 1.0 - dones[t]\n",
        "        goes_on = 1.0 - dones[t]\n        next_value = values[t]\n",
    ),
)
wrong(
    GAE,
    "lambda has another default than the signature that you were given.",
    ("lam: float = 0.95", "lam: float = 1.0"),
)
wrong(
    GAE,
    "gamma has another default than the signature that you were given.",
    ("gamma: float = 1.0", "gamma: float = 0.99"),
)
wrong(
    GAE,
    "Your advantages are limited: far better or worse steps count for less.",
    ("return advantages", "return advantages.clamp(-3, 3)"),
)
right(
    GAE,
    "values shifted first",
    body("""
    after = torch.cat([values[1:], values.new_tensor([float(next_value)])])
    errors = rewards + gamma * after * (1 - dones) - values
    running, found = 0.0, []
    for error, done in zip(errors.flip(0), dones.flip(0)):
        running = error + gamma * lam * (1 - done) * running
        found.append(running)
    return torch.stack(found).flip(0)
    """),
)
right(
    GAE,
    "the double sum of the definition",
    body("""
    steps = len(rewards)
    advantages = torch.zeros(steps, dtype=rewards.dtype)
    for t in range(steps):
        weight = 1.0
        for k in range(t, steps):
            after = values[k + 1] if k + 1 < steps else next_value
            advantages[t] += weight * (rewards[k] + gamma * (0.0 if dones[k] else after) - values[k])
            if dones[k]:
                break
            weight *= gamma * lam
    return advantages
    """),
)
right(
    GAE,
    "in plain Python",
    body("""
    r, v, d = rewards.tolist(), values.tolist() + [float(next_value)], dones.tolist()
    out, last = [0.0] * len(r), 0.0
    for t in range(len(r) - 1, -1, -1):
        if d[t]:
            last = r[t] - v[t]
        else:
            last = r[t] + gamma * v[t + 1] - v[t] + gamma * lam * last
        out[t] = last
    return torch.tensor(out)
    """),
)

# --- 7.5 toy_ppo_step -----------------------------------------------------------------------------

STEP = "toy_ppo_step"
GIVEN_REWARDS = "        episodes.scores, episodes.old_logprobs, episodes.ref_logprobs, mask, kl_coef\n"
GET_VALUES = "values = value_network(states)[valid]"
IS_LAST = "is_last = valid & (mask.flip(-1).cumsum(-1).flip(-1) == 1)"
GET_ADVANTAGES = (
    "advantages = gae_with_dones(token_rewards[valid], values, 0.0, is_last[valid].float(), gamma, lam)"
)
RETURNS = "    returns = advantages + values\n"
WHITE = "    advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)\n"
NEW = "new_logprobs = policy.get_log_probs(episodes.ids)[:, episodes.n_prompt - 1 :]"
LOG_RATIO = "log_ratio = (new_logprobs - episodes.old_logprobs)[valid]"
CLIPPED = "clipped_ratio = ratio.clamp(1 - clip_range, 1 + clip_range)"
POLICY_LOSS = "policy_loss = -torch.minimum(ratio * advantages, clipped_ratio * advantages).mean()"
POLICY_ZERO, VALUE_ZERO = "        policy_optim.zero_grad()\n", "        value_optim.zero_grad()\n"
POLICY_BACK, VALUE_BACK = "        policy_loss.backward()\n", "        value_loss.backward()\n"
NORM = "        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)\n"
POLICY_STEP, VALUE_STEP = "        policy_optim.step()\n", "        value_optim.step()\n"
VALUE_LOSS = "value_loss = F.mse_loss(value_network(states)[valid], returns)"
TO_REF = "(episodes.old_logprobs - episodes.ref_logprobs).where(valid, 0.0)"
KL_SUM = "log_ratio_to_ref.sum(dim=-1).mean().item()"
APPROX = '"approx_kl": ((ratio - 1) - log_ratio).mean().item()'
EPOCHS = "    for _ in range(n_epochs):\n"

wrong(STEP, "The KL is charged with the wrong sign: going away from the reference is rewarded.", (GIVEN_REWARDS, GIVEN_REWARDS.replace("episodes.old_logprobs, episodes.ref_logprobs", "episodes.ref_logprobs, episodes.old_logprobs")))  # fmt: skip
wrong(STEP, "There is no KL in your token rewards: the policy may go anywhere.", (GIVEN_REWARDS, GIVEN_REWARDS.replace("episodes.ref_logprobs", "episodes.old_logprobs")))  # fmt: skip
wrong(STEP, "kl_coef does not reach the token rewards: they always use its default.", (GIVEN_REWARDS, GIVEN_REWARDS.replace(", kl_coef", "")))  # fmt: skip
wrong(STEP, "The scores do not reach your token rewards.", (GIVEN_REWARDS, GIVEN_REWARDS.replace("episodes.scores", "episodes.scores * 0")))  # fmt: skip
wrong(STEP, "You subtract the mean of the scores before the rewards are shaped. The critic is there for that.", (GIVEN_REWARDS, GIVEN_REWARDS.replace("episodes.scores", "episodes.scores - episodes.scores.mean()")))  # fmt: skip
wrong(
    STEP,
    "You limit the scores.",
    (GIVEN_REWARDS, GIVEN_REWARDS.replace("episodes.scores", "episodes.scores.clamp(-5, 5)")),
)
wrong(
    STEP,
    "You add the KL to the policy loss. Its gradient there is 0 in expectation: the KL belongs into the token rewards.",
    (GIVEN_REWARDS, GIVEN_REWARDS.replace("kl_coef", "0.0")),
    (POLICY_LOSS, POLICY_LOSS + " + kl_coef * (new_logprobs - episodes.ref_logprobs)[valid].mean()"),
)
wrong(
    STEP,
    "You charge the KL twice: in the token rewards, and in the policy loss.",
    (POLICY_LOSS, POLICY_LOSS + " + kl_coef * (new_logprobs - episodes.ref_logprobs)[valid].mean()"),
)
wrong(STEP, "The critic's values do not reach your advantages.", (GET_VALUES, GET_VALUES + " * 0"))
wrong(
    STEP,
    "gamma and lambda do not reach `gae_with_dones`.",
    (GET_ADVANTAGES, GET_ADVANTAGES.replace(", gamma, lam", "")),
)
wrong(STEP, "gamma and lambda are swapped in your call of `gae_with_dones`.", (GET_ADVANTAGES, GET_ADVANTAGES.replace("gamma, lam", "lam, gamma")))  # fmt: skip
wrong(STEP, "Your episodes are one long one: nothing is done but the last step of the batch.", (IS_LAST, "is_last = torch.zeros_like(valid)\n    is_last[-1, -1] = True"))  # fmt: skip
wrong(
    STEP,
    "Every step is done in your code: no token before the last one learns of the score.",
    (IS_LAST, "is_last = valid"),
)
wrong(
    STEP,
    "Your dones are at the last column of the block. A shorter response ends earlier.",
    (IS_LAST, "is_last = torch.zeros_like(valid)\n    is_last[:, -1] = True"),
)
wrong(
    STEP,
    "Your dones are at the first token of a response.",
    (IS_LAST, "is_last = valid & (mask.cumsum(-1) == 1)"),
)
wrong(
    STEP,
    "The padding is part of your episodes: advantages are computed over the whole block.",
    (GET_VALUES, "all_values = value_network(states)\n        values = all_values[valid]"),
    (
        GET_ADVANTAGES,
        "ends = torch.zeros_like(token_rewards)\n    ends[:, -1] = 1\n    advantages = gae_with_dones(token_rewards.flatten(), "
        "all_values.flatten(), 0.0, ends.flatten(), gamma, lam).view_as(ends)[valid]",
    ),
)
wrong(
    STEP,
    "The value after the last token of the batch is that of its last state in your code. Nothing comes after a response.",
    (
        GET_ADVANTAGES,
        GET_ADVANTAGES.replace("is_last[valid].float()", "0.0 * is_last[valid].float()").replace(
            "values, 0.0", "values, values[-1]"
        ),
    ),
)
wrong(STEP, "You do not whiten the advantages.", (WHITE, ""))
wrong(
    STEP,
    "You centre the advantages and do not scale them.",
    (WHITE, "    advantages = advantages - advantages.mean()\n"),
)
wrong(
    STEP,
    "You scale the advantages and do not centre them.",
    (WHITE, "    advantages = advantages / (advantages.std() + 1e-8)\n"),
)
wrong(
    STEP,
    "You whiten within each episode: a good episode then has as many bad tokens as a bad one.",
    (
        WHITE,
        "    lengths = mask.sum(-1).tolist()\n"
        "    parts = [(a - a.mean()) / (a.std(unbiased=False) + 1e-8) for a in advantages.split(lengths)]\n"
        "    advantages = torch.cat(parts)\n",
    ),
)
wrong(
    STEP,
    "You whiten over the whole block, padding included.",
    (
        WHITE,
        "    block = torch.zeros_like(token_rewards)\n    block[valid] = advantages\n"
        "    advantages = ((block - block.mean()) / (block.std() + 1e-8))[valid]\n",
    ),
)
wrong(STEP, "Your returns are made from whitened advantages: they have lost the scale of the rewards.", (RETURNS, ""), (WHITE, WHITE + RETURNS))  # fmt: skip
wrong(STEP, "You whiten the returns too. The critic's target stays on the scale of the rewards.", (RETURNS, RETURNS + "    returns = (returns - returns.mean()) / (returns.std() + 1e-8)\n"))  # fmt: skip
wrong(
    STEP,
    "Your critic learns the advantages. Its target is the returns.",
    (VALUE_LOSS, VALUE_LOSS.replace("returns", "advantages")),
)
wrong(STEP, "Your critic learns the token rewards. Its target is the returns.", (VALUE_LOSS, VALUE_LOSS.replace("returns", "token_rewards[valid]")))  # fmt: skip
wrong(STEP, "Your critic learns the score of the episode at every token. Its target is the returns.", (VALUE_LOSS, VALUE_LOSS.replace("returns", "episodes.scores.unsqueeze(-1).expand(mask.shape)[valid]")))  # fmt: skip
wrong(STEP, "You limit the advantages.", (WHITE, WHITE + "    advantages = advantages.clamp(-2, 2)\n"))
wrong(STEP, "Your ratio compares the policy with the reference. It has to compare it with the policy that sampled.", (LOG_RATIO, LOG_RATIO.replace("episodes.old_logprobs", "episodes.ref_logprobs")))  # fmt: skip
wrong(
    STEP,
    "Your ratio is upside down: old to new.",
    (LOG_RATIO, "log_ratio = (episodes.old_logprobs - new_logprobs)[valid]"),
)
wrong(STEP, "Your old log-probabilities are the new ones, cut off from the gradient: every ratio is 1 for ever.", (LOG_RATIO, "log_ratio = (new_logprobs - new_logprobs.detach())[valid]"))  # fmt: skip
wrong(
    STEP, "You use the log-ratio in place of the ratio.", ("ratio = log_ratio.exp()", "ratio = 1 + log_ratio")
)
wrong(STEP, "Your log-probabilities are one token off: the response is read one position too late.", (NEW, NEW.replace("[:, episodes.n_prompt - 1 :]", "[:, episodes.n_prompt - 2 : -1]")))  # fmt: skip
wrong(STEP, "The ratio is not clipped.", (CLIPPED, "clipped_ratio = ratio"))
wrong(
    STEP,
    "The clip range is always 0.2: clip_range is not used.",
    (CLIPPED, "clipped_ratio = ratio.clamp(0.8, 1.2)"),
)
wrong(STEP, "You clip upwards only.", (CLIPPED, "clipped_ratio = ratio.clamp(max=1 + clip_range)"))
wrong(STEP, "You use the clipped ratio alone: a move that hurts has to count in full.", (POLICY_LOSS, "policy_loss = -(clipped_ratio * advantages).mean()"))  # fmt: skip
wrong(
    STEP,
    "You take the better of clipped and plain, not the worse.",
    (POLICY_LOSS, POLICY_LOSS.replace("minimum", "maximum")),
)
wrong(
    STEP,
    "Your policy climbs its loss: the sign is missing.",
    (POLICY_LOSS, POLICY_LOSS.replace("-torch", "torch")),
)
wrong(
    STEP,
    "You turn the sign of the loss around before `backward`.",
    (POLICY_BACK, "        (-policy_loss).backward()\n"),
)
wrong(
    STEP,
    "Your policy loss is a sum over tokens, not a mean.",
    (POLICY_LOSS, POLICY_LOSS.replace(".mean()", ".sum()")),
)
wrong(
    STEP,
    "You average within each episode first. All response tokens of the batch weigh the same.",
    (
        POLICY_LOSS,
        "worse = -torch.minimum(ratio * advantages, clipped_ratio * advantages)\n"
        "        policy_loss = torch.stack([part.mean() for part in worse.split(mask.sum(-1).tolist())]).mean()",
    ),
)
wrong(STEP, "Your policy loss is divided by all positions of the block, padding included.", (POLICY_LOSS, POLICY_LOSS.replace(".mean()", ".sum() / mask.numel()")))  # fmt: skip
wrong(
    STEP,
    "Your value loss is averaged over the padding too.",
    (VALUE_LOSS, VALUE_LOSS + " * valid.sum() / mask.numel()"),
)
wrong(
    STEP,
    "Your value loss is halved. The docstring asks for the squared error itself.",
    (VALUE_LOSS, VALUE_LOSS.replace("= F", "= 0.5 * F")),
)
wrong(
    STEP,
    "Your value loss is the absolute error, not the squared one.",
    (VALUE_LOSS, VALUE_LOSS.replace("F.mse_loss", "F.l1_loss")),
)
wrong(
    STEP,
    "The policy's gradients are never set back to zero: each step adds up all before it.",
    (POLICY_ZERO, ""),
)
wrong(
    STEP,
    "The critic's gradients are never set back to zero: each step adds up all before it.",
    (VALUE_ZERO, ""),
)
wrong(
    STEP,
    "Gradients are set back to zero once, before the first epoch. The later ones add up.",
    (POLICY_ZERO, ""),
    (VALUE_ZERO, ""),
    (EPOCHS, "    policy_optim.zero_grad()\n    value_optim.zero_grad()\n" + EPOCHS),
)
wrong(STEP, "The policy's gradients are set back to zero after `backward`: there is nothing left to step along.", (POLICY_ZERO, ""), (POLICY_BACK, POLICY_BACK + "        policy_optim.zero_grad(set_to_none=False)\n"))  # fmt: skip
wrong(STEP, "The policy's gradient is not clipped when its optimiser makes its step.", (NORM, ""))
wrong(STEP, "You clip the critic's gradient in place of the policy's.", (NORM, ""), (VALUE_BACK, VALUE_BACK + NORM.replace("policy.p", "value_network.p")))  # fmt: skip
wrong(
    STEP,
    "You clip the critic's gradient too.",
    (VALUE_BACK, VALUE_BACK + NORM.replace("policy.p", "value_network.p")),
)
wrong(STEP, "You clip each number of the gradient by its value. The limit is for the norm of all of them together.", (NORM, NORM.replace("clip_grad_norm_", "clip_grad_value_")))  # fmt: skip
wrong(STEP, "You clip each weight's gradient by itself. The limit is for the norm of all of them together.", (NORM, "        [nn.utils.clip_grad_norm_(weight, 1.0) for weight in policy.parameters()]\n"))  # fmt: skip
wrong(STEP, "You clip after the step, when it is too late.", (NORM, ""), (POLICY_STEP, POLICY_STEP + NORM))
wrong(STEP, "The gradient is scaled to norm 1 always. A small one stays as it is.", (NORM, NORM + "        norm = torch.cat([w.grad.flatten() for w in policy.parameters()]).norm()\n        [w.grad.div_(norm) for w in policy.parameters()]\n"))  # fmt: skip
wrong(STEP, "The policy's optimiser never makes a step.", (POLICY_STEP, ""))
wrong(STEP, "The critic's optimiser never makes a step.", (VALUE_STEP, ""))
wrong(STEP, "Your loop makes one epoch too many.", ("range(n_epochs)", "range(n_epochs + 1)"))
wrong(STEP, "Your loop makes one epoch too few.", ("range(n_epochs)", "range(1, max(n_epochs, 2))"))
wrong(STEP, "You stop when the policy has moved far. n_epochs says how many epochs there are.", (POLICY_ZERO, "        if _ > 0 and ((ratio - 1) - log_ratio).mean() > 0.5:\n            break\n" + POLICY_ZERO))  # fmt: skip
wrong(
    STEP,
    "You compute the advantages anew in each epoch, with the values of the critic that has just moved.",
    (
        NEW,
        "with torch.no_grad():\n            values = value_network(states)[valid]\n        " + GET_ADVANTAGES + "\n    " + RETURNS + "    "
        + WHITE + "        " + NEW,
    ),
)  # fmt: skip
wrong(
    STEP,
    "You read the states anew in each epoch, with the embeddings that the policy has just changed.",
    (VALUE_LOSS, "states = states_before(policy, episodes.ids, episodes.n_prompt)\n        " + VALUE_LOSS),
)
wrong(
    STEP,
    "You charge the KL anew in each epoch, with the policy that has just moved.",
    (
        LOG_RATIO,
        LOG_RATIO
        + "\n        moved = shape_token_rewards(episodes.scores, new_logprobs.detach(), episodes.ref_logprobs, mask, kl_coef)"
        + "\n        "
        + GET_ADVANTAGES.replace("token_rewards", "moved")
        + "\n    "
        + WHITE.rstrip("\n"),
    ),
)
wrong(
    STEP,
    "The ratio is to the policy of the epoch before, not to the one that sampled.",
    (LOG_RATIO, "log_ratio = (new_logprobs - (episodes.old_logprobs if _ == 0 else previous))[valid]\n        previous = new_logprobs.detach()"),
)  # fmt: skip
wrong(STEP, "Your states are one token late: the critic has seen the token that it is to judge.", ("states = states_before(policy, episodes.ids, episodes.n_prompt)", "states = (policy.embedding(episodes.ids).cumsum(dim=1)[:, episodes.n_prompt :] / episodes.ids.shape[1]).detach()"))  # fmt: skip
wrong(STEP, "Your critic sees the last token alone, not all tokens so far.", ("states = states_before(policy, episodes.ids, episodes.n_prompt)", "states = policy.embedding(episodes.ids)[:, episodes.n_prompt - 1 : -1].detach()"))  # fmt: skip
wrong(
    STEP,
    "The critic's loss trains the policy's embeddings too.",
    ("states = states_before(policy, episodes.ids, episodes.n_prompt)", "states = policy.embedding(episodes.ids).cumsum(dim=1)[:, episodes.n_prompt - 1 : -1] / episodes.ids.shape[1]"),
    (POLICY_LOSS, POLICY_LOSS + "\n        policy_loss = policy_loss + F.mse_loss(value_network(states)[valid], returns)"),
    (VALUE_LOSS, VALUE_LOSS.replace("value_network(states)", "value_network(states.detach())")),
    ('"policy_loss": policy_loss.item(),', '"policy_loss": (policy_loss - value_loss).item(),'),
    (EPOCHS, EPOCHS + "        states = policy.embedding(episodes.ids).cumsum(dim=1)[:, episodes.n_prompt - 1 : -1] / episodes.ids.shape[1]\n"),
)  # fmt: skip
wrong(STEP, "kl_to_ref is a mean over tokens in your code. It is a sum over each response, and a mean over the responses.", (KL_SUM, "log_ratio_to_ref[valid].mean().item()"))  # fmt: skip
wrong(
    STEP,
    "kl_to_ref is the sum over the whole batch in your code. It is a mean over the responses.",
    (KL_SUM, "log_ratio_to_ref.sum().item()"),
)
wrong(
    STEP,
    "The padding is counted in your kl_to_ref.",
    (TO_REF, "episodes.old_logprobs - episodes.ref_logprobs"),
)
wrong(
    STEP,
    "Your kl_to_ref has the wrong sign.",
    (TO_REF, "(episodes.ref_logprobs - episodes.old_logprobs).where(valid, 0.0)"),
)
wrong(STEP, "kl_to_ref is that of the policy after your update. It belongs to the episodes.", (TO_REF, "(new_logprobs.detach() - episodes.ref_logprobs).where(valid, 0.0)"))  # fmt: skip
wrong(
    STEP,
    "kl_to_ref is weighted with kl_coef in your code. It is a distance in nats, whatever it costs.",
    (KL_SUM, "kl_coef * " + KL_SUM),
)
wrong(
    STEP,
    "Your approx_kl is the mean log-ratio: it can be negative.",
    (APPROX, '"approx_kl": log_ratio.mean().item()'),
)
wrong(
    STEP,
    "Your approx_kl is made from the clipped ratio.",
    (APPROX, '"approx_kl": ((clipped_ratio - 1) - log_ratio).mean().item()'),
)
wrong(
    STEP,
    "You limit lam to 0.95. It may also be 1.",
    (GET_ADVANTAGES, GET_ADVANTAGES.replace("gamma, lam)", "gamma, min(lam, 0.95))")),
)
wrong(
    STEP,
    "Your approx_kl has the ratio upside down.",
    (APPROX, '"approx_kl": ((1 / ratio - 1) + log_ratio).mean().item()'),
)
wrong(
    STEP,
    "Your approx_kl is half the squared log-ratio; the docstring names another estimate.",
    (APPROX, '"approx_kl": (0.5 * log_ratio**2).mean().item()'),
)
wrong(
    STEP,
    "Your mean_score has the KL in it.",
    ("episodes.scores.mean().item()", "token_rewards.sum(-1).mean().item()"),
)
wrong(STEP, "Your mean_score is a sum.", ("episodes.scores.mean().item()", "episodes.scores.sum().item()"))
wrong(
    STEP,
    "Your info is that of the first epoch.",
    (POLICY_BACK, "        first = first if _ else (policy_loss.item(), ((ratio - 1) - log_ratio).mean().item())\n" + POLICY_BACK),
    (VALUE_BACK, "        first_value = first_value if _ else value_loss.item()\n" + VALUE_BACK),
    ('"policy_loss": policy_loss.item()', '"policy_loss": first[0]'),
    ('"value_loss": value_loss.item()', '"value_loss": first_value'),
    (APPROX, '"approx_kl": first[1]'),
)  # fmt: skip
wrong(STEP, "Your update replaces the old log-probabilities in the episodes by the new ones.", (VALUE_STEP, VALUE_STEP + "    episodes.old_logprobs, kept = new_logprobs.detach(), episodes.old_logprobs\n"), (TO_REF, TO_REF.replace("episodes.old_logprobs", "kept")))  # fmt: skip
wrong(STEP, "Your update writes into the scores of the episodes.", (RETURNS, RETURNS + "    episodes.scores.add_(1.0)\n"), ("episodes.scores.mean().item()", "episodes.scores.sub(1.0).mean().item()"))  # fmt: skip
wrong(STEP, "You make a new optimiser in each update. The one that is handed in remembers earlier steps and has its own learning rate.", (EPOCHS, "    policy_optim = torch.optim.Adam(policy.parameters(), lr=1e-3)\n" + EPOCHS))  # fmt: skip
wrong(
    STEP,
    "A default of yours is not that of the signature that you were given.",
    ("n_epochs: int = 4", "n_epochs: int = 1"),
)
wrong(
    STEP,
    "The default of kl_coef is not that of the signature that you were given.",
    ("kl_coef: float = 0.1", "kl_coef: float = 0.05"),
)
right(STEP, "white by the sample's deviation", (WHITE, WHITE.replace("unbiased=False", "")), differs=True)
right(
    STEP,
    "episode by episode",
    (
        GET_ADVANTAGES,
        """found = []
    for row, n in enumerate(mask.sum(-1).tolist()):
        before = int(mask[:row].sum())
        ends = torch.zeros(n)
        ends[-1] = 1.0
        found.append(gae_with_dones(token_rewards[row, :n], values[before : before + n], 0.0, ends, gamma, lam))
    advantages = torch.cat(found)""",
    ),
)
right(
    STEP,
    "two-dimensional tensors and masked means",
    (
        POLICY_LOSS,
        "policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).sum() / mask.sum()",
    ),
    (VALUE_LOSS, "value_loss = ((value_network(states)[valid] - returns) ** 2).sum() / mask.sum()"),
)
right(
    STEP,
    "both losses at once, clipped apart",
    (POLICY_ZERO, POLICY_ZERO + "        value_optim.zero_grad()\n"),
    (POLICY_BACK, "        value_loss = F.mse_loss(value_network(states)[valid], returns)\n        (policy_loss + value_loss).backward()\n"),
    ("        " + VALUE_LOSS + "\n        value_optim.zero_grad()\n        value_loss.backward()\n", ""),
)  # fmt: skip
right(
    STEP,
    "the critic before the policy, last tokens from lengths",
    (IS_LAST, "is_last = torch.arange(mask.shape[1]) == mask.sum(-1, keepdim=True) - 1"),
)
right(
    STEP,
    "the KL and the score put together by hand",
    (
        "    token_rewards = shape_token_rewards(\n" + GIVEN_REWARDS + "    )\n",
        "    token_rewards = -kl_coef * (episodes.old_logprobs - episodes.ref_logprobs).where(valid, 0.0)\n"
        "    token_rewards[torch.arange(len(mask)), mask.sum(-1) - 1] += episodes.scores\n",
    ),
)

# --- 7.6 preference_pair --------------------------------------------------------------------------

PAIR = "preference_pair"
REPEAT = "prompt_ids.repeat_interleave(n_candidates, dim=0)"
SCORES = "scores = torch.tensor([rule_reward(decode(row)) for row in ids[:, n_prompt:].tolist()])"
VIEW = "candidates, scores = ids.view(n_prompts, n_candidates, -1), scores.view(n_prompts, n_candidates)"
BEST, WORST = "candidates[rows, scores.argmax(dim=-1)]", "candidates[rows, scores.argmin(dim=-1)]"
RETURN = f"return {BEST}, {WORST}"

wrong(PAIR, "You mix the candidates of different prompts: `repeat` puts the whole batch behind itself.", (REPEAT, "prompt_ids.repeat(n_candidates, 1)"))  # fmt: skip
wrong(
    PAIR,
    "The rows that you sampled are cut into candidates along the wrong dimension.",
    (
        VIEW,
        "candidates, scores = ids.view(n_candidates, n_prompts, -1).transpose(0, 1), scores.view(n_candidates, n_prompts).T",
    ),
)
wrong(PAIR, "chosen and rejected are swapped.", (RETURN, f"return {WORST}, {BEST}"))
wrong(PAIR, "Both are the best one.", (RETURN, f"return {BEST}, {BEST}"))
wrong(PAIR, "The rejected one is a random candidate. The worst one is asked for.", (WORST, "candidates[rows, torch.randint(n_candidates, (n_prompts,))]"))  # fmt: skip
wrong(
    PAIR,
    "The rejected one is the second best, not the worst.",
    (WORST, "candidates[rows, scores.argsort(dim=-1)[:, -2]]"),
)
wrong(PAIR, "The chosen one is the first candidate, whatever it scores.", (BEST, "candidates[:, 0]"))
wrong(PAIR, "The rejected one is the last candidate, whatever it scores.", (WORST, "candidates[:, -1]"))
wrong(PAIR, "You take the best and the worst of the whole batch. Each prompt has its own.", (RETURN, "return ids[scores.argmax()].expand(n_prompts, -1), ids[scores.argmin()].expand(n_prompts, -1)"), (VIEW, "pass"), ("rows = torch.arange(n_prompts)", "pass"))  # fmt: skip
wrong(PAIR, "One candidate serves all prompts: the place of the best one is taken from the first prompt.", (BEST, "candidates[rows, scores.argmax(dim=-1)[0]]"))  # fmt: skip
wrong(PAIR, "You search along the wrong dimension: over the prompts, not over the candidates.", (BEST, "candidates[rows, scores.argmax(dim=0)[rows % n_candidates] % n_candidates]"))  # fmt: skip
wrong(
    PAIR,
    "The prompt is scored too. It is the response that is compared.",
    (SCORES, SCORES.replace("ids[:, n_prompt:]", "ids")),
)
wrong(PAIR, "You score the prompt alone.", (SCORES, SCORES.replace("ids[:, n_prompt:]", "ids[:, :n_prompt]")))
wrong(
    PAIR,
    "You leave out the first token of the response when you score it.",
    (SCORES, SCORES.replace("n_prompt:", "n_prompt + 1 :")),
)
wrong(
    PAIR,
    "You score the last letter of the prompt with the response.",
    (SCORES, SCORES.replace("n_prompt:", "n_prompt - 1 :")),
)
wrong(
    PAIR,
    "You compare lengths, not rewards.",
    (SCORES, SCORES.replace("rule_reward(decode(row))", "float(len(decode(row)))")),
)
wrong(PAIR, "You compare the log-probabilities of the policy, not rewards.", ("ids, _ = policy", "ids, logprobs = policy"), (SCORES, "scores = logprobs.sum(-1)"))  # fmt: skip
wrong(PAIR, "You compare the sizes of the rewards, without their sign.", (SCORES, SCORES.replace("rule_reward(decode(row))", "abs(rule_reward(decode(row)))")))  # fmt: skip
wrong(PAIR, "You cut rewards off at 0: among bad candidates there is no best one.", (SCORES, SCORES.replace("rule_reward(decode(row))", "max(0.0, rule_reward(decode(row)))")))  # fmt: skip
wrong(
    PAIR,
    "Your rewards are rounded to whole numbers.",
    (SCORES, SCORES.replace("rule_reward(decode(row))", "round(rule_reward(decode(row)))")),
)
wrong(PAIR, "There are always four candidates: n_candidates is not used.", (REPEAT, REPEAT.replace("n_candidates", "4")), (VIEW, VIEW.replace("n_candidates", "4")))  # fmt: skip
wrong(PAIR, "You draw one candidate too many.", (REPEAT, REPEAT.replace("n_candidates", "n_candidates + 1")), (VIEW, VIEW.replace("n_candidates", "n_candidates + 1")))  # fmt: skip
wrong(PAIR, "max_len does not reach `generate`.", (", max_len)", ", 20)"))
wrong(
    PAIR,
    "You sample with a higher temperature. The candidates are samples of the policy itself.",
    (", max_len)", ", max_len, 1.5)"),
)
wrong(PAIR, "You sample with a lower temperature. The candidates are samples of the policy itself.", (", max_len)", ", max_len, temperature=0.7)"))  # fmt: skip
wrong(
    PAIR,
    "You return responses without their prompts.",
    (RETURN, f"return {BEST}[:, n_prompt:], {WORST}[:, n_prompt:]"),
)
wrong(
    PAIR,
    "You return the rewards, not the ids.",
    (RETURN, "return scores.max(dim=-1).values, scores.min(dim=-1).values"),
)
wrong(
    PAIR,
    "You return which candidates they are, not their ids.",
    (RETURN, "return scores.argmax(dim=-1), scores.argmin(dim=-1)"),
)
wrong(PAIR, "The pairs come in reverse order of the prompts.", ("rows = torch.arange(n_prompts)", "rows = torch.arange(n_prompts).flip(0)"), (VIEW, VIEW + "\n    scores = scores.flip(0)"))  # fmt: skip
wrong(PAIR, "You sample once for each prompt, and repeat that sample: all candidates are the same.", (f"ids, _ = policy.generate({REPEAT}, max_len)", "ids, _ = policy.generate(prompt_ids, max_len)\n    ids = ids.repeat_interleave(n_candidates, dim=0)"))  # fmt: skip
wrong(PAIR, "Pairs are left out when both are the same. There is one row for each prompt.", (RETURN, "differ = scores.max(-1).values > scores.min(-1).values\n    return candidates[rows, scores.argmax(-1)][differ][:1], candidates[rows, scores.argmin(-1)][differ][:1]"))  # fmt: skip
wrong(
    PAIR,
    "n_candidates has another default than the signature that you were given.",
    ("n_candidates: int = 4", "n_candidates: int = 2"),
)
right(
    PAIR,
    "prompt by prompt",
    body("""
    chosen, rejected = [], []
    for prompt in prompt_ids:
        ids, _ = policy.generate(prompt.repeat(n_candidates, 1), max_len)
        ranked = sorted(ids.tolist(), key=lambda row: rule_reward(decode(row[len(prompt):])))
        chosen.append(ranked[-1] + [PAD] * (len(prompt) + max_len - len(ranked[-1])))
        rejected.append(ranked[0] + [PAD] * (len(prompt) + max_len - len(ranked[0])))
    return torch.tensor(chosen), torch.tensor(rejected)
    """),
)
right(
    PAIR,
    "one call of generate for each candidate",
    body("""
    n_prompt = prompt_ids.shape[1]
    best, worst = None, None
    for _ in range(n_candidates):
        ids, _ = policy.generate(prompt_ids, max_len)
        ids = F.pad(ids, (0, n_prompt + max_len - ids.shape[1]), value=PAD)
        scores = torch.tensor([rule_reward(decode(row)) for row in ids[:, n_prompt:].tolist()], dtype=torch.float64)
        if best is None:
            best, worst, high, low = ids, ids, scores, scores
            continue
        best = torch.where((scores > high).unsqueeze(-1), ids, best)
        worst = torch.where((scores < low).unsqueeze(-1), ids, worst)
        high, low = torch.maximum(scores, high), torch.minimum(scores, low)
    return best, worst
    """),
)
right(PAIR, "sorted, the last of equal ones", (RETURN, "order = scores.argsort(dim=-1)\n    return candidates[rows, order[:, -1]], candidates[rows, order[:, 0]]"))  # fmt: skip
