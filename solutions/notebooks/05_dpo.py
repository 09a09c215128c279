# %% [markdown]
# {navigation}
#
# # 5 Direct preference optimisation
#
# PPO took a long way from comparisons to a better writer: train a reward model on the pairs, sample from the
# policy, score the samples, guess with a critic, push. **Direct preference optimisation** (DPO, Rafailov et
# al. 2023) goes straight: the pairs themselves train the policy, with a loss that you know from the reward
# model.
#
# **What you will have at the end:** three functions in [`rlhf_exercises/dpo.py`](../rlhf_exercises/dpo.py), a
# policy that they have trained, and a table that puts it beside PPO: same start, same prompts, same judge.
#
# **Time:** about 1 to 2 hours of your own; the cells together run in about a minute and a half on two CPU
# cores. **It starts from** the course's own SFT checkpoint and the preference pairs of stage 2. There is no
# reward model here. Two functions of earlier stages are called: `gather_logprobs` (3.2) and
# `build_sft_example` (1.1), as they stand in your package, whether you wrote them or they came solved.
#
# | model | is it updated? | where it comes from |
# |:--|:--|:--|
# | policy | yes | SFT |
# | reference | **frozen** | SFT, a copy |

# %%
# %load_ext autoreload
# %autoreload 2
import copy
import math
import time

import torch

import rlhf_lab.notebook as lab
from rlhf_exercises import dpo

lab.begin("05_dpo", "rlhf_exercises")

# %%
tokenizer = lab.load_tokenizer(lab.SFT)
lm = lab.load_causal_lm(lab.SFT).requires_grad_(False)  # after SFT: the start, and the reference
data = lab.load_data("toy")
judge = lab.ToyJudge()  # reads texts; nothing is ever trained on it


def token_ids(text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


columns = ("prompt", "chosen", "rejected")
lab.table([{name: data.pairs_train[i][name] for name in columns} for i in (0, 291, 582, 1067)])

# %% [markdown]
# ## The idea: a policy is a reward model
#
# PPO looks for the policy with the highest reward, and charges $\beta$ for each nat of KL to the reference:
#
# $$\max_\pi \; \mathbb{E}_{y \sim \pi}\,[\,r(y)\,] \;-\; \beta\, \mathrm{KL}(\pi \,\|\, \pi_{ref})$$
#
# The answer to this is known. The best policy is the reference, tilted towards high reward (Rafailov et al.
# 2023, eq. 4):
#
# $$\pi^*(y) = \frac{1}{Z}\; \pi_{ref}(y)\; e^{\,r(y)/\beta}$$
#
# $Z$ makes the probabilities add up to 1. A language model has far too many responses to compute $Z$. Here is
# a world with four responses, where we can.
#
# **Before you run the next cell:** a reference that likes dull texts, and rewards. Which response will the
# best policy write most often if KL is cheap ($\beta$ = 0.2), and which if it is dear ($\beta$ = 5)?

# %%
responses = ["it is a phone.", "it is fine.", "it is wonderful.", "wonderful wonderful"]
ref_probability = [0.60, 0.30, 0.0999, 0.0001]
reward = [0.0, 0.5, 1.0, 1.2]


def best_policy(beta: float) -> list[float]:
    tilted = [p * math.exp(r / beta) for p, r in zip(ref_probability, reward)]
    return [weight / sum(tilted) for weight in tilted]


rows = []
for i, text in enumerate(responses):
    row = {"response": text, "reward": reward[i], "reference": f"{ref_probability[i]:.4f}"}
    rows.append(row | {f"best, beta {beta:g}": f"{best_policy(beta)[i]:.4f}" for beta in (5.0, 1.0, 0.2, 0.02)})
lab.table(rows, "probability of each response")

# %% [markdown]
# **What you should see.** With a large $\beta$ the best policy is nearly the reference. With a small one it
# goes for the reward. At 0.02 the text that the reference would hardly ever write wins: that is what reward
# hacking looks like, and $\beta$ is the brake.
#
# **Now read the formula backwards.** Take the logarithm and solve for the reward:
#
# $$r(y) = \beta \log \frac{\pi^*(y)}{\pi_{ref}(y)} + \beta \log Z$$
#
# A policy and its reference *say* which reward the policy is best for. The last term is the same for every
# response to a prompt, so it cancels whenever two responses are compared, and comparisons are all we have.
#
# **Before you run the next cell:** take the best policy for $\beta$ = 1 and compute $\beta \log(\pi^* /
# \pi_{ref})$ for each response. What do you get if you subtract the number of the first response from all?

# %%
beta = 1.0
implicit = [beta * math.log(p / q) for p, q in zip(best_policy(beta), ref_probability)]
rows = [
    {"response": text, "reward": r, "beta log(best / reference)": i, "the same, less the first": i - implicit[0]}
    for text, r, i in zip(responses, reward, implicit)
]
lab.table(rows)

# %% [markdown]
# **What you should see.** The rewards come back. This is DPO: call $\beta \log(\pi_\theta(y|x) /
# \pi_{ref}(y|x))$ the **implicit reward** of a response, and train *it* on the pairs, with the loss of the
# reward model. What comes out is a policy. Nothing is sampled, and the KL to the reference needs no term of
# its own: it is what the reward is made of.

# %% [markdown] exercise="sequence_logprobs"
# How likely is a whole response, given its prompt? Each token is drawn given all before it, so the
# probabilities are multiplied and their logarithms added:
#
# $$\log \pi(y \mid x) = \sum_t \log \pi(y_t \mid x, y_{<t})$$
#
# **In:** a model, and `input_ids`, `attention_mask`, `labels`, all `[batch, seq]`, as `build_sft_example` lays
# them out: labels are -100 on prompt and padding. **Out:** `[batch]`, one number a text, in nats.
#
# - The **sum**, not the mean, over the tokens whose label is not -100: the response and its EOS.
# - The labels are not shifted. The logits at a position are about the *next* token; `gather_logprobs` knows
#   that, and has one column less than the row.
# - The number does not depend on the side or the length of the padding, or on the rest of the batch. Left
#   padding needs `position_ids_from_mask`, as in 2.2.
# - A row without any label has 0. The arguments are not changed, and a gradient can flow.
#
# **Slow, then fast.** Slow: for each token of the response, give the model all that stands before it, without
# padding, and ask for that token. Your function gets three texts at once, padded on the right and then on the
# left, and the padding is not 0 but some word.
#
# **Before you run the next cell:** the first response is " was excellent." and the second one the same with
# ", and it has two colours" in it. Which of them has the larger log-probability, and why?

# %%
texts = [
    ("This phone", " was excellent."),
    ("This phone", " was excellent, and it has two colours."),
    ("关于这家餐厅：", "服务一流。"),
]
some_word = token_ids(" this")[0]


def slow_logprob(model, prompt: str, response: str) -> float:
    prompt_ids, response_ids = token_ids(prompt), token_ids(response) + [tokenizer.eos_token_id]
    total = 0.0
    for t, token in enumerate(response_ids):
        before = torch.tensor([prompt_ids + response_ids[:t]])
        total += model(input_ids=before).logits[0, -1].log_softmax(-1)[token].item()
    return total


def laid_out(texts: list[tuple[str, str]], left: bool = False) -> tuple:
    """Ids, mask and labels of some (prompt, response)."""
    rows = [(token_ids(prompt), token_ids(response) + [tokenizer.eos_token_id]) for prompt, response in texts]
    width = max(len(prompt + response) for prompt, response in rows) + 2
    ids, mask, labels = [], [], []
    for prompt, response in rows:
        n_pad = width - len(prompt + response)
        parts = [
            (ids, prompt + response, some_word),
            (mask, [1] * len(prompt + response), 0),
            (labels, [-100] * len(prompt) + response, -100),
        ]
        for column, row, filler in parts:
            column.append([filler] * n_pad + row if left else row + [filler] * n_pad)
    return torch.tensor(ids), torch.tensor(mask), torch.tensor(labels)


slow = [slow_logprob(lm, *text) for text in texts]
print("slow:", [round(x, 3) for x in slow])

# %%
with lab.todo("sequence_logprobs"), torch.no_grad():
    right = dpo.sequence_logprobs(lm, *laid_out(texts))
    left = dpo.sequence_logprobs(lm, *laid_out(texts, left=True))
    rows = zip(texts, slow, right.tolist(), left.tolist())
    lab.table(
        [
            {"prompt": p, "response": r, "slow": s, "padded right": a, "padded left": b}
            for (p, r), s, a, b in rows
        ]
    )

# %% [markdown]
# **What you should see.** The same number three times in each row. The longer text is less likely: each
# further token can only make the product smaller.
#
# **Known answer.** A model whose logits are all equal gives each token the probability $1/V$. A response of
# $n$ tokens (EOS counted) then has $-n \ln V$. The cell below zeroes the last layer norm of a copy, which
# makes all logits 0.

# %%
with lab.todo("sequence_logprobs"), torch.no_grad():
    indifferent = copy.deepcopy(lm)
    indifferent.transformer.ln_f.weight.zero_()
    indifferent.transformer.ln_f.bias.zero_()
    yours = dpo.sequence_logprobs(indifferent, *laid_out(texts)).tolist()
    n_tokens = [len(token_ids(response)) + 1 for _, response in texts]
    for n, x in zip(n_tokens, yours):
        print(f"{n:2d} tokens: yours {x:9.4f}, known {-n * math.log(len(tokenizer)):9.4f}")

# %% check="sequence_logprobs"

# %% [markdown]
# ### Sum or mean?
#
# The SFT loss is a mean over tokens. Why is this a sum? **Before you run the next cell:** how does the number
# of a response change with its length, and how does the number for each of its tokens?

# %%
heldout = None
with lab.todo("build_sft_example"):
    heldout = dpo.PreferenceDataset(data.pairs_heldout, tokenizer, max_len=32)


def side_of(batch: dict, side: str) -> tuple:
    return batch[f"{side}_ids"], batch[f"{side}_mask"], batch[f"{side}_labels"]


def stacked(indices) -> dict:
    """Some held-out pairs as one batch."""
    if heldout is None:
        raise lab.LabError("the pairs are laid out by build_sft_example (1.1), which is not ready in your sft.py")
    rows = [heldout[i] for i in indices]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


with lab.todo("sequence_logprobs"), torch.no_grad():
    batch = stacked(range(0, len(data.pairs_heldout), 3))
    chosen = side_of(batch, "chosen")
    nats, n_tokens = dpo.sequence_logprobs(lm, *chosen), (chosen[2] != -100).sum(-1)
    rows = []
    for low, high in ((1, 8), (9, 12), (13, 16), (17, 30)):
        group = (n_tokens >= low) & (n_tokens <= high)
        mean, per_token = nats[group].mean().item(), (nats / n_tokens)[group].mean().item()
        row = {"tokens": f"{low} to {high}", "responses": int(group.sum())}
        rows.append(row | {"sum": mean, "for each token": per_token})
    lab.table(rows, "log-probability under SFT of the chosen responses of 132 held-out pairs, means")

# %% [markdown]
# **What you should see.** Longer responses tend to be less likely, although each of their tokens is easier.
# The sum is right all the same. The formula above is about the probability of the *response*, and that is a
# product. And the cost of being long is paid under both models, so it falls out when the reference is
# subtracted: at the start the implicit reward of every response is 0, long or short. One thing remains: a
# long response has more tokens in which to move away from the reference.

# %% [markdown] exercise="dpo_loss"
# The Bradley-Terry loss of 2.4, on implicit rewards (Rafailov et al. 2023, eq. 7):
#
# $$\hat r(y) = \beta\,\big(\log\pi_\theta(y|x) - \log\pi_{ref}(y|x)\big) \qquad
# L = -\frac{1}{B}\sum \log \sigma\big(\hat r(y_{chosen}) - \hat r(y_{rejected})\big)$$
#
# **In:** four times `[batch]`: policy and reference, chosen and rejected, and `beta`. **Out:** the loss, and
# the implicit rewards of the chosen and of the rejected responses, `[batch]` each.
#
# - The gradient reaches the policy's two numbers and nothing else: the reference is cut off.
# - The two rewards carry no gradient. They are there to be looked at.
# - The loss is finite for differences of any size.
#
# **Slow, then fast.** Three pairs. In the first the policy is still the reference. In the second the chosen
# response has become *less* likely, and the rejected one even less so. In the third the policy has moved the
# wrong way.
#
# **Before you run the next cell:** which of the three has the lowest loss? And what is the loss of the first?

# %%
policy_chosen = torch.tensor([-14.0, -16.0, -12.0])
policy_rejected = torch.tensor([-13.0, -21.0, -9.0])
ref_chosen = torch.tensor([-14.0, -14.0, -11.0])
ref_rejected = torch.tensor([-13.0, -15.0, -12.0])

slow = 0.0
for pc, pr, rc, rr in zip(policy_chosen, policy_rejected, ref_chosen, ref_rejected):
    reward_chosen, reward_rejected = 0.3 * (pc - rc), 0.3 * (pr - rr)
    p = 1 / (1 + math.exp(-(reward_chosen - reward_rejected)))
    slow += -math.log(p) / 3
    rewards = f"rewards {reward_chosen:+.1f} and {reward_rejected:+.1f}"
    print(f"{rewards}: P(chosen wins) {p:.3f}, loss {-math.log(p):.3f}")
print(f"slow:  {slow:.4f}")

# %%
with lab.todo("dpo_loss"):
    loss, chosen_reward, rejected_reward = dpo.dpo_loss(
        policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta=0.3
    )
    print(f"yours: {loss.item():.4f}")
    print("rewards of the chosen:  ", [round(x, 2) for x in chosen_reward.tolist()])
    print("rewards of the rejected:", [round(x, 2) for x in rejected_reward.tolist()])

# %% [markdown]
# **What you should see.** The first pair has ln 2 = 0.693. Both rewards are 0 there, whatever the two
# log-probabilities are: a policy that is the reference says nothing about preference. **Every DPO run starts
# at ln 2.** The second pair has the lowest loss, although its chosen response has become less likely. Keep
# this in mind: the loss looks at the difference and at nothing else.
#
# Now the loss of one pair as a curve, for three values of $\beta$, and how hard it pulls (its slope). The x
# axis says by how many nats the policy has moved the two responses apart.
#
# **Before you run the next cell:** with a small $\beta$, how far must the policy go until a pair leaves it in
# peace?

# %%
with lab.todo("dpo_loss"):
    nats = torch.linspace(-20, 40, 121, requires_grad=True)
    zero, x = torch.zeros(1), nats.tolist()
    losses, pulls = {}, {}
    for beta in (0.1, 0.3, 1.0):
        each = torch.stack([dpo.dpo_loss(n[None], zero, zero, zero, beta=beta)[0] for n in nats])
        (slope,) = torch.autograd.grad(each.sum(), nats)
        losses[f"beta {beta:g}"], pulls[f"beta {beta:g}"] = (x, each.tolist()), (x, (-slope).tolist())
    lab.show(
        lab.curves(
            lab.Panel("Loss of one pair", "moved apart (nats)", "loss", losses, {"ln 2": math.log(2)}),
            lab.Panel("How hard it pulls", "moved apart (nats)", "-slope", pulls),
        )
    )

# %% [markdown]
# **What you should see.** All three curves go through ln 2 at 0. With $\beta$ = 1 a pair is settled after
# about 5 nats. With 0.1 the pull is weaker, but it goes on to 40 nats and further: a **small beta lets the
# policy go far from the reference**, a large one keeps it near. That is the KL term of PPO, in another place.
#
# **And without a reference?** Then the loss would ask the policy to make each chosen response likelier than
# the rejected one *in absolute terms*, where length and rare words weigh more than good and bad, and nothing
# would remember the language of SFT. (SimPO, Meng et al. 2024, does without: it takes means for sums and asks
# for a fixed margin.)

# %% check="dpo_loss"

# %% [markdown] exercise="train_dpo"
# The loop of `train_rm`, with two models and two texts: four log-probabilities for each pair.
#
# **In:** `policy`, `ref_policy`, batches of `PreferenceDataset` items (given: ids, mask and labels of both
# sides), `n_epochs`, `lr`, `device`, `beta`. **Out:** a dictionary of five floats for each step, all from
# before the step: `loss`, `accuracy`, `margin`, `chosen_logprob`, `rejected_logprob`.
#
# - AdamW on the policy, gradient norm clipped to 1.0. The reference is never changed.
# - **Dropout is off in both models** (eval mode). A policy with dropout differs from its own copy, and the
#   first loss would not be ln 2.
# - `accuracy` is the share of pairs whose chosen response has *strictly* the higher implicit reward; `margin`
#   is the mean difference of the two rewards; the two log-probabilities are means of the policy's own.
#
# **Write the next cell yourself:** one step by hand, without the step. `policy` and `lm` are the same model
# here. Compute the four log-probabilities of `batch` (16 pairs), the loss and the rewards with $\beta$ = 0.3,
# and call `backward()` on the loss. Use the names that the lines below print.
#
# **Before you run it:** the policy is the reference. What is the loss? What is the accuracy? And is there a
# gradient?

# %% todo="one_dpo_step_by_hand"
with lab.todo("sequence_logprobs", "dpo_loss"):
    policy = copy.deepcopy(lm).requires_grad_(True)
    batch = stacked(range(16))
    chosen, rejected = side_of(batch, "chosen"), side_of(batch, "rejected")
    # yours: policy_chosen, policy_rejected, loss, chosen_reward, rejected_reward, and the gradients of the loss
    ### BEGIN SOLUTION
    policy_chosen = dpo.sequence_logprobs(policy, *chosen)
    policy_rejected = dpo.sequence_logprobs(policy, *rejected)
    with torch.no_grad():
        ref_chosen = dpo.sequence_logprobs(lm, *chosen)
        ref_rejected = dpo.sequence_logprobs(lm, *rejected)
    loss, chosen_reward, rejected_reward = dpo.dpo_loss(
        policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta=0.3
    )
    loss.backward()
    ### END SOLUTION
    gradient = math.sqrt(sum(p.grad.square().sum() for p in policy.parameters() if p.grad is not None))
    print(f"loss {loss.item():.6f}    known: ln 2 = {math.log(2):.6f}")
    print(f"largest reward {max(chosen_reward.abs().max(), rejected_reward.abs().max()):.1e}    known: 0")
    print(f"accuracy {(chosen_reward > rejected_reward).float().mean():.2f}    known: 0, all are ties")
    print(f"likelier under SFT itself: {(policy_chosen > policy_rejected).float().mean():.2f} of the chosen")
    print(f"gradient norm {gradient:.2f}    not 0!")

# %% [markdown]
# **What you should see.** ln 2, rewards of 0, and an accuracy of 0: every pair is a tie, and a tie is not
# correct. (So the accuracy of a DPO run starts at 0, not at one half.) There is a gradient all the same: at a
# difference of 0 each pair pulls with $\beta / 2$.
#
# Now `train_dpo`. **The test that finds most bugs:** one small batch, again and again. **Before you run the
# next cell:** where does the loss end, after 12 steps on the same 16 pairs? And do both log-probabilities
# rise?

# %%
with lab.todo("train_dpo"):
    policy = copy.deepcopy(lm).requires_grad_(True)
    history = dpo.train_dpo(policy, lm, [stacked(range(16))] * 12, n_epochs=1, lr=3e-4, beta=0.3)
    lab.table([{"step": step, **history[step]} for step in (0, 1, 3, 5, 8, 11)])

# %% [markdown]
# **What you should see.** The loss falls from ln 2 to under 0.02 and the margin grows. The rejected responses
# lose more than 20 nats. The chosen ones become likelier at first, and then fall back: a question below asks
# why. (If your loss stays at ln 2, look at which model the reference's numbers come from.)

# %% check="train_dpo"

# %% [markdown]
# ## The real run
#
# 1,800 pairs, 32 at a time, once: 57 steps with learning rate 3e-4 and $\beta$ = 0.3. A small class hands the
# batches out and, on the way, has a look at the policy on 66 held-out pairs: topics or wordings that it does
# not train on.
#
# **Before you run the next cell,** write down: where will the held-out margin be at the end, above 0 or not?
# Which of the two log-probabilities, chosen and rejected, will rise, and which will fall? (It takes less than
# a minute.)


# %%
class LookingOn:
    """Batches, with a look before every eighth of them and after the last."""

    def __init__(self, batches, look):
        self.batches, self.look = batches, look

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self):
        for step, batch in enumerate(self.batches):
            if step % 8 == 0:
                self.look(step)
            yield batch
        self.look(len(self.batches))


@torch.no_grad()
def logprobs_of(model, indices) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the chosen and of the rejected responses of some held-out pairs."""
    parts = [stacked(indices[i : i + 66]) for i in range(0, len(indices), 66)]
    sides = ("chosen", "rejected")
    return tuple(torch.cat([dpo.sequence_logprobs(model, *side_of(b, side)) for b in parts]) for side in sides)


def dpo_figure(seen: list[dict]):
    def line(name):
        return [row["step"] for row in seen], [row[name] for row in seen]

    return lab.curves(
        lab.Panel("Held-out loss", "step", "nats per pair", {"loss": line("loss")}, {"ln 2": math.log(2)}),
        lab.Panel("Held-out margin", "step", "reward, chosen - rejected", {"margin": line("margin")}),
        lab.Panel(
            "Log-probability",
            "step",
            "nats per response",
            {"chosen": line("chosen"), "rejected": line("rejected")},
        ),
    )


BETA = 0.3
dpo_lm, seconds = None, None  # the trained policy, as soon as there is one

# %%
with lab.todo("sequence_logprobs", "dpo_loss", "train_dpo"):
    some = list(range(0, len(data.pairs_heldout), 6))
    ref_some = logprobs_of(lm, some)
    policy = copy.deepcopy(lm).requires_grad_(True)
    seen, picture = [], lab.live(dpo_figure, every=3)

    def look(step: int) -> None:
        chosen, rejected = logprobs_of(policy, some)
        loss, chosen_reward, rejected_reward = dpo.dpo_loss(chosen, rejected, *ref_some, BETA)
        margin = (chosen_reward - rejected_reward).mean().item()
        means = {"chosen": chosen.mean().item(), "rejected": rejected.mean().item()}
        seen.append({"step": step, "loss": loss.item(), "margin": margin, **means})
        picture(seen)

    pairs = dpo.PreferenceDataset(data.pairs_train, tokenizer, max_len=32)
    started = time.perf_counter()
    history = dpo.train_dpo(
        policy, lm, LookingOn(lab.shuffled(pairs, 32, seed=0), look), n_epochs=1, lr=3e-4, beta=BETA
    )
    seconds = time.perf_counter() - started
    picture(seen, last=True)
    dpo_lm = policy
    shown = (0, 1, 5, 20, 40, len(history) - 1)
    lab.table([{"step": step, **history[step]} for step in shown], "training batches")

# %%
everything = list(range(len(data.pairs_heldout)))
with lab.todo("sequence_logprobs", "dpo_loss", "train_dpo"):
    if dpo_lm is None:
        raise lab.LabError("train the policy first (the cell above)")
    ref_all, all_now = logprobs_of(lm, everything), logprobs_of(dpo_lm, everything)
    _, chosen_reward, rejected_reward = dpo.dpo_loss(*all_now, *ref_all, BETA)
    margins = chosen_reward - rejected_reward
    accuracy = (margins > 0).float().mean().item()
    print(f"held-out accuracy {accuracy:.3f} (the course asks for more than {lab.thresholds.RM_ACCURACY})")
    print(f"held-out margin   {margins.mean():.2f} (more than 0)")
    sft_accuracy = (ref_all[0] > ref_all[1]).float().mean().item()
    print(f"pairs whose chosen response SFT itself finds likelier: {sft_accuracy:.3f}")
    for side, now, before in (("chosen", all_now[0], ref_all[0]), ("rejected", all_now[1], ref_all[1])):
        change = now - before
        fallen = (change < 0).float().mean()
        print(f"{side:8s} {before.mean():6.1f} -> {now.mean():6.1f} nats; less likely than before: {fallen:.0%}")
    kinds = data.pairs_heldout["phenomenon"][:]
    rows = []
    for kind in sorted(set(kinds)):
        of_kind = margins[[i for i, other in enumerate(kinds) if other == kind]]
        right, margin = (of_kind > 0).float().mean().item(), of_kind.mean().item()
        rows.append({"kind of pair": kind, "pairs": len(of_kind), "accuracy": right, "margin": margin})
    lab.table(rows, "held-out pairs by kind")

# %% [markdown]
# **What you should see.** The held-out margin leaves 0 and reaches about 1.3, and close to nine of ten
# held-out pairs are in the right order. SFT's own log-probabilities were right in six of ten. The kinds that
# the reward model of stage 2 found hard are hard here too (`mixed`, `negated_other`).
#
# Now the log-probabilities. The rejected responses lose about 5 nats: nearly all of them have become less
# likely. **The chosen ones have not become likelier**: on the mean they lose about 1 nat, and more than half
# of them are less likely than before. Yet every curve says that the training went well.
#
# **Question.** The loss fell and the accuracy rose, and still the policy gives *less* probability to the
# responses that people chose than SFT did. Why does the loss not mind? If both texts of a pair have lost
# probability, who has got it? (Look at the samples further down before you answer.) And name one thing that
# you could do about it. (2 points, graded by a person)

# %% [markdown] answer="why_chosen_falls" points=2
# The loss sees only the difference of the two implicit rewards. If the rejected response falls by 5 nats and
# the chosen one by 1, the difference grows by 4: a good step for the loss. Often it is also the easiest one.
# The two texts share tokens, or tokens of the same kind, so a step that pushes the rejected one down pushes
# parts of the chosen one down with it; and a log-probability can fall without end but cannot rise above 0.
# Probabilities add up to 1, so what both have lost is now with texts that stand in no pair: some are fine
# (other praise), some are not (broken sentences, texts that do not end). No pair says anything about those,
# and the policy does not write during training, so nobody notices. What helps: fewer steps, a smaller
# learning rate or a larger beta, which keep the policy near the reference; the SFT loss on the chosen
# responses, added to the loss; or pairs that were sampled from the policy itself. In any case: read samples
# and watch the share that ends, not only loss and accuracy.

# %% [markdown]
# ### Where in a response does the reward come from?
#
# A sum over tokens can be looked at token by token. Below is a held-out pair whose two texts share a long
# beginning. For each token: $\log \pi_\theta - \log \pi_{ref}$ given all before it.
#
# **Before you run the next cell:** what do the shared tokens contribute to the margin?

# %%
pair = data.pairs_heldout[99]


@torch.no_grad()
def token_logprobs(model, ids: list[int]) -> torch.Tensor:
    """Log-probability of each token but the first."""
    row = torch.tensor([ids])
    return model(input_ids=row).logits[0, :-1].log_softmax(-1).gather(-1, row[0, 1:, None])[:, 0]


with lab.todo("train_dpo"):
    if dpo_lm is None:
        raise lab.LabError("train the policy first (two cells above)")
    prompt_ids = token_ids(pair["prompt"])
    for side in ("chosen", "rejected"):
        response_ids = token_ids(pair[side]) + [tokenizer.eos_token_id]
        ids = prompt_ids + response_ids
        now, before = (token_logprobs(model, ids)[len(prompt_ids) - 1 :] for model in (dpo_lm, lm))
        lab.show(f"{side}: reward {BETA * (now - before).sum():+.2f}")
        lab.show(
            lab.token_table(
                tokens=lab.token_texts(tokenizer, response_ids),
                reference=before,
                policy=now,
                log_ratio=now - before,
            )
        )

# %% [markdown]
# **What you should see.** The shared tokens have the same log-ratio on both sides: the same tokens after the
# same prefix. They cancel in the margin, and so does their gradient. What is learnt comes from the first
# difference on: `·atrocious` after `·was` has lost more than 3 nats. On the chosen side `·far` has lost
# something too, although "far from atrocious" is what people preferred. Both rewards are negative here, and
# the chosen one is the higher: for the loss this pair is right.
#
# ### The policy as a judge
#
# The implicit reward can be asked about any text. **Change the sentences** and run the cell again.

# %%
prompt = "This phone"
sentences = [
    " is excellent.",
    " is not excellent.",
    " is not terrible at all.",
    " weighs half a kilo.",
    " is terrible.",
    " is terrible at first, but is excellent in the end.",
    " excellent excellent excellent excellent excellent.",
]
with lab.todo("sequence_logprobs", "train_dpo"), torch.no_grad():
    if dpo_lm is None:
        raise lab.LabError("train the policy first")
    batch = laid_out([(prompt, sentence) for sentence in sentences])
    before, now = (dpo.sequence_logprobs(model, *batch) for model in (lm, dpo_lm))
    implicit_reward, judged = BETA * (now - before), judge([prompt + sentence for sentence in sentences])
    rows = []
    for i, sentence in enumerate(sentences):
        row = {"text": prompt + sentence, "implicit reward": implicit_reward[i].item(), "judge": judged[i]}
        rows.append(row | {"log-probability, SFT": before[i].item(), "log-probability, now": now[i].item()})
    lab.table(rows)

# %% [markdown]
# **What you should see.** The implicit reward has an opinion about each text, and mostly that of the judge:
# praise above 0, blame below it. But look at the last sentence: it has the highest reward of all. The policy
# does *not* write it. Under SFT it is next to impossible (about -80 nats), and 6 nats more do not change
# that. A hole in a reward is dangerous when somebody searches for it, and DPO does not search.
#
# ## What it writes now
#
# Fresh responses to held-out prompts, with the same seed before and after.

# %%
with lab.todo("train_dpo"):
    if dpo_lm is None:
        raise lab.LabError("train the policy first")
    prompts = list(data.prompts_heldout["prompt"])[::14]
    before, after = (lab.sample(model, tokenizer, prompts, 24, seed=0) for model in (lm, dpo_lm))
    judged_before, judged_after = judge(before.texts), judge(after.texts)
    rows = []
    for i, text in enumerate(prompts):
        row = {"prompt": text, "SFT": before.responses[i], "judge": judged_before[i]}
        rows.append(row | {"DPO": after.responses[i], "judge ": judged_after[i]})
    lab.table(rows)

# %% [markdown]
# **What you should see.** More praise, and some facts are left as they were. And a few sentences are broken: a
# Chinese word in an English sentence, a verb too many, a clause that goes nowhere. SFT wrote hardly any of
# those. They stand in no pair, so nothing has pushed them down, and some of the probability that the pairs
# have lost is theirs now.
#
# ## Beside PPO
#
# The same start, the same held-out prompts, the same judge, who took no part in any training. Your policy is
# measured now; the other rows were recorded by the course with its own code, PPO with the settings of
# notebook 04.
#
# **Before you run the next cell:** which of the two holds more models, and which needs more memory? Which
# gets further with the judge?

# %%
with lab.todo("train_dpo"):
    if dpo_lm is None:
        raise lab.LabError("train the policy first")
    sft, own = lab.measure(lm, lm, tokenizer), lab.measure(dpo_lm, lm, tokenizer)
    row = {
        "method": "DPO, yours, just now",
        "judge": f"{sft['judge']:.2f} -> {own['judge']:.2f}",
        "KL to the reference": f"{own['kl_to_ref']:.1f} nats",
        "distinct-2": f"{own['distinct_2'] / sft['distinct_2']:.2f} x",
        "seconds": f"{seconds:.0f}",
        "memory": "not measured here",
        "models held": "policy, reference",
    }
    recorded = [other for other in lab.recorded_methods() if other["method"].startswith(("PPO", "DPO"))]
    lab.table([row, *recorded])
    print(f"responses that end by themselves: SFT {sft['eos_share']:.0%}, yours {own['eos_share']:.0%}")

# %% [markdown]
# **What you should see.** At about the same distance from SFT (4 to 5 nats), PPO gets from 0.56 to 0.94 with
# the judge and DPO to about 0.75. PPO writes, is scored for what *it* writes, and finds out what works. DPO
# reads pairs that somebody else wrote, and never sees a text of its own. DPO keeps more variety
# (distinct-2), and it is much simpler: two models, no critic, no sampling, no reward model to train first,
# one loss.
#
# The seconds depend on the machine and on what else it does; yours include the looks at held-out pairs. DPO
# holds fewer models and still needs more memory *here*: the 64 texts of a batch go through the policy with a
# gradient, with 2,304 logits at each of their places, and these are larger than a model of a million
# parameters. Where the models are large, it is the number of models that counts.
#
# **Question.** A team has 5,000 pairs, an SFT model, and two weeks. Which of the two would you advise them to
# try first, and why? And what would have to be true for the other one to be worth its trouble? (2 points,
# graded by a person)

# %% [markdown] answer="dpo_or_ppo" points=2
# DPO first: it needs nothing but what they have. Two models instead of three or four, no sampling during
# training, no critic, and few things to tune (beta, learning rate, number of epochs). PPO is worth its
# trouble when there is a reward that can be trusted further than the pairs reach: a good reward model, or a
# rule or a test that checks an answer. It learns from its own samples, so it finds responses that are in no
# pair, and it is told when its own texts break. DPO is tied to texts that somebody else wrote: the further
# the policy moves away from them, the less the pairs say about what it really does. And PPO can go on as long
# as the reward holds, while DPO has used up its pairs after an epoch or two.

# %% [markdown]
# ## What beta does
#
# Two short runs, 16 steps each, from the same start on the same pairs, with a small and with a large $\beta$.
#
# **Before you run the next cell:** which of them goes further from the reference? Which has the larger
# margin?

# %%
with lab.todo("sequence_logprobs", "dpo_loss", "train_dpo"):
    first = list(lab.shuffled(dpo.PreferenceDataset(data.pairs_train, tokenizer, max_len=32), 32, seed=0))[:16]
    rows = []
    for beta in (0.05, 2.0):
        policy = copy.deepcopy(lm).requires_grad_(True)
        dpo.train_dpo(policy, lm, first, n_epochs=1, lr=3e-4, beta=beta)
        chosen, rejected = logprobs_of(policy, some)
        _, chosen_reward, rejected_reward = dpo.dpo_loss(chosen, rejected, *ref_some, beta)
        found = lab.measure(policy, lm, tokenizer)
        rows.append(
            {
                "beta": beta,
                "accuracy": (chosen_reward > rejected_reward).float().mean().item(),
                "margin": (chosen_reward - rejected_reward).mean().item(),
                "moved apart (nats)": ((chosen_reward - rejected_reward) / beta).mean().item(),
                "KL to the reference": found["kl_to_ref"],
                "judge": found["judge"],
                "end with EOS": f"{found['eos_share']:.0%}",
            }
        )
    lab.table(rows)

# %% [markdown]
# **What you should see.** The small beta moves the two responses of a pair further apart in nats, and goes
# about three times as far from the reference as the large one. Its *margin* is much smaller all the same: a
# margin is in units of beta. So never compare margins or losses of runs with different betas. With the large
# beta a pair is settled early and the policy stays close. After so few steps it even has more pairs in the
# right order; what it has less of is change, and the judge sees less of it.
#
# **More is not better.** We let the run above go on for a second epoch, with three seeds. The held-out
# accuracy rose from 0.88 to 0.93, and the margin from 1.3 to about 3. By these two numbers that is the better
# policy. But the KL to the reference went from about 6 to more than 20 nats, and in place of 99 % only a
# fifth to a third of the responses ended with EOS. Both texts of a pair end in EOS, and pushing one of them
# down again and again pushes its EOS down too. Nothing in the loss asks for a text to end.
#
# **Question.** In a colleague's run the loss is 0.6931 in *every* step, and the accuracy is exactly 0. What
# do the two numbers together tell you? Name three mistakes that could each cause this. (2 points, graded by a
# person)

# %% [markdown] answer="ln_2_for_ever" points=2
# All differences of implicit rewards are exactly 0: ties, which do not count as correct. (A policy that moves
# but learns nothing useful would have an accuracy around one half, and a loss that trembles.) So either
# policy and reference say exactly the same in every step, or the two texts of each pair do. Possible causes:
# the reference is the policy itself, the same object without a copy, and moves along; the reference's numbers
# are asked of the policy by a slip; the policy never moves, because a step is missing or the optimiser holds
# the weights of another model; chosen and rejected are read from the same columns of the batch.

# %% [markdown]
# ## Where you stand

# %%
lab.status()

# %% [markdown]
# You have trained a writer on comparisons, without a reward model. [06 GRPO](06_grpo.ipynb) goes the other
# way: it keeps the reward and the sampling, and does without the critic.
#
# {navigation}
