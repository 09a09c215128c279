"""PPO, DPO and GRPO beside each other: from one SFT model, judged on the same prompts by the same judge.

All three start from the shipped SFT checkpoint of `tiny`, or from the SFT model of a run folder (`start.py`). PPO and
GRPO raise the same reward, DPO reads preference pairs. The judge is trained on by none of them. Each training has a
process of its own, so that its memory can be told.
"""

import copy
import itertools
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from .. import out_of_memory, thresholds
from ..backbones import load_causal_lm, quiet_transformers
from ..devices import reads_in_float32
from ..errors import LabError
from ..machine import memory_mib, peak_memory_mib
from ..runs import check_finished, read_json, read_tensors
from ..sampling import Samples, figures_of, sample_heldout, token_logprobs
from ..stages.ppo import optimizer_of, set_rate
from ..student_code import describe
from ..watch import shuffled
from .start import Start, start_of_run, start_shipped

METHODS = ("ppo", "dpo", "grpo")
RECORDED = Path(__file__).parent / "recorded.json"
MODELS = {
    "ppo": "policy with value head, reference, reward model",
    "dpo": "policy, reference",
    "grpo": "policy, reference, reward model",
}
DPO = {"epochs": 1, "beta": 0.3}
GRPO = {"group": 4, "kl_coef": 0.1}


@dataclass(frozen=True)
class Outcome:
    """What one training has led to; shares and the judge's probabilities lie between 0 and 1.

    Attributes:
        judge_before, judge: mean over sampled responses to held-out prompts, of the SFT model and afterwards.
        kl_to_ref: KL(policy, SFT model) in nats for a response, the mean log-ratio of those samples.
        distinct_2: share of different word pairs in the samples, as a multiple of the SFT model's.
        eos_share: of the samples end by themselves.
        approx_kl: the largest of any step, in nats for a token; None for DPO, which has none.
        accuracy, margin: on held-out pairs, by DPO's implicit reward; None for the others.
        data: name of the data, which decides what is asked.
        seconds: of the training alone.
        memory: the most that it needed beside Python and its libraries, in MiB: models, gradients, optimiser, texts;
            None where it was not measured apart.
    """

    method: str
    seed: int
    judge_before: float
    judge: float
    kl_to_ref: float
    distinct_2: float
    eos_share: float
    approx_kl: float | None
    accuracy: float | None
    margin: float | None
    seconds: float
    memory: float | None
    data: str = "toy"

    @property
    def missed(self) -> list[str]:
        """What the course's specification asks for and this outcome does not reach."""
        asked = thresholds.asked_of(self.data)
        wanted = {
            "judge": self.judge > asked.judge_goal(self.judge_before),
            "KL to the reference": self.kl_to_ref < thresholds.KL_TO_REF,
            "distinct-2": self.distinct_2 > asked.distinct_2,
        }
        if self.method == "dpo":
            wanted = {
                "accuracy": self.accuracy > asked.rm_accuracy,
                "margin": self.margin > 0,
                "EOS share": self.eos_share > thresholds.EOS_SHARE,
            }
        else:
            wanted["approx_kl"] = self.approx_kl < thresholds.APPROX_KL
        return [name for name, reached in wanted.items() if not reached]


def compare_methods(
    code: str, methods: Sequence[str], seeds: Sequence[int], run: Path | None = None
) -> list[Outcome]:
    """Train with each method from each seed, one after the other.

    Args:
        code: name of the taught package.
        methods: out of `METHODS`.
        run: a run folder with a finished SFT model and reward, whose own PPO is the one that is looked at; by default
            the shipped checkpoints.

    Raises:
        LabError: when the run folder cannot be started from.
    """
    return [_in_own_process(code, method, seed, run) for method in methods for seed in seeds]


def _in_own_process(code: str, method: str, seed: int, run: Path | None) -> Outcome:
    """`run_method` in a process that ends with its training, whatever has become of this one by then.

    Raises:
        LabError: when the process was ended by somebody else.
    """
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sending, code, method, seed, run), daemon=True)
    process.start()
    sending.close()
    try:
        answer = receiving.recv()
    except EOFError:
        process.join()
        raise LabError(
            f"the training with {method} was ended from outside (exit code {process.exitcode})"
        ) from None
    process.join()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _send(sending: Connection, code: str, method: str, seed: int, run: Path | None) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes, and the one who has asked ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = run_method(code, method, seed, run)
    except (LabError, NotImplementedError) as error:
        answer = error
    except BaseException as error:  # a mistake in the taught code, of a kind that may not go through a pipe
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        answer = LabError(f"the training with {method} has failed: {describe(error)} ({where})")
    sending.send(answer)


def _end_with_parent() -> None:
    """End this process when the one that has asked is gone, however it went."""
    connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def run_method(code: str, method: str, seed: int, run: Path | None = None) -> Outcome:
    """Train in this process and look at the result."""
    quiet_transformers()
    start = start_shipped(code) if run is None else start_of_run(code, run)
    load_causal_lm(start.sft)  # what transformers imports with the first model is no part of a training
    before = memory_mib()
    torch.manual_seed(seed)
    with start.compute.autocast():
        ref_lm = reads_in_float32(load_causal_lm(start.sft).to(start.compute.device)).requires_grad_(False)
        if run is not None and method == "ppo":  # it is what the run has done
            lm, approx_kl, seconds, memory = _ppo_of_run(start, run)
        else:
            train = {"ppo": _ppo, "dpo": _dpo, "grpo": _grpo}[method]
            clock = time.perf_counter()
            with out_of_memory.told(lambda: out_of_memory.in_methods(start.compute, method)):
                lm, approx_kl = train(start, ref_lm, seed)
            seconds = time.perf_counter() - clock
            memory = peak_memory_mib() - before
        sft, _ = _judged(start, ref_lm, seed)
        after = _measure(start, lm, ref_lm, seed)
        accuracy, margin = _on_pairs(start, lm, ref_lm) if method == "dpo" else (None, None)
    return Outcome(
        method=method,
        seed=seed,
        judge_before=sft["judge"],
        judge=after["judge"],
        kl_to_ref=after["kl_to_ref"],
        distinct_2=after["distinct_2"] / sft["distinct_2"],
        eos_share=after["eos_share"],
        approx_kl=approx_kl,
        accuracy=accuracy,
        margin=margin,
        seconds=seconds,
        memory=memory,
        data=start.data.name,
    )


def _ppo(start: Start, ref_lm, seed: int):
    ppo, settings = start.code.ppo, start.settings
    policy = reads_in_float32(ppo.PolicyWithValueHead(str(start.sft)).to(start.compute.device))
    history = ppo.train_ppo(
        policy,
        copy.deepcopy(policy).eval().requires_grad_(False),
        start.reward_fn,
        start.tokenizer,
        list(start.data.prompts_train["prompt"]),
        optimizer_of(policy, settings),
        n_steps=settings.steps,
        batch_size=settings.batch,
        max_new_tokens=settings.new_tokens,
        ppo_epochs=settings.ppo_epochs,
        kl_coef=settings.kl_coef,
    )
    return policy.lm, max(info["approx_kl"] for info in history)


def _ppo_of_run(start: Start, folder: Path):
    """The policy that the run's own PPO has led to, with its figures; its memory was not told apart.

    Raises:
        LabError: when that stage is not finished.
    """
    check_finished(folder, "ppo")
    stage = folder / "ppo"
    policy = start.code.ppo.PolicyWithValueHead(str(start.sft))
    policy.load_state_dict(read_tensors(stage / "policy.safetensors"))
    history = read_json(stage / "history.json")
    approx_kl = max(entry["approx_kl"] for entry in history)
    seconds = sum(entry["seconds"] for entry in history)
    lm = reads_in_float32(policy.lm.to(start.compute.device))
    return lm, approx_kl, seconds, None


def _dpo(start: Start, ref_lm, seed: int):
    lm = copy.deepcopy(ref_lm).requires_grad_(True)
    pairs = start.data.pairs_train
    pairs = pairs.select(range(min(len(pairs), start.dpo_pairs)))
    pairs = start.code.dpo.PreferenceDataset(pairs, start.tokenizer, start.settings.max_len)
    loader = shuffled(pairs, start.dpo_batch, seed)
    start.code.dpo.train_dpo(
        lm, ref_lm, loader, DPO["epochs"], start.dpo_lr, device=start.compute.device, beta=DPO["beta"]
    )
    return lm, None


def _grpo(start: Start, ref_lm, seed: int):
    lm, settings = copy.deepcopy(ref_lm).requires_grad_(True), start.settings
    optim, steps_made = torch.optim.AdamW(lm.parameters(), lr=settings.ppo_lr, fused=True), itertools.count(1)
    set_rate(optim, settings, 0)
    history = start.code.grpo.train_grpo(
        lm,
        ref_lm,
        start.reward_fn,
        start.tokenizer,
        list(start.data.prompts_train["prompt"]),
        optim,
        n_steps=min(settings.steps, start.grpo_steps),
        n_prompts=settings.batch // GRPO["group"],
        group_size=GRPO["group"],
        max_new_tokens=settings.new_tokens,
        n_epochs=settings.ppo_epochs,
        kl_coef=GRPO["kl_coef"],
        on_step=lambda *_: set_rate(optim, settings, next(steps_made)),
    )
    return lm, max(info["approx_kl"] for info in history)


def measure(lm, ref_lm, tokenizer, seed: int = 0) -> dict[str, float]:
    """`judge`, `kl_to_ref`, `distinct_2` and `eos_share` of sampled responses to held-out prompts of the toy data.

    The KL is KL(`lm`, `ref_lm`) in nats for a whole response.
    """
    return _measure(replace(start_shipped(), tokenizer=tokenizer), lm, ref_lm, seed)


def _measure(start: Start, lm, ref_lm, seed: int) -> dict[str, float]:
    figures, samples = _judged(start, lm, seed)
    return figures | {"kl_to_ref": _mean_log_ratio(lm, ref_lm, start.tokenizer, samples)}


def _judged(start: Start, lm, seed: int) -> tuple[dict[str, float], Samples]:
    """Sampled responses to held-out prompts, and what the judge says of them."""
    pool = start.data.prompts_heldout["prompt"]
    samples = sample_heldout(lm, start.tokenizer, pool, start.settings.new_tokens, seed)
    return figures_of(samples, start.judge(samples.texts)), samples


def _mean_log_ratio(lm, ref_lm, tokenizer, samples) -> float:
    """Mean over the responses of log(policy / reference), their EOS included."""
    total = 0.0
    for prompt, response, ended in zip(samples.prompts, samples.token_ids, samples.ended, strict=True):
        prompt_ids = tokenizer(prompt, add_special_tokens=False).input_ids
        response_ids = response + [tokenizer.eos_token_id] * ended
        logprobs, ref_logprobs = (token_logprobs(m, prompt_ids, response_ids) for m in (lm, ref_lm))
        total += (logprobs - ref_logprobs).sum().item()
    return total / len(samples.token_ids)


@torch.no_grad()
def _on_pairs(start: Start, lm, ref_lm) -> tuple[float, float]:
    """Accuracy and margin of DPO's implicit reward on the held-out pairs (of rated ones: on those that are clear)."""
    dpo, device = start.code.dpo, start.compute.device
    pairs = dpo.PreferenceDataset(start.clear_pairs_heldout, start.tokenizer, start.settings.max_len)
    margins = []
    for batch in DataLoader(pairs, batch_size=64):
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        chosen = batch["chosen_ids"], batch["chosen_mask"], batch["chosen_labels"]
        rejected = batch["rejected_ids"], batch["rejected_mask"], batch["rejected_labels"]
        logprobs = [
            dpo.sequence_logprobs(model, *side) for model in (lm, ref_lm) for side in (chosen, rejected)
        ]
        _, chosen_reward, rejected_reward = dpo.dpo_loss(*logprobs, DPO["beta"])
        margins.append(chosen_reward - rejected_reward)
    margin = torch.cat(margins)
    return (margin > 0).float().mean().item(), margin.mean().item()


# --- what a person reads --------------------------------------------------------------------------

COLUMNS: dict[str, Callable[[Outcome], str]] = {
    "method": lambda outcome: outcome.method.upper(),
    "seed": lambda outcome: str(outcome.seed),
    "judge": lambda outcome: f"{outcome.judge_before:.2f} -> {outcome.judge:.2f}",
    "KL to ref": lambda outcome: f"{outcome.kl_to_ref:.1f}",
    "distinct-2": lambda outcome: f"{outcome.distinct_2:.2f} x",
    "ends": lambda outcome: f"{outcome.eos_share:.0%}",
    "max approx_kl": lambda outcome: "-" if outcome.approx_kl is None else f"{outcome.approx_kl:.3f}",
    "accuracy": lambda outcome: "-" if outcome.accuracy is None else f"{outcome.accuracy:.3f}",
    "margin": lambda outcome: "-" if outcome.margin is None else f"{outcome.margin:.2f}",
    "seconds": lambda outcome: f"{outcome.seconds:.0f}",
    "MiB": lambda outcome: "-" if outcome.memory is None else f"{outcome.memory:.0f}",
    "missed": lambda outcome: ", ".join(outcome.missed) or "nothing",
}


def to_rows(outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
    """A row for each outcome, as it is shown."""
    return [{column: shown(outcome) for column, shown in COLUMNS.items()} for outcome in outcomes]


def recorded_methods() -> list[dict[str, str]]:
    """A row for each method: what `python -m authoring methods` measured, the means over its seeds."""
    outcomes = [Outcome(**entry) for entry in read_json(RECORDED)["outcomes"]]
    rows = []
    for method in METHODS:
        own = [outcome for outcome in outcomes if outcome.method == method]

        def mean(name: str) -> float:
            return sum(getattr(outcome, name) for outcome in own) / len(own)

        rows.append(
            {
                "method": f"{method.upper()}, recorded, mean of {len(own)} seeds",
                "judge": f"{mean('judge_before'):.2f} -> {mean('judge'):.2f}",
                "KL to the reference": f"{mean('kl_to_ref'):.1f} nats",
                "distinct-2": f"{mean('distinct_2'):.2f} x",
                "seconds": f"{mean('seconds'):.0f}",
                "memory": f"{mean('memory'):.0f} MiB",
                "models held": MODELS[method],
            }
        )
    return rows


def to_json(outcomes: Sequence[Outcome]) -> dict:
    """What `recorded_methods` reads."""
    return {"outcomes": [asdict(outcome) for outcome in outcomes]}
