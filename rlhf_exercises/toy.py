"""Stage 7, RLHF in a nutshell: the whole pipeline on an LSTM that writes letters, in under a minute.

The state is the text so far, the action is the next letter, the policy is the language model, and the reward is a rule
that anybody can read (`rule_reward`). Actor, critic, reference and reward are four separate things here, as in the
large systems, and everything is small enough to be checked by hand.

An episode is one response to one prompt: `ids = [BOS, prompt | response .. EOS | PAD ..]`. All prompts of a batch have
the same length, so there is no padding in front. Per-token tensors are `[batch, response]` as in stage 3. What is real
in a response follows from its first EOS (`response_mask`), never from `ids != PAD`: the model may draw any token, `PAD`
too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributions import Categorical

from .ppo import response_mask, shape_token_rewards

PAD, BOS, EOS, UNK = range(4)
LETTERS = "abcdefghijklmnopqrstuvwxyz"  # ids 4 to 29
VOWELS = frozenset("aeiou")


def encode(text: str) -> list[int]:
    """Ids of a text, without BOS and EOS (given); what is no lower-case letter is `UNK`."""
    return [LETTERS.find(letter) + 4 if letter in LETTERS else UNK for letter in text]


def decode(ids: Sequence[int]) -> str:
    """The letters among the ids of a response, up to its first EOS (given); other tokens leave no trace."""
    ids = list(ids)
    ids = ids[: ids.index(EOS)] if EOS in ids else ids
    return "".join(LETTERS[i - 4] for i in ids if i > UNK)


class ToyLanguageModel(nn.Module):
    """Embedding, LSTM, linear head: the next token from all before it (exercise 7.1).

    There is no dropout: the same ids have the same log-probabilities, in training mode too.

    Attributes:
        embedding: a vector of `embed_dim` numbers for each of `vocab_size` tokens.
        lstm: `nn.LSTM` with `num_layers` layers of `hidden_dim`, batch first.
        lm_head: linear with bias, from `hidden_dim` to `vocab_size` logits.
    """

    def __init__(self, vocab_size: int = 30, embed_dim: int = 64, hidden_dim: int = 128, num_layers: int = 2):
        super().__init__()
        raise NotImplementedError(
            "exercise 7.1: write ToyLanguageModel in rlhf_exercises/toy.py (notebooks/07_toy_rlhf.ipynb, section 7.1)"
        )

    def forward(
        self, input_ids: Int[Tensor, "batch seq"], hidden: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Float[Tensor, "batch seq vocab"], tuple[Tensor, Tensor]]:
        """Logits of the next token at each position, and the LSTM's state after the last one (given)."""
        states, hidden = self.lstm(self.embedding(input_ids), hidden)
        return self.lm_head(states), hidden

    def get_log_probs(self, input_ids: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq-1"]:
        """Log-probability, in nats, of each token but the first, given those before it.

        It carries a gradient to all weights, is finite for logits of any size, and tells no token from another: EOS and
        `PAD` are scored like all others. Who uses it applies the mask.
        """
        raise NotImplementedError(
            "exercise 7.1: write ToyLanguageModel.get_log_probs in rlhf_exercises/toy.py (notebooks/07_toy_rlhf.ipynb, section 7.1)"
        )

    @torch.no_grad()
    def generate(
        self, prompt_ids: Int[Tensor, "batch prompt"], max_len: int, temperature: float = 1.0
    ) -> tuple[Int[Tensor, "batch seq"], Float[Tensor, "batch max_len"]]:
        """Sample a response of at most `max_len` tokens behind each prompt, each row for itself.

        The whole prompt is read before the first token is drawn, and what the LSTM has read so far counts for every
        later one. The logits are divided by `temperature` before the softmax, and the log-probabilities are those of
        the distribution that the token was drawn from. No token is forbidden: a `PAD` that is drawn is a token like any
        other. A row ends with the first EOS that is drawn, which keeps its log-probability; an EOS in the prompt ends
        nothing. Behind the end stand `PAD` and log-probability 0. Prompts and model stay as they are, its mode too.

        Returns:
            Prompt and response `[batch, prompt + max_len]`, and the log-probability of each response token
            `[batch, max_len]`, without gradient. Both may be narrower when all rows have ended before.
        """
        raise NotImplementedError(
            "exercise 7.1: write ToyLanguageModel.generate in rlhf_exercises/toy.py (notebooks/07_toy_rlhf.ipynb, section 7.1)"
        )


def rule_reward(text: str) -> float:
    """What a response is worth, the sum of five rules (exercise 7.2); between about -3 and 8.

    `text` is what `decode` returns: lower-case letters, perhaps none. With `l` of them:

    1. length: `2 exp(-(l - 15)^2 / 50)`, best at 15;
    2. diversity: 3 times the share of different letters among all (0 without letters);
    3. rhythm: 3 times the share of neighbours of which one is a vowel (a, e, i, o, u) and one is not
       (0 with fewer than two letters);
    4. too short: minus `max(0, 3 - l)`;
    5. repetition: minus 0.5 for each letter that equals the one before it, minus 2 at most.
    """
    raise NotImplementedError(
        "exercise 7.2: write rule_reward in rlhf_exercises/toy.py (notebooks/07_toy_rlhf.ipynb, section 7.2)"
    )


class ValueNetwork(nn.Module):
    """A critic of its own: from a state to the score that it expects (exercise 7.3).

    Three linear layers with bias, `embed_dim` to `hidden_dim` to `hidden_dim` to 1, and a ReLU after the first and the
    second. The value is the plain number that the third one puts out.
    """

    def __init__(self, embed_dim: int = 64, hidden_dim: int = 64):
        super().__init__()
        raise NotImplementedError(
            "exercise 7.3: write ValueNetwork in rlhf_exercises/toy.py (notebooks/07_toy_rlhf.ipynb, section 7.3)"
        )

    def forward(self, states: Float[Tensor, "*batch embed"]) -> Float[Tensor, "*batch"]:
        """Value of each state; the shape is that of the states without their last dimension."""
        raise NotImplementedError(
            "exercise 7.3: write ValueNetwork.forward in rlhf_exercises/toy.py (notebooks/07_toy_rlhf.ipynb, section 7.3)"
        )


@torch.no_grad()
def states_before(
    policy: ToyLanguageModel, ids: Int[Tensor, "batch seq"], n_prompt: int
) -> Float[Tensor, "batch response embed"]:
    """What the critic sees before each response token (given): the embeddings of all tokens so far, added up.

    The critic reads the policy's embeddings and does not train them. The embedding of the last token alone would not
    tell how long the text is, or which letters it has used.
    """
    return policy.embedding(ids).cumsum(dim=1)[:, n_prompt - 1 : -1] / ids.shape[1]


@torch.no_grad()
def gae_with_dones(
    rewards: Float[Tensor, "time"],
    values: Float[Tensor, "time"],
    next_value: float,
    dones: Float[Tensor, "time"],
    gamma: float = 1.0,
    lam: float = 0.95,
) -> Float[Tensor, "time"]:
    """Generalised advantage estimation over episodes laid end to end (exercise 7.4).

    Schulman et al. 2016, eq. 16, as in exercise 3.3. `dones[t]` is 1 where an episode ends with step `t`, else 0:
    neither the value nor the advantage of the next step, which belongs to another episode, reaches back over an end.
    The reward of step `t` itself counts. `next_value` is the value of the state after the last step; it counts when
    that step is not done, because the last episode then goes on. The arguments stay as they are.

    Returns:
        The advantage of each step, without gradient.
    """
    raise NotImplementedError(
        "exercise 7.4: write gae_with_dones in rlhf_exercises/toy.py (notebooks/07_toy_rlhf.ipynb, section 7.4)"
    )


@dataclass
class Episodes:
    """Sampled responses, and what stays fixed about them during the update.

    Attributes:
        ids: `[batch, prompt + response]`.
        n_prompt: width of the prompt block.
        mask: 1 up to and including the first EOS of the response, `[batch, response]`.
        old_logprobs, ref_logprobs: log-probability of each response token under the policy that sampled it and under
            the reference, `[batch, response]`.
        scores: `rule_reward` of each response, `[batch]`.
    """

    ids: Int[Tensor, "batch seq"]
    n_prompt: int
    mask: Int[Tensor, "batch response"]
    old_logprobs: Float[Tensor, "batch response"]
    ref_logprobs: Float[Tensor, "batch response"]
    scores: Float[Tensor, "batch"]


@torch.no_grad()
def sample_episodes(
    policy: ToyLanguageModel,
    ref_policy: ToyLanguageModel,
    prompt_ids: Int[Tensor, "batch prompt"],
    max_len: int = 20,
) -> Episodes:
    """One response to each prompt, scored (given)."""
    n_prompt = prompt_ids.shape[1]
    ids, old_logprobs = policy.generate(prompt_ids, max_len)
    return Episodes(
        ids=ids,
        n_prompt=n_prompt,
        mask=response_mask(ids[:, n_prompt:], EOS),
        old_logprobs=old_logprobs,
        ref_logprobs=ref_policy.get_log_probs(ids)[:, n_prompt - 1 :],
        scores=torch.tensor([rule_reward(decode(row)) for row in ids[:, n_prompt:].tolist()]),
    )


def toy_ppo_step(
    policy: ToyLanguageModel,
    value_network: ValueNetwork,
    policy_optim: torch.optim.Optimizer,
    value_optim: torch.optim.Optimizer,
    episodes: Episodes,
    n_epochs: int = 4,
    clip_range: float = 0.2,
    kl_coef: float = 0.1,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> dict[str, float]:
    """One PPO update of policy and critic on a batch of episodes (exercise 7.5).

    Once, before the first epoch:

    1. Token rewards as in exercise 3.3: the KL penalty at each token, the score at the last one.
    2. The critic's values of `states_before`; advantages with `gae_with_dones` over the response tokens of all
       episodes, laid end to end, each done at its last token. Returns are these advantages plus the values.
    3. The advantages are whitened: mean 0 and deviation 1 over all response tokens of the batch. Within one episode it
       would erase how good the episode was.

    Then `n_epochs` times, with the same states, advantages and returns:

    4. The clipped policy loss of exercise 3.4, one step of `policy_optim`; the norm of the policy's gradient is clipped
       to 1.0.
    5. The squared error of the critic to the returns, one step of `value_optim`; its gradient is not clipped, and it
       does not reach the policy.

    Losses are means over all response tokens of the batch; what stands in the padding has no say. The episodes stay as
    they are.

    Returns:
        Floats: `policy_loss`, `value_loss` and `approx_kl` of the last epoch, before its steps; `mean_score`, the mean
        of the scores; `kl_to_ref` in nats, the mean over episodes of the summed `old_logprobs - ref_logprobs`.
        `approx_kl` is the token mean of `(ratio - 1) - log_ratio`.
    """
    raise NotImplementedError(
        "exercise 7.5: write toy_ppo_step in rlhf_exercises/toy.py (notebooks/07_toy_rlhf.ipynb, section 7.5)"
    )


@torch.no_grad()
def preference_pair(
    policy: ToyLanguageModel,
    prompt_ids: Int[Tensor, "batch prompt"],
    n_candidates: int = 4,
    max_len: int = 20,
) -> tuple[Int[Tensor, "batch seq"], Int[Tensor, "batch seq"]]:
    """The best and the worst of `n_candidates` sampled responses to each prompt, by `rule_reward` (exercise 7.6).

    The candidates are samples of the policy itself (temperature 1), at most `max_len` tokens long. The response alone
    is scored, without its prompt. Of equally good ones any may be taken.

    Returns:
        `chosen` and `rejected`, one row for each prompt, in the order of the prompts: prompt and response as `generate`
        returns them.
    """
    raise NotImplementedError(
        "exercise 7.6: write preference_pair in rlhf_exercises/toy.py (notebooks/07_toy_rlhf.ipynb, section 7.6)"
    )


def response_log_prob(
    policy: ToyLanguageModel, ids: Int[Tensor, "batch seq"], n_prompt: int
) -> Float[Tensor, "batch"]:
    """Log-probability of each whole response, in nats, its EOS included (given): what `dpo_loss` is handed."""
    mask = response_mask(ids[:, n_prompt:], EOS)
    return policy.get_log_probs(ids)[:, n_prompt - 1 :].where(mask.bool(), 0.0).sum(dim=-1)
