"""RLHF in a nutshell, with the taught code: SFT, PPO and DPO on a language model that writes letters (stage 7).

The model learns to spell short words with many double letters, which `rule_reward` does not like. PPO and DPO then
raise the reward. What runs is handed in: a package with `toy` and `dpo`, or a `TaughtCode`.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from .sampling import distinct_2
from .thresholds import TOY_GAIN

WORDS = tuple((Path(__file__).parent / "data" / "words.txt").read_text(encoding="ascii").split())
MAX_LEN = 20  # at which a response is cut
N_LOOKED_AT = 512  # their mean reward is known to about +-0.05

OnStep = Callable[[list[dict[str, float]]], None]  # is handed the history so far


def prompts(code, n: int) -> Tensor:
    """BOS and the first letter of a word drawn at random, `[n, 2]`: letters come as often as in the words."""
    drawn = torch.randint(len(WORDS), (n,)).tolist()
    return torch.tensor([[code.toy.BOS, *code.toy.encode(WORDS[i][0])] for i in drawn])


def pretrain(code, seed: int = 0, epochs: int = 30, batch_size: int = 32, lr: float = 3e-3) -> nn.Module:
    """SFT: a new language model that has learnt to spell the words, from the loss of next letters and EOS."""
    torch.manual_seed(seed)
    toy = code.toy
    model = toy.ToyLanguageModel()
    optim = torch.optim.Adam(model.parameters(), lr=lr)
    width = max(map(len, WORDS))
    ids = torch.tensor(
        [[toy.BOS, *toy.encode(word), toy.EOS] + [toy.PAD] * (width - len(word)) for word in WORDS]
    )
    real = torch.arange(width + 1) <= torch.tensor([[len(word)] for word in WORDS])
    for _ in range(epochs):
        for rows in torch.randperm(len(WORDS)).split(batch_size):
            loss = -model.get_log_probs(ids[rows])[real[rows]].mean()
            optim.zero_grad()
            loss.backward()
            optim.step()
    return model


def train_ppo(
    code,
    sft: nn.Module,
    seed: int = 0,
    steps: int = 100,
    batch_size: int = 32,
    kl_coef: float = 0.05,
    on_step: OnStep | None = None,
) -> nn.Module:
    """A copy of the SFT model after `steps` PPO steps, with a critic of its own."""
    torch.manual_seed(seed)
    policy, ref_policy = _policy_and_reference(sft)
    critic = code.toy.ValueNetwork()
    policy_optim = torch.optim.Adam(policy.parameters(), lr=1e-3)
    value_optim = torch.optim.Adam(critic.parameters(), lr=3e-3)
    history: list[dict[str, float]] = []
    for _ in range(steps):
        episodes = code.toy.sample_episodes(policy, ref_policy, prompts(code, batch_size), MAX_LEN)
        info = code.toy.toy_ppo_step(policy, critic, policy_optim, value_optim, episodes, kl_coef=kl_coef)
        history.append(info)
        if on_step is not None:
            on_step(history)
    return policy


def train_dpo(
    code,
    sft: nn.Module,
    seed: int = 0,
    steps: int = 100,
    batch_size: int = 16,
    beta: float = 0.1,
    on_step: OnStep | None = None,
) -> nn.Module:
    """A copy of the SFT model after `steps` DPO steps, each on the best and worst of four samples of the policy."""
    torch.manual_seed(seed)
    toy = code.toy
    policy, ref_policy = _policy_and_reference(sft)
    optim = torch.optim.Adam(policy.parameters(), lr=1e-3)
    history: list[dict[str, float]] = []
    for _ in range(steps):
        prompt_ids = prompts(code, batch_size)
        pair = toy.preference_pair(policy, prompt_ids, max_len=MAX_LEN)
        n_prompt = prompt_ids.shape[1]
        with torch.no_grad():
            reference = [toy.response_log_prob(ref_policy, ids, n_prompt) for ids in pair]
        own = [toy.response_log_prob(policy, ids, n_prompt) for ids in pair]
        loss, chosen_reward, rejected_reward = code.dpo.dpo_loss(*own, *reference, beta)
        optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optim.step()
        chosen, rejected = (_mean_reward(code, ids, n_prompt) for ids in pair)
        margin = (chosen_reward - rejected_reward).mean().item()
        history.append({"loss": loss.item(), "margin": margin, "chosen": chosen, "rejected": rejected})
        if on_step is not None:
            on_step(history)
    return policy


def _policy_and_reference(sft: nn.Module) -> tuple[nn.Module, nn.Module]:
    return copy.deepcopy(sft), copy.deepcopy(sft).requires_grad_(False)


def _mean_reward(code, ids: Tensor, n_prompt: int) -> float:
    texts = [code.toy.decode(row) for row in ids[:, n_prompt:].tolist()]
    return sum(map(code.toy.rule_reward, texts)) / len(texts)


@dataclass(frozen=True)
class Look:
    """Fresh samples of a policy, the same prompts each time.

    Attributes:
        reward: their mean `rule_reward`.
        kl_to_ref: KL to the SFT model, in nats a response.
        distinct_2: share of different pairs of neighbours among all in the responses; it falls when they become alike.
        texts: prompt and response, together.
    """

    reward: float
    kl_to_ref: float
    distinct_2: float
    texts: list[str]


def look_at(code, policy: nn.Module, sft: nn.Module) -> Look:
    """Sample a policy; torch's random generator is as before afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        prompt_ids = prompts(code, N_LOOKED_AT)
        episodes = code.toy.sample_episodes(policy, sft, prompt_ids, MAX_LEN)
    letters = [code.toy.decode(row) for row in prompt_ids.tolist()]
    responses = [code.toy.decode(row) for row in episodes.ids[:, episodes.n_prompt :].tolist()]
    log_ratio = (episodes.old_logprobs - episodes.ref_logprobs).where(episodes.mask.bool(), 0.0)
    texts = [letter + response for letter, response in zip(letters, responses, strict=True)]
    return Look(
        reward=episodes.scores.mean().item(),
        kl_to_ref=log_ratio.sum(dim=-1).mean().item(),
        distinct_2=distinct_2(responses),
        texts=texts,
    )


def all_responses(n_tokens: int, max_len: int, eos: int, pad: int) -> Tensor:
    """Every response of a small vocabulary, `[n, max_len]`: up to an EOS, or `max_len` tokens without one."""
    finished, unfinished = [], [[]]
    for length in range(1, max_len + 1):
        longer = [[*ids, token] for ids in unfinished for token in range(n_tokens)]
        finished += [ids + [pad] * (max_len - length) for ids in longer if ids[-1] == eos]
        unfinished = [ids for ids in longer if ids[-1] != eos]
    return torch.tensor(finished + unfinished)


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of the table: a method, and the samples before and after it."""

    method: str
    before: Look
    after: Look
    seconds: float
    judged: bool = True

    @property
    def gain(self) -> float:
        return self.after.reward - self.before.reward

    @property
    def verdict(self) -> str:
        if not self.judged:
            return ""
        return "pass" if self.gain >= TOY_GAIN else "FAIL"


def run_toy(code, seed: int) -> list[Row]:
    """SFT, and from there PPO, DPO, and PPO that pays nothing for the KL: what reward hacking looks like."""
    sft = pretrain(code, seed)
    before = look_at(code, sft, sft)
    runs = {
        "PPO": lambda: train_ppo(code, sft, seed),
        "DPO": lambda: train_dpo(code, sft, seed),
        "PPO, KL free": lambda: train_ppo(code, sft, seed, kl_coef=0.0),
    }
    rows = []
    for method, train in runs.items():
        start = time.perf_counter()
        policy = train()
        seconds = time.perf_counter() - start
        after = look_at(code, policy, sft)
        rows.append(Row(method, before, after, seconds, judged=method != "PPO, KL free"))
    return rows


HEAD = "  seed  method        reward before  after   gain  KL to SFT  distinct-2  seconds"


def format_row(seed: int, row: Row) -> str:
    """The row as a line below `HEAD`."""
    return (
        f"{seed:6}  {row.method:<12}  {row.before.reward:13.2f}  {row.after.reward:5.2f}  {row.gain:+5.2f}  "
        f"{row.after.kl_to_ref:9.1f}  {row.after.distinct_2:10.3f}  {row.seconds:7.1f}  {row.verdict}"
    ).rstrip()
