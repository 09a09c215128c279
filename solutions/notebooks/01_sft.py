# %% [markdown]
# # 1 Supervised fine-tuning
#
# {navigation}
#
# A language model continues any text. We want one that *answers*: it reads a prompt, writes one response, and
# stops. Supervised fine-tuning (SFT) teaches this from demonstrations, that is, from prompts with a good
# response to each.
#
# **You will write** the layout of one demonstration (1.1), the data set (1.2), the loss (1.3) and the
# training loop (1.4), all in [`rlhf_exercises/sft.py`](../rlhf_exercises/sft.py).
#
# **At the end you will have** a model of one million parameters that you fine-tuned with your own code in a
# few seconds, the curve of its loss, and its answers before and after.
#
# **Time** about 90 minutes. **It starts from** the course's small language model `tiny`. It needs no other
# notebook.

# %%
# %load_ext autoreload
# %autoreload 2
import math

import torch

import rlhf_lab.notebook as lab
from rlhf_exercises import sft

lab.begin("01_sft", "rlhf_exercises")

# %% [markdown]
# ## What is wrong with the model as it is
#
# `tiny` was trained on a long text of short reviews, English and Chinese, with one review after the other. It
# knows the words. Below it gets eight prompts and may write up to 24 tokens for each.
#
# **Before you run the next cell:** the end-of-sequence token (EOS) means "I have finished". How many of the
# eight responses will end with it? Write your guess down, then look.

# %%
tokenizer = lab.load_tokenizer(lab.TINY)
backbone = lab.load_causal_lm(lab.TINY).eval()
data = lab.load_data("toy")


def token_ids(text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


prompts = data.prompts_heldout["prompt"][::21]
before = lab.sample(backbone, tokenizer, prompts, max_new_tokens=24, seed=0)
lab.table(
    [
        {"prompt": prompt, "response": response, "ends with EOS": "yes" if ended else "no"}
        for prompt, response, ended in zip(before.prompts, before.responses, before.ended)
    ]
)

# %% [markdown]
# **What you should see.** Good beginnings, and no end: the model goes on to the stars of the review, then to
# the next review, and is cut off after 24 tokens. Nobody has told it that a response is one thing and that it
# is over at some point.
#
# The demonstrations tell it. Here are some of the 480.

# %%
lab.table([data.sft_train[i] for i in (377, 232, 58, 116)])
print("pad token and EOS token are the same id:", tokenizer.pad_token_id, "=", tokenizer.eos_token_id)

# %% [markdown]
# Remember the last line. GPT-2 has no token for padding of its own, so everybody borrows EOS for it. Then the
# same id means two things: "the response is over", which the model must learn, and "nothing here", which it
# must not. Most bugs of this notebook come from there.

# %% [markdown] exercise="build_sft_example"
# A demonstration becomes one row of numbers: the prompt, the response, one EOS, and padding on the right.
# Beside the row stand the *labels*: the same ids where the model has to learn, and `-100` where it has not.
# PyTorch leaves out the positions that are labelled `-100`.
#
# | | prompt | response | EOS | padding |
# |:--|:-:|:-:|:-:|:-:|
# | `input_ids` | its ids | its ids | `eos_id` | `pad_id` |
# | `labels` | -100 | its ids | `eos_id` | -100 |
# | `attention_mask` | 1 | 1 | 1 | 0 |
#
# This is the first stage of Ouyang et al. 2022 (section 3.5). That the loss leaves out the prompt is our
# convention, and that of most code for instruction tuning: at work the user writes the prompt, so the model
# need not learn to write it. In our demonstrations a quarter of all tokens are prompt.
#
# **In:** two lists of ids without special tokens, `eos_id`, `pad_id`, `max_len`. **Out:** a dictionary of
# three lists of length `max_len`.
#
# - What is too long is cut on the right. A response that was cut gets no EOS: it did not end there.
# - `eos_id` and `pad_id` may be the same number. So count lengths; do not look for ids.
# - A prompt that fills `max_len` alone leaves nothing to learn: that is a `ValueError` which names both
#   lengths.
#
# **Slow first.** If somebody has written down what each position *is*, the labels follow one by one:

# %%
row = [11, 12, 21, 22, 23, 0, 0, 0]  # EOS and pad are both 0
roles = ["prompt", "prompt", "response", "response", "response", "EOS", "pad", "pad"]

labels_by_hand = []
for token_id, role in zip(row, roles):
    learned = role in ("response", "EOS")
    labels_by_hand.append(token_id if learned else -100)
print("slow:", labels_by_hand)

# %% [markdown]
# Your function gets the two lists and has to find the same without the roles.

# %%
with lab.todo("build_sft_example"):
    example = sft.build_sft_example([11, 12], [21, 22, 23], eos_id=0, pad_id=0, max_len=8)
    print("yours:", example["labels"])

# %% [markdown]
# Now two real demonstrations in rows of 11 tokens. The English one has 3 + 5 tokens, the Chinese one 3 + 9.
#
# **Before you run the next cell:** how many labels of each row are not -100? And which of the two rows ends
# with EOS?

# %%
with lab.todo("build_sft_example"):
    texts = [
        ("This tea house", " was okay this time."),
        ("酒店点评：", "在我看来布局一流，但是搜索不太可靠。"),
    ]
    examples = [
        sft.build_sft_example(
            token_ids(prompt),
            token_ids(response),
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
            max_len=11,
        )
        for prompt, response in texts
    ]
    lab.show(
        lab.token_table(
            tokens=[lab.token_texts(tokenizer, example["input_ids"]) for example in examples],
            mask=torch.tensor([example["attention_mask"] for example in examples]),
            input_id=torch.tensor([example["input_ids"] for example in examples]),
            label=torch.tensor([example["labels"] for example in examples]),
        )
    )

# %% [markdown]
# **What you should see.** Row 0: three times -100, then five tokens and one EOS with their own ids as labels,
# then two padded positions, greyed. Position 8 and position 9 hold the same id, 0; only the first of them is
# learned and has mask 1. Row 1 is full after eight of its nine response tokens: no padding, and no EOS. So 6
# and 8 labels count.
#
# The shortcut that many tutorials take reads the mask off the ids. Look at what it does to the EOS of row 0:

# %%
ids = [433, 1824, 1827, 275, 1754, 444, 544, 14, 0, 0, 0]
lab.token_table(
    tokens=lab.token_texts(tokenizer, ids),
    by_length=torch.tensor([1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]),
    shortcut=torch.tensor([int(token_id != tokenizer.pad_token_id) for token_id in ids]),
)

# %% [markdown]
# At position 8 the two columns differ: the shortcut takes the EOS for padding. The model would then never be
# told to stop. At the end of this notebook you will train a model in this way, to see what becomes of it.

# %% check="build_sft_example"

# %% [markdown] exercise="SFTDataset"
# A `Dataset` hands out one row at a time; PyTorch's `DataLoader` stacks rows of equal length into a batch.
#
# **In:** rows with `"prompt"` and `"response"`, a tokenizer, `max_len`. **Out:** item `i` is a dictionary of
# three `LongTensor [max_len]`: `input_ids`, `labels`, `attention_mask`. Each row is laid out by your 1.1.
#
# - A tokenizer without a pad token gets its EOS token as one.
# - Prompt and response are tokenised *apart*, without special tokens. Then we know exactly where one ends and
#   the other begins.
#
# Why apart? Because a tokenizer merges across the border. Here the prompt ends in a space:

# %%
prompt, response = "The tea house ", "was okay."
apart = token_ids(prompt) + token_ids(response)
together = token_ids(prompt + response)
lab.table(
    [
        {"tokenised": how, "tokens": " | ".join(lab.token_texts(tokenizer, ids))}
        for how, ids in (("apart", apart), ("together", together))
    ]
)

# %% [markdown]
# The prompt alone has four tokens. Together, the fourth token is `·was`: half of it belongs to the prompt,
# half to the response. Whoever masks "the first four tokens" there has masked the first word of the response.
#
# **Slow first.** How many tokens is the model going to learn from? Count them, demonstration by
# demonstration:

# %%
n_learned = 0
for row in data.sft_train:
    n_learned += len(token_ids(row["response"])) + 1  # and its EOS
print("slow:", n_learned)

# %%
with lab.todo("SFTDataset"):
    dataset = sft.SFTDataset(data.sft_train, tokenizer, max_len=40)
    print("yours:", sum(int((dataset[i]["labels"] != -100).sum()) for i in range(len(dataset))))
    batch = next(iter(lab.shuffled(dataset, batch_size=4, seed=0)))
    lab.table(
        [
            {"in the batch": name, "shape": str(list(t.shape)), "dtype": str(t.dtype)}
            for name, t in batch.items()
        ]
    )

# %% [markdown]
# **What you should see.** The same number twice, a little under 5,000, and three tensors `[4, 40]` of
# `torch.int64`.
#
# How long should a row be? A short one cuts responses, and with them their EOS; a long one is mostly padding,
# which costs time.
#
# **Before you run the next cell:** the longest demonstration has 28 tokens. Guess how many of the 480 lose
# their EOS at 16.

# %%
with lab.todo("SFTDataset"):
    rows = []
    for max_len in (10, 16, 24, 40):
        dataset = sft.SFTDataset(data.sft_train, tokenizer, max_len)
        items = [dataset[i] for i in range(len(dataset))]
        real = sum(int(item["attention_mask"].sum()) for item in items)
        ended = sum(tokenizer.eos_token_id in item["labels"].tolist() for item in items)
        rows.append(
            {
                "max_len": max_len,
                "lost their EOS": len(items) - ended,
                "padding": f"{1 - real / len(items) / max_len:.0%}",
            }
        )
    lab.table(rows)

# %% check="SFTDataset"

# %% [markdown] exercise="masked_ce_loss"
# The model reads a row and puts out, at each position, a score for every token of the vocabulary: the logits.
# What it puts out at position $t$ is about the token at $t + 1$, because at $t$ it has not seen that token
# yet. With $M$ = the positions whose label is not -100,
#
# $$L \;=\; -\frac{1}{|M|} \sum_{(b,\,t+1) \,\in\, M} \log p_\theta\big(\text{label}_{b,\,t+1} \,\big|\, \text{ids}_{b,\,0..t}\big),
# \qquad p_\theta = \operatorname{softmax}(\text{logits}_{b,\,t})$$
#
# This is the language-modelling loss with the prompt and the padding left out. The unit is nats per token.
#
# **In:** `logits [batch, seq, vocab]` and `labels [batch, seq]`. **Out:** one number, with a gradient.
#
# - Logits and labels are shifted against each other by one. Labels come unshifted; the shift is your work.
# - The mean is over all learned tokens of the batch together, so a long response weighs more than a short
#   one.
# - A batch with nothing to learn has loss 0, not NaN.
#
# **Slow first.** Two demonstrations, typed by hand, and a loop that looks up one token at a time:

# %%
ids = torch.tensor([[433, 1824, 1827, 275, 1754, 444, 544, 14, 0], [1662, 1883, 1469, 2019, 270, 0, 0, 0, 0]])
labels = torch.tensor(
    [[-100, -100, -100, 275, 1754, 444, 544, 14, 0], [-100, -100, 1469, 2019, 270, 0, -100, -100, -100]]
)
attention_mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0, 0]])

with torch.no_grad():
    logits = backbone(input_ids=ids, attention_mask=attention_mask).logits  # [2, 9, 2304]
surprise = torch.zeros(2, 9)  # -log p of each learned token
for b in range(2):
    for t in range(8):
        if labels[b, t + 1] != -100:
            p = logits[b, t].softmax(dim=0)
            surprise[b, t + 1] = -math.log(p[labels[b, t + 1]])
print(f"slow: {surprise.sum() / (labels != -100).sum():.4f} nats per token")

lab.token_table(
    tokens=[lab.token_texts(tokenizer, row) for row in ids.tolist()],
    mask=labels != -100,
    label=labels,
    surprise=surprise,
)

# %% [markdown]
# **What you should see.** An everyday word costs between 0 and 8 nats, a sure one (`·time` after `·this`)
# hardly anything. The most expensive token of each row is the EOS, with more than 20 nats: to this model the
# end of a response is about as likely as one in a billion. That is what SFT will change first.

# %%
with lab.todo("masked_ce_loss"):
    print(f"yours: {sft.masked_ce_loss(logits, labels):.4f} nats per token")

# %% [markdown]
# **Known answers.** Some losses can be known before any training:
#
# - A model that knows nothing gives every token of the vocabulary the same logit. Its loss is $\ln V$, here
#   $\ln 2304$.
# - A model that is sure of the right token at each position has loss 0.
# - With nothing to learn, the loss is 0.
# - For any other model, the library computes the same loss when it is handed `labels=`. (That is how the loss
#   is often had for free. We write it by hand because the next stages need losses that no library has.)
#
# **Before you run the next cell:** what is $\ln 2304$, roughly? (You know that $\ln 10 \approx 2.3$.)

# %%
with lab.todo("masked_ce_loss"):
    V = logits.shape[-1]
    constant = torch.zeros(2, 9, V)
    sure = 100.0 * torch.nn.functional.one_hot(ids.roll(-1, dims=1), V).float()
    with torch.no_grad():
        library = backbone(input_ids=ids, attention_mask=attention_mask, labels=labels).loss.item()
    nothing = torch.full_like(labels, -100)
    cases = [
        ("constant logits", "ln V", math.log(V), constant, labels),
        ("sure of the right token", "0", 0.0, sure, labels),
        ("nothing to learn", "0", 0.0, logits, nothing),
        ("the real model", "the library's", library, logits, labels),
    ]
    lab.table(
        [
            {"logits": name, "known": why, "expected": expected, "yours": sft.masked_ce_loss(x, y).item()}
            for name, why, expected, x, y in cases
        ]
    )

# %% check="masked_ce_loss"

# %% [markdown] exercise="train_sft"
# The loop that you know: run the model, take the loss, go one step against its gradient.
#
# **In:** a causal language model, batches of `SFTDataset` items, `n_epochs`, `lr`, `device`. **Out:** a list
# with the loss of each step, `n_epochs * len(dataloader)` numbers. The model is trained in place.
#
# - The optimiser is AdamW over all parameters. It is made once, not once an epoch.
# - Between the gradient and the step, the gradient's norm is clipped to 1.0. One odd batch can then not throw
#   the model off.
# - The loss is your 1.3, not the library's. Training is in training mode.
#
# **Slow first.** Do two steps by hand, here in the notebook. `fresh_start()` gives the same model and the
# same two batches each time, and it sets the seed, so that dropout also draws the same.


# %%
def fresh_start():
    """`tiny` in training mode, and the first two batches of 16 demonstrations."""
    dataset = sft.SFTDataset(data.sft_train, tokenizer, max_len=40)
    batches = list(lab.shuffled(dataset, batch_size=16, seed=0))[:2]
    model = lab.load_causal_lm(lab.TINY).train()
    torch.manual_seed(0)
    return model, batches


# %% [markdown]
# **Write the next cell yourself.** For each batch: the logits, the loss by your `masked_ce_loss`, zero the
# old gradient, compute the new one, clip its norm to 1.0, take the step. The model is called with
# `model(input_ids=..., attention_mask=...)` and returns an object with `.logits`.

# %% todo="two_steps_by_hand"
with lab.todo("SFTDataset", "masked_ce_loss"):
    model, batches = fresh_start()
    optim = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for batch in batches:
        # yours: loss, and one step against its gradient
        ### BEGIN SOLUTION
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = sft.masked_ce_loss(logits, batch["labels"])
        optim.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        ### END SOLUTION
        print(f"by hand: {loss.item():.4f}")

# %% [markdown]
# Now put the loop into `train_sft`, save the file, and let it do the same two steps.
#
# **Before you run the next cell:** will `train_sft` print the same two numbers? And is the first one near
# $\ln V = 7.7$, where a model would be that knows nothing, or far below?

# %%
with lab.todo("SFTDataset", "train_sft"):
    model, batches = fresh_start()
    for loss in sft.train_sft(model, batches, n_epochs=1, lr=5e-4):
        print(f"train_sft: {loss:.4f}")

# %% [markdown]
# **What you should see.** The same two numbers as by hand, but for rounding. The first is about 3: the model
# is no beginner (a beginner would be at $\ln V$), but every response has an EOS that it does not expect.

# %% check="train_sft"

# %% [markdown]
# ## The real run
#
# Three epochs over 480 demonstrations, 16 at a time: 90 steps. After each epoch, the loss on 120 *held-out*
# demonstrations is drawn, about things that the training data never mention. (Each epoch is one call of your
# `train_sft`, with an optimiser of its own, so that we can look in between.)
#
# **Before you run the next cell:** the held-out loss starts near 3.2. Where will it be after one epoch? Will
# the second and the third epoch help as much as the first? And will the training loss be above or below it in
# the end? Write it down, then look.

# %%
model = lab.load_causal_lm(lab.SFT)  # the course's own, until yours is trained


def heldout_loss(model) -> float:
    heldout = sft.SFTDataset(data.sft_heldout, tokenizer, max_len=40)
    batch = next(iter(lab.shuffled(heldout, batch_size=len(heldout), seed=0)))
    with torch.no_grad():
        logits = model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return sft.masked_ce_loss(logits, batch["labels"]).item()


# %%
with lab.todo("SFTDataset", "masked_ce_loss", "train_sft"):
    torch.manual_seed(0)
    training = lab.load_causal_lm(lab.TINY)
    dataset = sft.SFTDataset(data.sft_train, tokenizer, max_len=40)
    losses, heldout = [], [(0, heldout_loss(training))]
    picture = lab.live(lab.sft_figure)
    for epoch in range(3):
        losses += sft.train_sft(
            training, lab.shuffled(dataset, batch_size=16, seed=epoch), n_epochs=1, lr=5e-4
        )
        heldout.append((len(losses), heldout_loss(training)))
        picture(losses, heldout, last=True)
    model = training

# %% [markdown]
# **What you should see.** The training loss falls from about 3 to under 2 within twenty steps, then slowly to
# about 1. The held-out loss is below the threshold of 2.0 after the first epoch (about 1.3), near 1.1 after
# the second, and no better after the third: from there on the model learns these 480 demonstrations by heart,
# and the two curves part.
#
# Where did the two nats go? Into one token. Here is the probability of EOS *after* each token of a held-out
# demonstration:


# %%
def p_eos(model, ids: list[int]) -> torch.Tensor:
    """Probability, to three digits, that the text ends after each of its tokens."""
    with torch.no_grad():
        probabilities = model.eval()(input_ids=torch.tensor([ids])).logits[0].softmax(dim=-1)
    return probabilities[:, tokenizer.eos_token_id].round(decimals=3)


row = data.sft_heldout[0]
ids = token_ids(row["prompt"] + row["response"])
lab.token_table(
    tokens=lab.token_texts(tokenizer, ids),
    **{"P(EOS) before": p_eos(backbone, ids), "P(EOS) after": p_eos(model, ids)},
)

# %% [markdown]
# **What you should see.** Before SFT the end is nowhere likely (less than one in a million, everywhere).
# After it, P(EOS) is nearly 1 after the full stop and nearly 0 anywhere else: the model has learned *where*
# responses end, not just that they do.
#
# Now the responses. A *judge* that knows the rules of this corpus says how positive a text is, from 0 to 1.
# It gives the demonstrations 0.62 on average: most of them are friendly, some shrug, some complain. **Before
# you run the next cell:** what will it give the responses, before and after SFT?

# %%
after = lab.sample(model, tokenizer, prompts, max_new_tokens=24, seed=0)
lab.table(
    [
        {"prompt": prompt, "before SFT": old, "after SFT": new}
        for prompt, old, new in zip(prompts, before.responses, after.responses)
    ]
)

many = data.prompts_heldout["prompt"][:]
judge = lab.ToyJudge()
rows = []
for name, lm in (("before SFT", backbone), ("after SFT", model)):
    samples = lab.sample(lm, tokenizer, many, max_new_tokens=24, seed=0)
    mean = sum(judge(samples.texts)) / len(many)
    rows.append(
        {"model": name, "responses": len(many), "end with EOS": f"{samples.eos_share:.0%}", "positive": mean}
    )
lab.table(rows)

# %% [markdown]
# **What you should see.** None of the responses ended before, nearly all end now, each after one sentence.
# The judge's mean rises a little, from about 0.50 to 0.55. SFT imitates its demonstrations, the friendly ones
# and the others alike: it has taught the *form* of an answer. That one answer is better than another, nobody
# has said yet. That is the work of the [reward model](02_reward_model.ipynb) and of [PPO](03_ppo.ipynb).

# %% [markdown]
# ## What the shortcut would have cost
#
# Back to the mask that was read off the ids. We take your data set, but set the label to -100 wherever it is
# the pad id. Since pad = eos, this drops the EOS. Everything else is as before, for one epoch.
#
# **Before you run the next cell:** will the *training loss* warn us? Will it be higher or lower than yours
# was?

# %%
with lab.todo("SFTDataset", "train_sft"):
    torch.manual_seed(0)
    careless = lab.load_causal_lm(lab.TINY)
    dataset = sft.SFTDataset(data.sft_train, tokenizer, max_len=40)
    items = [dataset[i] for i in range(len(dataset))]
    items = [
        {**item, "labels": torch.where(item["labels"] == tokenizer.pad_token_id, -100, item["labels"])}
        for item in items
    ]
    losses = sft.train_sft(careless, lab.shuffled(items, batch_size=16, seed=0), n_epochs=1, lr=5e-4)

    samples = lab.sample(careless, tokenizer, many, max_new_tokens=24, seed=0)
    print(f"training loss: {losses[0]:.2f} in the first step, {losses[-1]:.2f} in the last")
    print(f"responses that end with EOS: {samples.eos_share:.0%}")
    lab.table(
        [
            {"prompt": many[i], "response of the careless model": samples.responses[i]}
            for i in range(0, len(many), 42)
        ]
    )

# %% [markdown]
# **What you should see.** A loss that is *lower* than yours from the first step to the last, because the one hard
# token is not in it; it hardly falls, since the model knows the rest already. And a model that never stops. The
# curve does not warn; only the samples and the share of
# ended responses do. So whatever you train: look at the samples, and count the ends.

# %% [markdown]
# ## Three questions
#
# **Question 1.** The labels of the prompt are -100. Suppose that they were the prompt's ids. What would the
# model spend a part of its capacity on? In which kind of data would that hurt most, and does the model still
# *use* the prompt when it is masked?

# %% [markdown] answer="why_mask_the_prompt" points=2
# It would also learn to write prompts: to predict what users ask, with all their typing errors and topics.
# Nobody needs that at work, where the prompt is always given. It hurts most where prompts are long and
# responses short (a document and a one-line summary): then most of the gradient, and most of the number that
# we call the loss, comes from text that we did not want to imitate. The masked prompt is still read: it is in
# `input_ids`, the attention sees it, and the gradient of the response's loss goes through its hidden states.
# Only its own prediction is not scored.

# %% [markdown]
# **Question 2.** A response that is cut at `max_len` gets no EOS. A colleague says: "But then the model sees
# rows without an end! Better put an EOS into the last position of every row." What would the model learn from
# that?

# %% [markdown] answer="why_no_forced_eos" points=2
# It would learn to stop in the middle of a sentence: at position `max_len` the EOS follows a word that
# nothing follows in this row only because the row was too short. The length of our rows is our decision and
# not a property of a good answer. Without the EOS, the cut row still teaches each of its words and simply
# says nothing about the end; the other rows teach that. If many rows are cut, `max_len` is too small.

# %% [markdown]
# **Question 3.** Somebody trains with your code and reports a loss of 7.7 on a vocabulary of 2,304 tokens
# that does not fall. What does this number tell you, and which two mistakes would you look for first?

# %% [markdown] answer="loss_near_ln_v" points=2
# ln 2304 is 7.74, the loss of a model that gives all tokens the same probability: this one knows nothing
# about the labels it is asked for. Either the weights are not the pretrained ones (a model built from its
# config, not loaded), or the labels have nothing to do with the positions they are compared with: the shift
# is missing or goes the wrong way. And since it does not fall, one would see whether the optimiser has this
# model's parameters and whether a gradient arrives at all.

# %% [markdown]
# ## Where you stand

# %%
lab.status()

# %% [markdown]
# You have a model that answers and stops. What it answers, it has not been told to care about. Next: people
# compare two answers, and a model learns to score them, in [02 Reward model](02_reward_model.ipynb).
#
# {navigation}
