"""Stage 8, a trainer around stage 3: the query, response, score loop of the library that older tutorials use.

A tutorial of 2023 generates a response to each query, scores it by whatever means, and hands all three to
`PPOTrainer.step`. The library has removed that class (TRL 0.11 was the last release with this form of it); this one has its
names, and everything inside is what stages 3 and 4 have built: reward shaping, GAE, whitening, clipped losses. What a library adds is
written here: mini-batches, gradient accumulation, a price of the KL that adapts, early stopping, logging.

An old program runs once its import lines name this module; what else can stand in its way is in `docs/old-tutorials.md`.
"""

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .ppo import (
    PolicyWithValueHead,
    compute_gae,
    masked_mean,
    masked_whiten,
    ppo_losses,
    response_logprobs_and_values,
    shape_token_rewards,
)


def kl_k1(logprobs: Float[Tensor, "..."], ref_logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The log-ratio, `logprobs - ref_logprobs`: right on average, negative for single tokens (exercise 8.1).

    All three estimators are of KL(policy, reference) in nats, one for each token, where the tokens are samples of the
    policy whose `logprobs` these are (Schulman 2020, "Approximating KL divergence"). They work element by element, in
    the precision of their arguments, and gradient passes through to both of these, which are unchanged.
    """
    raise NotImplementedError(
        "exercise 8.1: write kl_k1 in rlhf_exercises/trainer.py (notebooks/08_trainer.ipynb, section 8.1)"
    )


def kl_k2(logprobs: Float[Tensor, "..."], ref_logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Half the squared log-ratio: never negative, little variance, wrong on average (exercise 8.1)."""
    raise NotImplementedError(
        "exercise 8.1: write kl_k2 in rlhf_exercises/trainer.py (notebooks/08_trainer.ipynb, section 8.1)"
    )


def kl_k3(logprobs: Float[Tensor, "..."], ref_logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """`(r - 1) - log r` with `r` the reference's probability over the policy's (exercise 8.1).

    Right on average, and never negative.
    """
    raise NotImplementedError(
        "exercise 8.1: write kl_k3 in rlhf_exercises/trainer.py (notebooks/08_trainer.ipynb, section 8.1)"
    )


class AdaptiveKLController:
    """A price of the KL that rises while the KL is above its target and falls while it is below (exercise 8.2).

    Ziegler et al. 2019, section 2.2: the error is `current / target - 1`, clipped to [-0.2, 0.2], and the price is
    multiplied by `1 + error * n_steps / horizon`.

    Args:
        init_kl_coef: the price to start with.
        target: the KL to keep, in nats for a whole response.
        horizon: in samples. So many of them at full error, in small steps, change the price by about a fifth.

    Attributes:
        value: the price now.
    """

    def __init__(self, init_kl_coef: float, target: float, horizon: int):
        raise NotImplementedError(
            "exercise 8.2: write AdaptiveKLController in rlhf_exercises/trainer.py (notebooks/08_trainer.ipynb, section 8.2)"
        )

    def update(self, current_kl: float, n_steps: int) -> None:
        """Adapt the price: one step of the rule above.

        Args:
            current_kl: mean over sequences of the KL to the reference, summed over the tokens of each, in nats.
            n_steps: samples that it was measured on: the batch size.
        """
        raise NotImplementedError(
            "exercise 8.2: write AdaptiveKLController.update in rlhf_exercises/trainer.py (notebooks/08_trainer.ipynb, section 8.2)"
        )


@dataclass
class PPOConfig:
    """Settings of `PPOTrainer`, under the names of the old library (given).

    Attributes:
        model_name: kept for the caller; the trainer is handed the model.
        learning_rate: of Adam.
        batch_size: responses in one call of `step`.
        mini_batch_size: responses in one forward and backward pass.
        gradient_accumulation_steps: mini-batches whose gradients are added up before the optimiser moves.
        ppo_epochs: passes over the batch.
        init_kl_coef: price of a nat of KL to the reference, at the start.
        adap_kl_ctrl: whether the price adapts (`AdaptiveKLController`).
        target, horizon: of the controller.
        kl_penalty: only "kl", the log-ratio of each token.
        target_kl: the update of a batch ends when `approx_kl` exceeds this by half; None: never. The old library
            asked for `early_stopping=True` as well, and looked after each mini-batch.
        gamma, lam, cliprange, cliprange_value, vf_coef, max_grad_norm: as in stage 3.
        log_with: "tensorboard", or None.
        log_dir: where TensorBoard's files go; from the folder in which the program runs.
        seed: set when the trainer is made.
    """

    model_name: str | None = None
    learning_rate: float = 1e-5
    batch_size: int = 32
    mini_batch_size: int = 4
    gradient_accumulation_steps: int = 1
    ppo_epochs: int = 4
    init_kl_coef: float = 0.2
    adap_kl_ctrl: bool = True
    target: float = 6.0
    horizon: int = 10_000
    kl_penalty: str = "kl"
    target_kl: float | None = None
    gamma: float = 1.0
    lam: float = 0.95
    cliprange: float = 0.2
    cliprange_value: float = 0.2
    vf_coef: float = 0.1
    max_grad_norm: float = 1.0
    log_with: str | None = None
    log_dir: str = "runs/ppo_trainer"
    seed: int = 0

    def __post_init__(self):
        if self.batch_size % (self.mini_batch_size * self.gradient_accumulation_steps) != 0:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of mini_batch_size {self.mini_batch_size} times "
                f"gradient_accumulation_steps {self.gradient_accumulation_steps}"
            )
        if self.kl_penalty != "kl":
            raise ValueError(f"kl_penalty is {self.kl_penalty!r}, and only 'kl' is taught here")
        if self.log_with not in (None, "tensorboard"):
            raise ValueError(f"log_with is {self.log_with!r}, and only 'tensorboard' or None is possible")


class AutoModelForCausalLMWithValueHead(PolicyWithValueHead):
    """`PolicyWithValueHead` of stage 3 under the old library's name (given)."""

    @classmethod
    def from_pretrained(cls, model_name: str) -> "AutoModelForCausalLMWithValueHead":
        return cls(model_name)

    @property
    def device(self) -> torch.device:
        return self.lm.device

    def generate(self, *args, **kwargs) -> Int[Tensor, "batch seq"]:
        return self.lm.generate(*args, **kwargs)


class PPOTrainer:
    """PPO on queries, responses and scores that the caller brings (exercise 8.3).

    Args:
        config: see `PPOConfig`.
        model: the policy with its value head; it is trained in place.
        ref_model: the frozen reference; by default a copy of `model` as it is now.
        tokenizer: with a pad token.
        optimizer: by default Adam over the model's parameters.

    Attributes:
        kl_ctl: the price of the KL, an `AdaptiveKLController`.
    """

    def __init__(
        self,
        config: PPOConfig,
        model: PolicyWithValueHead,
        ref_model: PolicyWithValueHead | None = None,
        tokenizer=None,
        optimizer: torch.optim.Optimizer | None = None,
    ):
        torch.manual_seed(config.seed)
        self.config = config
        self.model = model.eval()  # no dropout, so that every ratio starts at 1
        self.ref_model = (
            (copy.deepcopy(model) if ref_model is None else ref_model).eval().requires_grad_(False)
        )
        self.tokenizer = tokenizer
        self.optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=config.learning_rate)
        self.kl_ctl = AdaptiveKLController(config.init_kl_coef, config.target, config.horizon)
        self._n_steps = 0
        self._writer = None
        if config.log_with == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(config.log_dir)

    @torch.no_grad()
    def generate(
        self,
        query_tensor: Int[Tensor, "query"] | list[Int[Tensor, "query"]],
        return_prompt: bool = True,
        **generation_kwargs,
    ) -> Int[Tensor, "1 seq"] | list[Int[Tensor, "seq"]]:
        """Let the policy respond to one query, or to each of a list, as it would respond to that query alone.

        Args:
            query_tensor: token ids, all of them real: an EOS in a query is read like any other token.
            return_prompt: whether what is returned starts with the query.
            generation_kwargs: settings of `generate` of the language model, handed on as they are, and nothing is added
                to them but the tokenizer's EOS and pad ids where they are missing. Sampling has to be asked for.

        Returns:
            For one query a row `[1, seq]`; for a list, a list of `[seq]` without padding. A response ends with its EOS,
            which belongs to it, or at the limit.
        """
        raise NotImplementedError(
            "exercise 8.3: write PPOTrainer.generate in rlhf_exercises/trainer.py (notebooks/08_trainer.ipynb, section 8.3)"
        )

    def step(
        self,
        queries: list[Int[Tensor, "query"]],
        responses: list[Int[Tensor, "response"]],
        scores: list[Float[Tensor, ""]],
    ) -> dict[str, float]:
        """One PPO update on a batch that the caller has sampled and scored.

        1. Log-probabilities and values of policy and reference, as they are now, without gradient.
        2. Rewards of the tokens at the price of the KL now, advantages, returns, whitened advantages: once, over the
           whole batch.
        3. `ppo_epochs` passes over the batch in mini-batches of `mini_batch_size`, in a new order each time. The
           optimiser moves after `gradient_accumulation_steps` of them, on the gradient that the token mean over all
           their responses has: each mini-batch weighs as many tokens as it holds. Its norm is limited to
           `max_grad_norm` then, and not before.
        4. Where `target_kl` is set, no further pass once the mean `approx_kl` of one exceeds `1.5 * target_kl`.
        5. The controller sees the KL to the reference, once, where `adap_kl_ctrl` says so: the mean over sequences of the
           sum of `kl_k1` over the tokens, of the policy that sampled.

        Args:
            queries, responses: token ids, all of them real. They may also be rows `[1, tokens]`. Where
                every response starts with its whole query, as `generate` returns it, all are taken without it (`_batch`
                sees to that).
            scores: one number for each response: a tensor of one number, or a float.

        Raises:
            ValueError: when the lists are not `batch_size` long. Nothing has moved then.

        Returns:
            Floats under the old library's names, and they go to TensorBoard: `ppo/kl` and `objective/kl` (the KL of 5.),
            `objective/kl_coef` (the price of 2.), `ppo/mean_scores`; `ppo/loss/policy`, `ppo/loss/value`,
            `ppo/loss/total`, `ppo/policy/approxkl`, `ppo/policy/clipfrac` (means over all mini-batches of the update);
            and what else `_stats` works out.
        """
        raise NotImplementedError(
            "exercise 8.3: write PPOTrainer.step in rlhf_exercises/trainer.py (notebooks/08_trainer.ipynb, section 8.3)"
        )

    def _batch(
        self, queries: list[Tensor], responses: list[Tensor], scores: list[Tensor | float]
    ) -> tuple[
        Int[Tensor, "batch seq"],
        Int[Tensor, "batch seq"],
        Int[Tensor, "batch response"],
        Float[Tensor, "batch"],
    ]:
        """The three lists as tensors, on the policy's device (given).

        Queries are padded on the left and responses on the right, as in stage 3.

        Returns:
            `full_ids`, `full_mask`, the mask of the response block, and the scores.
        """
        for name, given in (("queries", queries), ("responses", responses), ("scores", scores)):
            if len(given) != self.config.batch_size:
                raise ValueError(f"{name}: {len(given)} of them, and batch_size is {self.config.batch_size}")
        device = next(self.model.parameters()).device
        queries = [query.reshape(-1).to(device) for query in queries]
        responses = [response.reshape(-1).to(device) for response in responses]
        if all(  # one alone may begin like its query by chance
            len(response) > len(query) and torch.equal(response[: len(query)], query)
            for query, response in zip(queries, responses, strict=True)
        ):
            responses = [response[len(query) :] for query, response in zip(queries, responses, strict=True)]

        def padded(rows: list[Tensor], fill: int, side: str) -> Tensor:
            return torch.nn.utils.rnn.pad_sequence(
                rows, batch_first=True, padding_value=fill, padding_side=side
            )

        pad_id = self.tokenizer.pad_token_id
        full_ids = torch.cat([padded(queries, pad_id, "left"), padded(responses, pad_id, "right")], dim=1)
        mask = padded([torch.ones_like(response) for response in responses], 0, "right")
        full_mask = torch.cat([padded([torch.ones_like(query) for query in queries], 0, "left"), mask], dim=1)
        score = torch.tensor([float(score) for score in scores], device=device)
        return full_ids, full_mask, mask, score

    def _stats(
        self,
        infos: list[dict[str, float]],
        kl: float,
        kl_coef: float,
        score: Float[Tensor, "batch"],
        full_mask: Int[Tensor, "batch seq"],
        mask: Int[Tensor, "batch response"],
        old_logprobs: Float[Tensor, "batch response"],
        old_values: Float[Tensor, "batch response"],
        returns: Float[Tensor, "batch response"],
    ) -> dict[str, float]:
        """The figures of one step under the old library's names (given).

        Args:
            infos: what `ppo_losses` said of each mini-batch.
            kl: to the reference, nats for a whole response.
            kl_coef: the price that this step's rewards were made with.
        """
        mean = {name: sum(info[name] for info in infos) / len(infos) for name in infos[0]}
        n_response = mask.sum(dim=-1).float()
        mean_return, mean_value = masked_mean(returns, mask), masked_mean(old_values, mask)
        var_return = masked_mean((returns - mean_return) ** 2, mask)
        error = masked_mean((old_values - returns) ** 2, mask)
        return {
            "ppo/kl": kl,
            "objective/kl": kl,
            "objective/kl_coef": kl_coef,
            "objective/entropy": (-old_logprobs).where(mask.bool(), 0.0).sum(dim=-1).mean().item(),
            "ppo/mean_scores": score.mean().item(),
            "ppo/std_scores": score.std(correction=0).item(),
            "ppo/mean_non_score_reward": -kl_coef * kl / n_response.mean().item(),
            "ppo/loss/policy": mean["policy_loss"],
            "ppo/loss/value": mean["value_loss"],
            "ppo/loss/total": mean["policy_loss"] + self.config.vf_coef * mean["value_loss"],
            "ppo/policy/approxkl": mean["approx_kl"],
            "ppo/policy/clipfrac": mean["clipfrac"],
            "ppo/returns/mean": mean_return.item(),
            "ppo/returns/var": var_return.item(),
            "ppo/val/mean": mean_value.item(),
            "ppo/val/var": masked_mean((old_values - mean_value) ** 2, mask).item(),
            "ppo/val/error": error.item(),
            "ppo/val/var_explained": (1 - error / var_return.clamp(min=1e-8)).item(),
            "ppo/learning_rate": self.optimizer.param_groups[0]["lr"],
            "tokens/queries_len_mean": full_mask.sum(dim=-1).float().mean().item() - n_response.mean().item(),
            "tokens/responses_len_mean": n_response.mean().item(),
        }

    def _log(self, stats: dict[str, float]) -> dict[str, float]:
        """Write the figures of one step to TensorBoard, where that is wanted (given)."""
        if self._writer is not None:
            for name, value in stats.items():
                self._writer.add_scalar(name, value, self._n_steps)
            self._writer.flush()
        self._n_steps += 1
        return stats

    def log_stats(self, stats: dict[str, float], *batch) -> None:
        """Nothing: `step` has written its figures. Old programs call this after it (given)."""
