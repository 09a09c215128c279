# %% [markdown]
# # 2 Reward model
#
# {navigation}
#
# What is a good answer? Few people can write a formula for it, but almost everybody can say which of *two*
# answers they like better. A reward model turns many such comparisons into a score for any text. PPO will
# then raise this score.
#
# **You will write** a small index function (2.1), the model (2.2), the data set of pairs (2.3), the loss
# (2.4) and the training loop (2.5), all in
# [`rlhf_exercises/reward_model.py`](../rlhf_exercises/reward_model.py).
#
# **At the end you will have** a reward model that puts more than nine of ten unseen pairs in the right order,
# a picture of its scores, and a place to try it on your own sentences.
#
# **Time** about 2 hours. **It starts from** the course's small language model `tiny`, not from your notebook
# 01. One function of that notebook is needed: the data set of 2.3 lays out its texts with `build_sft_example`
# (1.1). It is the one in your `rlhf_exercises/sft.py`, whether you wrote it or it came solved.

# %%
# %load_ext autoreload
# %autoreload 2
import math

import torch

import rlhf_lab.notebook as lab
from rlhf_exercises import reward_model

lab.begin("02_reward_model", "rlhf_exercises")

# %% [markdown]
# ## From comparisons to scores
#
# A comparison is a prompt, the response that a person preferred (*chosen*), and the other one (*rejected*).

# %%
tokenizer = lab.load_tokenizer(lab.TINY)
data = lab.load_data("toy")


def token_ids(text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


columns = ("prompt", "chosen", "rejected", "phenomenon")
lab.table([{name: data.pairs_train[i][name] for name in columns} for i in (291, 582, 97, 1067)])

# %% [markdown]
# The last two pairs have the *same words* on both sides: `amazing` and `horrible`, in another order. Counting
# nice words will not do.
#
# Bradley and Terry (1952) gave the link between comparisons and scores. If a response has the score $r$, then
#
# $$P(\text{chosen is preferred}) \;=\; \sigma(r_{\text{chosen}} - r_{\text{rejected}}), \qquad \sigma(d) = \frac{1}{1 + e^{-d}}$$
#
# Only the *difference* counts. Equal scores mean a coin toss, a difference of 2 means 88 : 12. Training a
# reward model means: find the scores that make the observed comparisons likely (Stiennon et al. 2020, section
# 3.4).
#
# **A baseline first.** A judge who cannot read could still compare lengths. If that were enough, a reward
# model could look clever and know nothing. **Before you run the next cell:** on how many of 100 pairs would
# you let "the longer one is better" be right before you distrust the data?

# %%
n_longer, n_shorter = 0, 0
for row in data.pairs_heldout:
    n_longer += len(row["chosen"]) > len(row["rejected"])
    n_shorter += len(row["chosen"]) < len(row["rejected"])
print(
    f"{len(data.pairs_heldout)} held-out pairs: the chosen response is longer in {n_longer}, shorter in {n_shorter}"
)
length_only = lab.length_only_accuracy(data.pairs_heldout)
print(f"better of 'the longer wins' and 'the shorter wins', ties half right: {length_only:.3f}")

# %% [markdown]
# **What you should see.** An accuracy of about 0.5: length says nothing here. That is not so
# everywhere: on three public preference sets the scores of reward models followed the length of the answer
# closely, and PPO made the answers longer (Singhal et al. 2023, "A long way to go: investigating length
# correlations in RLHF", arXiv 2310.03716). So this number stands beside the accuracy from now on.

# %% [markdown] exercise="last_token_index"
# One score for one text: it is read at the last token, the only one that has seen the whole text. So where is
# it?
#
# Texts of different length are padded to make a batch: on the right in training, on the left when a model
# generates. The mask says which tokens are real.
#
# **In:** `attention_mask [batch, seq]`, 1 on real tokens and 0 on padding. **Out:** for each row the index of
# its last 1, a `LongTensor [batch]`.
#
# - Padding may be on the right, on the left, or on both sides.
# - A row with no real token at all has no last one: that is a `ValueError`, not an index.
#
# Many programs take the number of real tokens minus one. **Before you run the next cell:** in which of these
# four rows is that right?
#
# **Slow first.** Start at the right end and walk left until there is a 1:

# %%
masks = torch.tensor(
    [
        [1, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1],
        [0, 1, 1, 0, 0, 0],
    ]
)
sides = ["right", "left", "none", "both sides"]
slow = []
for row in masks.tolist():
    index = len(row) - 1
    while row[index] == 0:
        index -= 1
    slow.append(index)
lab.table(
    [
        {"padding": side, "mask": str(mask.tolist()), "sum - 1": int(mask.sum()) - 1, "slow": index}
        for side, mask, index in zip(sides, masks, slow)
    ]
)

# %%
with lab.todo("last_token_index"):
    print("slow: ", slow)
    print("yours:", reward_model.last_token_index(masks).tolist())
    try:
        reward_model.last_token_index(torch.tensor([[1, 1, 0], [0, 0, 0]]))
        print("a row of zeros: no error")
    except ValueError as error:
        print("a row of zeros: ValueError,", error)

# %% [markdown]
# **What you should see.** The same four numbers twice: 3, 5, 5, 2. "Sum minus one" says 3, 3, 5, 1: with
# padding on the left it points into the middle of the text, and nothing crashes. The score is then read
# before the text is over.

# %% check="last_token_index"

# %% [markdown] exercise="RewardModel"
# A language model is a backbone that turns tokens into vectors, and a head that turns each vector into a
# vocabulary of logits. A reward model keeps the backbone and has a smaller head: one number.
#
# $$\text{ids } [B, T] \;\xrightarrow{\text{backbone}}\; h\,[B, T, H] \;\xrightarrow{\text{last valid token}}\; h_{\text{last}}\,[B, H]
# \;\xrightarrow{\;w\;}\; r = w^\top h_{\text{last}}\;\; [B]$$
#
# **In:** `input_ids` and `attention_mask`, both `[batch, seq]`. **Out:** `[batch]`, one score a text.
#
# - The attributes are `backbone` (an `AutoModel` without its language-modelling head, in float32) and
#   `v_head`, linear from `H` to 1.
# - `v_head` has no bias: a constant would cancel in every comparison.
# - The score of a text is the same whichever side the padding is on, however long it is, and whatever else is
#   in the batch.
#
# The last point needs care. GPT-2 learns a vector for each *position*, and it counts positions from the left
# edge, padding included. A text that is padded on the left would be read as if it began in the middle of a
# book. So we number the real tokens ourselves. The function is given:

# %%
print(f"mask            {masks[1].tolist()}")
print(f"positions       {reward_model.position_ids_from_mask(masks[1:2])[0].tolist()}")

# %% [markdown]
# Hand them to the backbone as `position_ids=`, and left padding is harmless: the mask hides it, and the
# numbering skips it.
#
# **Slow first.** One text, no padding: the vector of its last token, and a loop over its 128 numbers.

# %%
ids = [1662, 1883, 1469, 2019, 270, 0]  # 这家面馆 茶水很细致。EOS
word = 444  # ·this
others = [[433, 1824, 1827, 275, 1754, 444, 544, 14, 0], [330, 1824, 1827]]  # two English texts

with lab.todo("RewardModel"):
    torch.manual_seed(0)
    model = reward_model.RewardModel(str(lab.TINY)).eval()
    with torch.no_grad():
        h_last = model.backbone(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
    score = 0.0
    for h, w in zip(h_last.tolist(), model.v_head.weight[0].tolist()):
        score += h * w
    print(f"slow: {score:.5f}")

# %% [markdown]
# Now your model gets the same text in five ways: alone, padded on either side, and in a batch with longer and
# shorter texts. What the padding *contains* must not matter either, so it is not 0 but some word.
#
# **Before you run the next cell:** which of the five scores may differ from the slow one?


# %%
def padded(rows: list[list[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of some texts, padded to 10 tokens on one side."""
    n_pad = [10 - len(row) for row in rows]
    input_ids = [[word] * n + row if left else row + [word] * n for row, n in zip(rows, n_pad)]
    mask = [[0] * n + [1] * len(row) if left else [1] * len(row) + [0] * n for row, n in zip(rows, n_pad)]
    return torch.tensor(input_ids), torch.tensor(mask)


with lab.todo("RewardModel", "last_token_index"):
    torch.manual_seed(0)
    model = reward_model.RewardModel(str(lab.TINY)).eval()
    inputs = {
        "alone": (torch.tensor([ids]), torch.ones(1, 6, dtype=torch.long)),
        "right padding": padded([ids], left=False),
        "left padding": padded([ids], left=True),
        "right padding, two others in the batch": padded([ids, *others], left=False),
        "left padding, two others in the batch": padded([ids, *others], left=True),
    }
    with torch.no_grad():
        scores = {how: model(*batch) for how, batch in inputs.items()}
    lab.table(
        [
            {"the text": how, "output": str(list(score.shape)), "its score": f"{score[0].item():.5f}"}
            for how, score in scores.items()
        ]
    )

# %% [markdown]
# **What you should see.** One number, five times, equal to the slow one (the last digit may differ by
# rounding). Nothing has been learned yet, so the number itself means nothing. That it is *one* number is what
# the rest of the course stands on: in training the padding is on the right, in PPO on the left.

# %% check="RewardModel"

# %% [markdown] exercise="RMDataset"
# Each pair becomes two rows, laid out as in 1.1: prompt, response, EOS, padding on the right. There are no
# labels: nothing is predicted token by token. This is where your package's `build_sft_example` is called.
#
# **In:** rows with `"prompt"`, `"chosen"` and `"rejected"`, a tokenizer, `max_len`. **Out:** item `i` is a
# dictionary of four `LongTensor [max_len]`: `chosen_ids`, `chosen_mask`, `rejected_ids`, `rejected_mask`.
#
# - The EOS belongs to the text: it is the token that the score is read at.
# - A pair whose two texts are the *same tokens* once they are cut to `max_len` is left out, and counted in
#   `.dropped`. The two scores would be equal whatever the model does: a loss of ln 2 for ever, and nothing to
#   learn.
# - Prompt and responses are tokenised apart, as in 1.2.
#
# One pair, in rows of 13 tokens. **Before you run the next cell:** at which position do the two texts begin
# to differ?

# %%
with lab.todo("RMDataset", "build_sft_example"):
    pair = {
        "prompt": "这部电影",
        "chosen": "起初绝不细致，不过最后令人难忘。",
        "rejected": "起初令人难忘，不过最后绝不细致。",
    }
    item = reward_model.RMDataset([pair], tokenizer, max_len=13)[0]
    rows = {side: item[f"{side}_ids"] for side in ("chosen", "rejected")}
    lab.show(
        lab.token_table(
            tokens=[lab.token_texts(tokenizer, row.tolist()) for row in rows.values()],
            mask=torch.stack([item["chosen_mask"], item["rejected_mask"]]),
            id=torch.stack(list(rows.values())),
        )
    )

# %% [markdown]
# **What you should see.** Row 0 is the chosen text, row 1 the rejected one. Prompt and first word are the
# same, and the difference begins after them. Both end with an EOS whose mask is 1.
#
# **Slow first.** How many of the 1,800 pairs become the same when they are cut? Find the first difference of
# each pair:


# %%
def first_difference(a: list[int], b: list[int]) -> int:
    position = 0
    while a[position] == b[position]:
        position += 1
    return position


eos = [tokenizer.eos_token_id]
differ_at = []
for row in data.pairs_train:
    prompt = token_ids(row["prompt"])
    differ_at.append(
        first_difference(prompt + token_ids(row["chosen"]) + eos, prompt + token_ids(row["rejected"]) + eos)
    )

lengths = (10, 12, 16, 32)
slow = [sum(position >= max_len for position in differ_at) for max_len in lengths]
print("slow:", dict(zip(lengths, slow)))

# %%
with lab.todo("RMDataset", "build_sft_example"):
    dropped = [reward_model.RMDataset(data.pairs_train, tokenizer, max_len).dropped for max_len in lengths]
    print("yours:", dict(zip(lengths, dropped)))

# %% [markdown]
# **What you should see.** The same counts, falling to 0 at 32, the length that we train with.

# %% check="RMDataset"

# %% [markdown] exercise="rm_loss"
# Make the observed comparisons likely: the loss is minus the log-likelihood under Bradley-Terry (Stiennon et
# al. 2020, section 3.4).
#
# $$L \;=\; -\frac{1}{B} \sum_{i=1}^{B} \log \sigma\big(r^{(i)}_{\text{chosen}} - r^{(i)}_{\text{rejected}}\big)$$
#
# **In:** `r_chosen` and `r_rejected`, both `[batch]`. **Out:** the loss, a number with a gradient, and the
# accuracy: the share of pairs in which the chosen response has the higher score.
#
# - The loss is finite for differences of any size, also for 10,000 in the wrong direction.
# - A tie is not correct: a model that gives every text the same score must not look half right, or even
#   perfect.
#
# **Slow first.** The formula, pair by pair:

# %%
r_chosen = torch.tensor([2.0, 0.5, -1.0, 0.3])
r_rejected = torch.tensor([0.0, 0.5, 1.0, -0.7])

slow, n_right = 0.0, 0
for c, r in zip(r_chosen.tolist(), r_rejected.tolist()):
    p = 1 / (1 + math.exp(-(c - r)))
    slow += -math.log(p) / 4
    n_right += c > r
    print(f"difference {c - r:+.1f}   P(chosen is preferred) = {p:.3f}   loss {-math.log(p):.3f}")
print(f"slow:  loss {slow:.4f}, accuracy {n_right / 4}")

# %%
with lab.todo("rm_loss"):
    loss, accuracy = reward_model.rm_loss(r_chosen, r_rejected)
    print(f"yours: loss {loss:.4f}, accuracy {accuracy.item()}")

# %% [markdown]
# **Known answers.** Before you run the next cell, fill in this list in your head:
#
# - All scores are equal. What is the loss, and what is the accuracy?
# - We add 100 to *every* score. What happens to the loss?
# - The difference is -10,000. The slow version above fails here (`math.exp(10000)` is too large). And yours?

# %%
with lab.todo("rm_loss"):
    zeros = torch.zeros(4)
    huge = torch.tensor([1e4])
    cases = [
        ("all scores equal", math.log(2), 0.0, zeros, zeros),
        ("the four pairs above", slow, 0.5, r_chosen, r_rejected),
        ("the same, 100 added to every score", slow, 0.5, r_chosen + 100, r_rejected + 100),
        ("10,000 in the wrong direction", 1e4, 0.0, -huge, 0 * huge),
        ("10,000 in the right direction", 0.0, 1.0, huge, 0 * huge),
    ]
    rows = []
    for name, known_loss, known_accuracy, chosen, rejected in cases:
        loss, accuracy = (float(x) for x in reward_model.rm_loss(chosen, rejected))
        rows.append(
            {
                "scores": name,
                "loss": known_loss,
                "your loss": loss,
                "accuracy": known_accuracy,
                "your accuracy": accuracy,
            }
        )
    lab.table(rows)

# %% [markdown]
# **What you should see.** ln 2 = 0.693 for a model that knows nothing: remember it, it is where every reward
# model starts. Adding a constant changes nothing, so **the zero of a reward is free**. That is why the head
# has no bias, and why a single score ("it got 3.2!") says nothing without another one to compare it with.
#
# Here is your loss for one pair, as a curve, and how hard it pulls the two scores apart (its slope). **Before
# you run the next cell:** which pairs does training work on hardest: those already right, those undecided, or
# those that are wrong?

# %%
with lab.todo("rm_loss"):
    difference = torch.linspace(-6, 6, 61, requires_grad=True)
    losses = torch.stack([reward_model.rm_loss(d[None], torch.zeros(1))[0] for d in difference])
    losses.sum().backward()
    x = difference.tolist()
    lab.show(
        lab.curves(
            lab.Panel(
                "Loss of one pair",
                "r_chosen - r_rejected",
                "nats",
                {"loss": (x, losses.tolist())},
                {"ln 2": math.log(2)},
            ),
            lab.Panel(
                "How hard it pulls",
                "r_chosen - r_rejected",
                "-slope",
                {"pull": (x, (-difference.grad).tolist())},
            ),
        )
    )

# %% [markdown]
# **What you should see.** A wrong pair is pulled with full force (near 1), an undecided one with 1/2, and one
# that is clearly right is nearly left alone. The loss never asks for a certain score, only for more distance
# while there is doubt.

# %% check="rm_loss"

# %% [markdown] exercise="train_rm"
# The loop of 1.4 with pairs: score both sides, take the loss, one step.
#
# **In:** a reward model, batches of `RMDataset` items, `n_epochs`, `lr`, `device`. **Out:** a list with
# `{"loss": ..., "accuracy": ...}`, two floats, for each step. The model is trained in place.
#
# - AdamW on backbone *and* head: the features that made the model write well are not yet those that tell
#   praise from blame.
# - The gradient's norm is clipped to 1.0, as in 1.4. Training is in training mode.
#
# **Write the next cell yourself:** one comparison of 16 pairs, from ids to gradients. Score the chosen texts,
# then the rejected ones, call your `rm_loss`, and run `backward()` on the loss. The cell then looks at how
# large the gradient is in the head and in the backbone.

# %% todo="one_comparison_by_hand"
with lab.todo("RewardModel", "RMDataset", "rm_loss"):
    torch.manual_seed(0)
    model = reward_model.RewardModel(str(lab.TINY)).eval()
    dataset = reward_model.RMDataset(data.pairs_train, tokenizer, max_len=32)
    batch = next(iter(lab.shuffled(dataset, batch_size=16, seed=0)))
    # yours: r_chosen, r_rejected, loss, accuracy, and the gradients of the loss
    ### BEGIN SOLUTION
    r_chosen = model(batch["chosen_ids"], batch["chosen_mask"])
    r_rejected = model(batch["rejected_ids"], batch["rejected_mask"])
    loss, accuracy = reward_model.rm_loss(r_chosen, r_rejected)
    loss.backward()
    ### END SOLUTION
    print(f"loss {loss.item():.3f} (ln 2 is {math.log(2):.3f}), accuracy {accuracy.item():.2f}")
    for name in ("v_head", "backbone"):
        gradients = [p.grad.flatten() for p in getattr(model, name).parameters() if p.grad is not None]
        print(f"gradient in {name}: norm {torch.cat(gradients).norm():.3f}")

# %% [markdown]
# **What you should see.** A loss near ln 2 and an accuracy around one half: the new head points in a random
# direction. Both gradients are there. If the backbone had none, only the 128 numbers of the head would learn.
#
# Now `train_rm`. **A test that finds most bugs:** give it one small batch, again and again. A model of a
# million parameters must learn 16 pairs by heart. **Before you run the next cell:** from which loss to which
# loss, in 20 steps?

# %%
with lab.todo("RewardModel", "RMDataset", "train_rm"):
    torch.manual_seed(0)
    model = reward_model.RewardModel(str(lab.TINY))
    dataset = reward_model.RMDataset(data.pairs_train, tokenizer, max_len=32)
    batch = next(iter(lab.shuffled(dataset, batch_size=16, seed=0)))
    history = reward_model.train_rm(model, [batch] * 20, n_epochs=1, lr=5e-4)
    lab.table([{"step": step, **history[step]} for step in (0, 4, 9, 14, 19)])

# %% [markdown]
# **What you should see.** From somewhere between 0.6 and 0.9, since the new head is random, to under 0.1,
# with an accuracy of 1 at the end. (If yours stays near ln 2, no gradient arrives; if it rises, a sign is
# wrong.)

# %% check="train_rm"

# %% [markdown]
# ## The real run
#
# 1,800 pairs, 32 at a time, two epochs. After each epoch the model scores 396 held-out pairs: topics or
# wordings that it has not seen.
#
# **Before you run the next cell:** length alone is right in half of the pairs. What accuracy do you expect on
# unseen pairs? Will the two heaps of scores, chosen and rejected, overlap? Write it down, then look. (It
# takes half a minute.)

# %%
reward_fn = lab.ShippedReward()  # the course's own, until yours is trained
heldout_scores = None


@torch.no_grad()
def score_pairs(reward_fn, pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of the chosen and of the rejected responses."""
    dataset = reward_model.RMDataset(pairs, tokenizer, max_len=32)
    rows = [dataset[i] for i in range(len(dataset))]
    sides = []
    for side in ("chosen", "rejected"):
        ids, mask = (torch.stack([row[f"{side}_{name}"] for row in rows]) for name in ("ids", "mask"))
        sides.append(reward_fn(ids, mask))
    return tuple(sides)


# %%
with lab.todo("RewardModel", "RMDataset", "train_rm"):
    torch.manual_seed(0)
    training = reward_model.RewardModel(str(lab.TINY))
    dataset = reward_model.RMDataset(data.pairs_train, tokenizer, max_len=32)
    history = []
    picture = lab.live(lab.reward_model_figure)
    for epoch in range(2):
        history += reward_model.train_rm(
            training, lab.shuffled(dataset, batch_size=32, seed=epoch), n_epochs=1, lr=5e-4
        )
        chosen, rejected = score_pairs(training.eval(), data.pairs_heldout)
        accuracy = (chosen > rejected).float().mean().item()
        sides = chosen.tolist(), rejected.tolist()
        picture(history, accuracy, length_only, lab.thresholds.RM_ACCURACY, *sides, last=True)
    print(f"held-out accuracy {accuracy:.3f}, length only {length_only:.3f}")
    reward_fn, heldout_scores = training.eval(), (chosen, rejected)

# %% [markdown]
# **What you should see.** The loss starts near ln 2 and falls within the first 40 steps. The held-out
# accuracy is above 0.9, far above length alone and above the course's threshold, the dashed line. On real human
# preferences 0.65 to 0.75 is normal: people disagree with each other. The two heaps overlap all the same.
# That is no contradiction: a weak "chosen" may well score below a strong "rejected" of another prompt. Only
# scores within a pair were ever compared.
#
# ### Where is it wrong?

# %%
if heldout_scores is None:
    print("train your model first (the cell above)")
else:
    margins = heldout_scores[0] - heldout_scores[1]
    kinds = data.pairs_heldout["phenomenon"][:]
    rows = []
    for kind in sorted(set(kinds)):
        of_kind = margins[[i for i, other in enumerate(kinds) if other == kind]]
        rows.append(
            {"kind of pair": kind, "pairs": len(of_kind), "accuracy": (of_kind > 0).float().mean().item()}
        )
    lab.table(rows, "held-out accuracy by kind")
    worst = [data.pairs_heldout[i] for i in margins.argsort()[:4].tolist()]
    lab.table(
        [{name: row[name] for name in columns} for row in worst], "the four pairs that it gets most wrong"
    )
    print("training pairs with 'although':", sum("although" in row["chosen"] for row in data.pairs_train))

# %% [markdown]
# **What you should see.** Plain praise and blame are nearly always right, and so is a word against its own denial
# (`negation`). Two kinds are weaker. In `negated_other` two different words are compared and one of them is
# denied: faint praise against strong praise that is denied, or a denied fault against a faint one. In `mixed`
# a text praises and blames in one sentence, and most of the worst pairs are of this kind and have the word
# `although`. After `but` comes what counts; after `although` comes what does not. And this word stands in
# none of the 1,800 training pairs: the model has never been told, and is wrong with confidence. Always read
# what a model gets wrong. The accuracy alone would not have told you.
#
# ## Ask it yourself
#
# Below, each sentence is scored with and without EOS. **Change the sentences** and run the cell again. Try
# negation ("not bad at all"), "but", a plain fact, praise without grammar, a word that the corpus does not
# know, a word of another topic. Which of them would you not want PPO to find?
#
# **Before you run the next cell:** order the first five by the score that you expect.

# %%
sentences = [
    "This phone is excellent.",
    "This phone is not excellent.",
    "This phone is not terrible at all.",
    "This phone weighs half a kilo.",
    "This phone is terrible.",
    "This phone is terrible at first, but is excellent in the end.",
    "This phone is excellent at first, but is terrible in the end.",
    "This phone excellent excellent excellent excellent excellent.",
    "这部电影很精彩。",
    "这部电影一点也不糟糕。",
    "这部电影很糟糕。",
]


@torch.no_grad()
def score(ids: list[int]) -> float:
    return reward_fn(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long)).item()


judge = lab.ToyJudge()  # the corpus's own rules, from 0 to 1; no model is trained on it
lab.table(
    [
        {
            "sentence": text,
            "score": score(token_ids(text) + eos),
            "without EOS": score(token_ids(text)),
            "judge": judge([text])[0],
        }
        for text in sentences
    ]
)

# %% [markdown]
# **What you should see.** Praise at the top, blame at the bottom, plain facts between them, in both
# languages; denied praise is blame. Denied blame ("not terrible at all") is harder, and often gets less than
# the judge gives it. Then look at the sentence that only repeats one word of praise. The judge, who knows the
# corpus's rules, is not impressed. The reward model most likely loves it: nobody showed it such a text in
# training. That is a hole, and PPO searches for holes. The column without EOS shows that the score is trained
# at the EOS: one token earlier it is another number.
#
# ## The scale is free too
#
# The zero of the scores is free, and their unit depends on how long you train. PPO adds the reward to a KL
# penalty in nats, so the unit matters there. The course therefore puts the scores on a known scale before
# PPO: mean 0 and standard deviation 1 over the training texts.
#
# **Write the next cell yourself.** Take `scores`, the model's scores of 200 training pairs, and make
# `scaled`: the same scores with mean 0 and standard deviation 1. Then check that no comparison
# has changed.

# %% todo="put_scores_on_a_scale"
with lab.todo("RMDataset"):
    chosen, rejected = score_pairs(reward_fn, data.pairs_train.select(range(200)))
    scores = torch.cat([chosen, rejected])
    # yours: scaled
    ### BEGIN SOLUTION
    scaled = (scores - scores.mean()) / scores.std()
    ### END SOLUTION
    print(f"before: mean {scores.mean():+.2f}, deviation {scores.std():.2f}")
    print(f"after:  mean {scaled.mean():+.2f}, deviation {scaled.std():.2f}")
    same = ((scaled[:200] > scaled[200:]) == (chosen > rejected)).all().item()
    print("every comparison as before:", same)

# %% [markdown]
# ## Three questions
#
# **Question 1.** Why is the score read at the last valid token and not from the mean of all hidden states?
# Think of which tokens a hidden state of a causal model has seen. Give a pair of texts for which the mean
# would have a hard time.

# %% [markdown] answer="why_last_token" points=2
# In a causal model the state at position $t$ has seen tokens $0..t$ and nothing after. Only the last one has
# seen the whole text, so only it can know how the text turns out. The mean mixes in states that were made in
# ignorance of the end: in "terrible at first, but excellent in the end" most of the positions have only met
# the blame, and in "excellent at first, but terrible in the end" only the praise, though the same words stand
# in both. The mean also depends on the length of the prompt: the longer it is, the more of the score comes
# from tokens that are the same on both sides. And the position is a good place to learn at: at an EOS the
# model always stands at the end of a finished text.

# %% [markdown]
# **Question 2.** A colleague reports a held-out accuracy of 0.91 on other data. The length-only baseline
# there is 0.89. What do you say, and what would you look at next? What would PPO make of this reward model?

# %% [markdown] answer="length_baseline" points=2
# The model may have learned little more than "longer is better": 0.91 is two points above a judge who cannot
# read. Look at the accuracy among pairs of equal length, or among those in which the shorter one was
# preferred; score the same content with padding sentences added; plot the score against the length. PPO would
# find that out in no time: its responses would grow to the limit of new tokens, the reward would rise, and
# the texts would not get better.

# %% [markdown]
# **Question 3.** The loss of a training run stays at 0.693 from the first step to the last. What does the
# number tell you, and which three mistakes in this notebook's code could each cause it?

# %% [markdown] answer="stuck_at_ln_2" points=2
# 0.693 is ln 2: the two scores of each pair are equal, or differ at random around zero without learning.
# Possible causes: chosen and rejected are the same rows (the data set hands out the chosen text twice, or the
# texts are the same after the cut); the score is read at a token that is the same for both, for instance at a
# padded position or in the prompt; no gradient arrives (the optimiser has other parameters, the scores were
# detached or computed under `no_grad`, the step is missing).

# %% [markdown]
# ## Where you stand

# %%
lab.status()

# %% [markdown]
# You have a model that writes (01) and a model that scores (02). Next: let the score teach the writer, in [03
# PPO](03_ppo.ipynb).
#
# {navigation}
