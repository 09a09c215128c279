"""What holds in every correct PPO run, watched while the student's own functions train.

    with watch_invariants(ppo, policy, ref_policy, reward_fn, tokenizer, kl_coef=0.05, max_new_tokens=24) as watch:
        ppo.train_ppo(..., on_step=watch.on_step)

The watch looks at what `train_ppo` hands to `ppo_losses` and what `shape_token_rewards` returns, through recorders that
stand around these two functions inside the `with` alone. It changes nothing: no random number is drawn, no mode is
changed, and whatever the student's code hands over, the run goes on.
"""

import functools
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .course import find
from .student_code import describe
from .thresholds import ALONE_ERROR, RATIO_ERROR

# names of the positional arguments, as the contracts in `ppo.py` have them
ARGUMENTS = {
    "shape_token_rewards": ("rm_score", "old_logprobs", "ref_logprobs", "response_mask", "kl_coef"),
    "ppo_losses": (
        "new_logprobs", "old_logprobs", "advantages", "new_values", "old_values", "returns", "mask",
    ),
    "ppo_step": ("policy", "optim", "rollout"),
}  # fmt: skip

EPOCHS_ALIKE = 1e-6  # how far a target may move between two epochs of a step
REWARD_ERROR = 1e-3  # of a reward, or of a sum of them
MEAN_ERROR, VARIANCE_ERROR = 0.01, 0.1  # of whitened advantages: sample and population variance both pass


class _Broken(Exception):
    """Raised by a check: how far the run is from the invariant."""


@dataclass(frozen=True)
class Invariant:
    """What has to hold.

    Attributes:
        holds: the invariant in words.
        look_at: the exercise to look at first, and `ask`, what to ask there.
        unseen: why it was not checked, when it was not.
    """

    holds: str
    look_at: str
    ask: str
    unseen: str


INVARIANTS = {
    "first ratio": Invariant(
        "the ratio is 1 before the first update of a step",
        "ppo_step",
        "are old and new log-probabilities computed in the same way, with dropout off?",
        "ppo_losses was not called",
    ),
    "fixed targets": Invariant(
        "old log-probabilities, advantages, old values and returns stay the same in all epochs of a step",
        "ppo_step",
        "is one of them computed again inside the loop?",
        "ppo_losses was not called more than once in a step with the whole batch",
    ),
    "whitened": Invariant(
        "the advantages have mean 0 and variance 1 on the mask when they reach ppo_losses",
        "ppo_step",
        "are they whitened, and over the mask alone?",
        "ppo_losses was not called with advantages of the whole batch that are not all 0",
    ),
    "reward sum": Invariant(
        "the token rewards of a response add up to score - kl_coef * sum of (logprob - ref_logprob)",
        "shape_token_rewards",
        "where does the score go, which sign has the penalty, and is kl_coef handed on?",
        "shape_token_rewards was not called",
    ),
    "last return": Invariant(
        "nothing comes after the last token of a response: its return is its reward",
        "compute_gae",
        "does the value or the advantage of a padded position count, or are the returns made of whitened advantages?",
        "shape_token_rewards and ppo_losses were not both called with the whole batch",
    ),
    "first KL": Invariant(
        "log-probabilities under policy and reference are equal at the first step, before the policy has learned",
        "rollout",
        "are both models asked about the same tokens, with the same masks, and both without dropout?",
        "policy and reference differ when the run begins",
    ),
    "reference": Invariant(
        "ref_logprobs are what the frozen reference says of the response read alone, without padding",
        "rollout",
        "is the reference asked, in eval mode, and is left padding neither attended to nor numbered?",
        "train_ppo did not call on_step",
    ),
    "response end": Invariant(
        "the mask of a response ends at its first EOS, or at the limit of tokens",
        "response_mask",
        "is the first EOS inside the mask, nothing after it, and is max_new_tokens handed on?",
        "train_ppo did not call on_step",
    ),
    "frozen": Invariant(
        "the reference and the reward model are the same after the run as before it",
        "train_ppo",
        "which line writes to them, or trains them?",
        "train_ppo did not call on_step, or ref_policy is no module",
    ),
}


class watch_invariants:
    """Watch a run of `train_ppo`; see the module's text.

    Args:
        module: the module whose `train_ppo` runs.
        kl_coef, max_new_tokens: as `train_ppo` is handed them.
        ratio_error: how far a ratio may be from 1 that should be 1 (see `thresholds.RATIO_ERROR`).
        alone_error: how far a response that is read alone may be, in nats (`thresholds.ALONE_ERROR`).
        step: number of the run's first step.
        say: prints a line.

    Attributes:
        results: after the run, for each of `INVARIANTS` "held", "broken at step ..." or "not seen: ...".
    """

    def __init__(
        self,
        module,
        policy: nn.Module,
        ref_policy: nn.Module,
        reward_fn: Callable[[Tensor, Tensor], Tensor],
        tokenizer,
        kl_coef: float = 0.05,
        max_new_tokens: int = 20,
        ratio_error: float = RATIO_ERROR["float32"],
        alone_error: float = ALONE_ERROR["float32"],
        step: int = 0,
        say: Callable[[str], None] = print,
    ):
        self._module = module
        self._policy, self._ref_policy, self._reward_fn = policy, ref_policy, reward_fn
        self._eos_id = tokenizer.eos_token_id
        self._kl_coef, self._limit = kl_coef, max_new_tokens
        self._ratio_error, self._alone_error = ratio_error, alone_error
        self._first_step = self._step = step
        self._say = say
        self._held: set[str] = set()
        self._problems: dict[str, str] = {}
        self._losses: list[dict] = []  # what ppo_losses was handed in the present step, call by call
        self._rewards: list[
            tuple[Tensor, Tensor]
        ] = []  # the mask that shape_token_rewards was handed, and its result
        self.results: dict[str, str] = {}
        self._when = ""  # set where it is not a step

    def __enter__(self) -> Self:
        self._before = self._fingerprints()
        language_models = (getattr(model, "lm", None) for model in (self._policy, self._ref_policy))
        self._starts_as_reference = len({_fingerprint(model) for model in language_models}) == 1
        self._recorders = observed(
            self._module, ppo_losses=self._record_losses, shape_token_rewards=self._record_rewards
        )
        self._recorders.__enter__()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._recorders.__exit__(kind, error, trace)
        self._when = "after the run"
        self._look("frozen", self._frozen)
        for name, invariant in INVARIANTS.items():
            held = "held" if name in self._held else f"not seen: {invariant.unseen}"
            self.results[name] = self._problems.get(name, held)
        if error is None:
            self._say(self._summary())

    def on_step(self, info: dict, batch) -> None:
        """Look at the step that was just taken. Hand it to `train_ppo`, or call it from your own `on_step`."""
        self._look("first ratio", self._first_ratio, batch)
        self._look("fixed targets", self._fixed_targets, batch)
        self._look("whitened", self._whitened, batch)
        self._look("reward sum", self._reward_sum, batch)
        self._look("last return", self._last_return, batch)
        self._look("first KL", self._first_kl, batch)
        self._look("reference", self._reference, batch)
        self._look("response end", self._response_end, batch)
        self._losses, self._rewards = [], []
        self._step += 1

    def _record_losses(self, arguments: dict, result) -> None:
        self._losses.append({name: _copy(value) for name, value in arguments.items()})

    def _record_rewards(self, arguments: dict, result) -> None:
        self._rewards.append((_copy(arguments.get("response_mask")), _copy(result)))

    def _look(self, name: str, check: Callable[..., bool], *arguments) -> None:
        """Run a check until the invariant is broken; what is wrong is said once.

        A check returns whether it saw enough to say that the invariant holds.
        """
        if name in self._problems:
            return
        invariant = INVARIANTS[name]
        try:
            with torch.no_grad():
                if check(*arguments):
                    self._held.add(name)
        except _Broken as broken:
            self._problems[name] = f"broken {self._when or f'at step {self._step}'}"
            self._say(
                f"invariant {self._problems[name]}: {invariant.holds}; {broken}. "
                f"Look at {invariant.look_at} (exercise {find(invariant.look_at).number}): {invariant.ask}"
            )
        except Exception as error:  # what the student's code hands over may be anything
            self._problems[name] = f"not seen: {describe(error)}"
            self._say(
                f"invariant not checked from step {self._step} on: {invariant.holds}; {describe(error)}"
            )

    def _summary(self) -> str:
        held = sum(result == "held" for result in self.results.values())
        others = "".join(f"; {name}: {result}" for name, result in self.results.items() if result != "held")
        return (
            f"{held} of {len(INVARIANTS)} invariants held over {self._step - self._first_step} steps{others}"
        )

    # --- the checks -------------------------------------------------------------------------------

    def _first_ratio(self, batch) -> bool:
        if not self._losses:
            return False
        first = self._losses[0]
        log_ratio = (first["new_logprobs"] - first["old_logprobs"])[first["mask"].bool()]
        furthest = (log_ratio.exp() - 1).abs().max().item()
        if not furthest <= self._ratio_error:
            raise _Broken(f"it is up to {furthest:.2g} away from 1")
        return True

    def _fixed_targets(self, batch) -> bool:
        calls = self._whole_batch(batch)
        for call in calls[1:]:
            for name in ("old_logprobs", "advantages", "old_values", "returns"):
                moved = (call[name] - calls[0][name])[batch.response_mask.bool()].abs().max().item()
                if not moved <= EPOCHS_ALIKE:
                    raise _Broken(f"{name} moved by up to {moved:.2g} between two epochs")
        return len(calls) > 1

    def _whitened(self, batch) -> bool:
        calls = self._whole_batch(batch)
        advantages = calls[0]["advantages"][batch.response_mask.bool()] if calls else torch.zeros(1)
        if not advantages.any():
            return False
        mean, variance = advantages.mean().item(), advantages.var(correction=0).item()
        if not (abs(mean) <= MEAN_ERROR and abs(variance - 1) <= VARIANCE_ERROR):
            raise _Broken(f"the mean is {mean:.2g} and the variance {variance:.2g}")
        return True

    def _reward_sum(self, batch) -> bool:
        log_ratio = _masked_sum(batch.old_logprobs - batch.ref_logprobs, batch.response_mask)
        expected = batch.rm_score - self._kl_coef * log_ratio
        for mask, token_rewards in self._rewards:
            total = _masked_sum(token_rewards, mask)
            row = (total - expected).abs().argmax().item()
            if not torch.isclose(total[row], expected[row], rtol=REWARD_ERROR, atol=REWARD_ERROR):
                raise _Broken(
                    f"row {row} adds up to {total[row].item():.3f}, not to {expected[row].item():.3f}"
                )
        return bool(self._rewards)

    def _last_return(self, batch) -> bool:
        mask = batch.response_mask.bool()
        is_last = mask & (mask.flip(-1).cumsum(dim=-1).flip(-1) == 1)
        calls = self._whole_batch(batch)
        token_rewards = [rewards for _, rewards in self._rewards if rewards.shape == mask.shape]
        if not calls or not token_rewards:
            return False
        error = (calls[0]["returns"] - token_rewards[0])[is_last].abs().max().item()
        if not error <= REWARD_ERROR:
            raise _Broken(f"they differ by up to {error:.2g}")
        return True

    def _first_kl(self, batch) -> bool:
        if self._step > self._first_step or not self._starts_as_reference:
            return False
        log_ratio = (batch.old_logprobs - batch.ref_logprobs)[batch.response_mask.bool()]
        furthest = log_ratio.abs().max().item()
        if not furthest <= self._ratio_error:
            raise _Broken(f"they differ by up to {furthest:.2g} nats")
        return True

    def _reference(self, batch) -> bool:
        """The row with the most padding stands for all: this is one short pass through the reference a step."""
        row = batch.full_mask.sum(dim=-1).argmin().item()
        valid = batch.response_mask[row].bool()
        if not valid.any():
            return False
        ids = batch.full_ids[row][batch.full_mask[row].bool()].unsqueeze(0)
        n_response = int(valid.sum())
        with torch.random.fork_rng(
            devices=[ids.device] if ids.is_cuda else []
        ):  # a reference left in training mode
            logits = self._ref_policy.lm(input_ids=ids).logits[0, -n_response - 1 : -1]
        alone = logits.float().log_softmax(dim=-1).gather(-1, ids[0, -n_response:, None]).squeeze(-1)
        furthest = (alone - batch.ref_logprobs[row][valid]).abs().max().item()
        if not furthest <= self._alone_error:
            raise _Broken(f"in row {row} they differ by up to {furthest:.2g} nats")
        return True

    def _response_end(self, batch) -> bool:
        mask = batch.response_mask.bool()
        ids = batch.full_ids[:, -mask.shape[1] :]
        lengths = mask.sum(dim=-1)
        first_ones = torch.arange(mask.shape[1], device=mask.device) < lengths.unsqueeze(-1)
        is_eos = (ids == self._eos_id) & mask
        ends_in_eos = is_eos.gather(-1, (lengths - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
        right = (mask == first_ones).all(dim=-1) & (lengths > 0) & (is_eos.sum(dim=-1) == ends_in_eos.long())
        right &= ends_in_eos | (lengths == self._limit)
        if not right.all():
            row = right.long().argmin().item()
            raise _Broken(
                f"{int((~right).sum())} of {len(right)} rows do not; row {row} has {int(lengths[row])} tokens, "
                f"{int(is_eos[row].sum())} of them EOS, and the limit is {self._limit}"
            )
        return True

    def _frozen(self) -> bool:
        changed = [
            name for name, fingerprint in self._fingerprints().items() if fingerprint != self._before[name]
        ]
        if changed:
            raise _Broken(f"{' and '.join(changed)} changed")
        return self._step > self._first_step and self._before["the reference"] is not None

    def _whole_batch(self, batch) -> list[dict]:
        """The calls of ppo_losses in this step that saw the whole batch, and not a part of it."""
        return [call for call in self._losses if call["mask"].shape == batch.response_mask.shape]

    def _fingerprints(self) -> dict[str, int | None]:
        return {
            "the reference": _fingerprint(self._ref_policy),
            "the reward model": _fingerprint(_model_of(self._reward_fn)),
        }


def _masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    return x.where(mask.bool(), 0.0).sum(dim=-1)


def _copy(value):
    """A tensor as it is now, without its graph; anything else as it is."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _model_of(reward_fn) -> nn.Module | None:
    """The model inside a reward function, where it has one."""
    while reward_fn is not None and not isinstance(reward_fn, nn.Module):
        reward_fn = getattr(reward_fn, "reward_fn", None) or getattr(reward_fn, "model", None)
    return reward_fn


def _fingerprint(model) -> int | None:
    """A checksum of all weights; None of what is no model."""
    if not isinstance(model, nn.Module):
        return None
    checksum = 0
    for weight in model.state_dict().values():
        checksum = zlib.crc32(
            weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), checksum
        )
    return checksum


@contextmanager
def observed(module, **observers: Callable[[dict, object], None]) -> Iterator[None]:
    """Call `observer(arguments, result)` after each call of a function of `module`, inside this `with` alone.

    Args:
        observers: by the function's name, one of `ARGUMENTS`; a function that the module lacks is never called.
    """
    originals = {name: getattr(module, name) for name in observers if hasattr(module, name)}
    for name, original in originals.items():
        setattr(module, name, _with_observer(original, ARGUMENTS[name], observers[name]))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(module, name, original)


def _with_observer(
    function: Callable, names: tuple[str, ...], observer: Callable[[dict, object], None]
) -> Callable:
    @functools.wraps(function)
    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        observer({**dict(zip(names, args)), **kwargs}, result)
        return result

    return call
