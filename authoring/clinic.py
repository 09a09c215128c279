"""Record the clinic: PPO on `tiny` from the shipped checkpoints, once healthy and once with each defect.

Every defect is a change of the solutions as in the bank of wrong implementations, or a setting, or a reward. Nothing in
a case file is written by hand.
"""

import dataclasses
import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rlhf_lab.checkpoints import REWARD, SFT
from rlhf_lab.clinic import FOLDER, HEALTHY, digest
from rlhf_lab.course import find
from rlhf_lab.data.judge import polarity_count
from rlhf_lab.invariants import observed
from rlhf_lab.lab import Lab, open_lab
from rlhf_lab.rewards import TextScorer
from rlhf_lab.runs import read_json, read_tensors, write_tensors
from rlhf_lab.settings import Settings
from rlhf_lab.stages import ppo, sft
from rlhf_lab.student_code import fresh_code
from rlhf_lab.token_table import token_texts
from tests.bank import Entry

from .known import package_with

STEPS = 40
DIGITS = 4  # significant digits of a recorded number
EARLY = 7  # tokens of the response that is to end early
LEFT_BEHIND = 4  # padded positions that a recorded row keeps


@dataclass(frozen=True)
class Run:
    """One run to record.

    Attributes:
        diagnosis: its name in `rlhf_lab.clinic.DIAGNOSES`; of the healthy run, "".
        change: the defect in the taught code. Where it is in the SFT code, SFT is trained again with it.
        settings: what differs from the demo's settings.
        reward: a text scorer that PPO is trained on in place of the shipped reward model.
    """

    diagnosis: str
    change: Entry | None = None
    settings: dict = field(default_factory=dict)
    reward: TextScorer | None = None


def _change(exercise: str, *changes: tuple[str, str]) -> Entry:
    return Entry(exercise, "a case of the clinic", changes, imports="", correct=False)


def count_praise(texts: Iterable[str]) -> list[float]:
    """Positive minus negative words: a reward that does not read, and pays for a pile of praise."""
    return [float(polarity_count(text)) for text in texts]


RUNS = {
    HEALTHY: Run(""),
    "A": Run(
        "score lost",
        _change(
            "shape_token_rewards",
            (
                "tokens_left = valid.flip(-1).cumsum(-1).flip(-1)\n    is_last = valid & (tokens_left == 1)",
                "positions = torch.arange(valid.shape[-1])\n    is_last = positions == valid.sum(-1, keepdim=True)",
            ),
        ),
    ),
    "B": Run("KL sign flipped", _change("shape_token_rewards", ("-kl_coef * (old", "kl_coef * (old"))),
    "C": Run(
        "EOS not learned",
        _change(
            "build_sft_example",
            (
                "labels = ([IGNORE] * len(prompt_ids) + response_ids + [eos_id])",
                "labels = ([IGNORE] * len(prompt_ids) + response_ids + [IGNORE])",
            ),
        ),
    ),
    "D": Run("dropout on", _change("ppo_step", ("policy.eval()", "policy.train()"))),
    "E": Run("learning rate too high", settings={"ppo_lr": 3e-3}),
    # The curves of this one stay healthy: what the critic says of padding is close to what it says of the last token.
    # That is why a case shows a response with padding behind it and the longest one, which has none.
    "F": Run(
        "padding leak",
        _change(
            "compute_gae",
            ("next_advantage = advantage.where(valid[:, t], 0.0)", "next_advantage = advantage"),
            ("next_value = values[:, t].where(valid[:, t], 0.0)", "next_value = values[:, t]"),
        ),
    ),
    "G": Run(
        "reference moves",
        _change(
            "train_ppo",
            (
                "history.append(info)",
                "ref_policy.load_state_dict(policy.state_dict())\n        history.append(info)",
            ),
        ),
    ),
    "H": Run(
        "reward hacking",
        settings={"steps": 80},  # after 40 the judge has only begun to fall
        reward=count_praise,
    ),
    "I": Run("no whitening", _change("ppo_step", ("    advantages = masked_whiten(advantages, mask)\n", ""))),
    "J": Run("top-p sampling", _change("rollout", ("top_p=1.0", "top_p=0.5"))),
    "K": Run(
        "returns whitened",
        _change(
            "ppo_step",
            (
                "advantages, returns = compute_gae(token_rewards, rollout.old_values, mask)",
                "advantages, _ = compute_gae(token_rewards, rollout.old_values, mask)",
            ),
            (
                "advantages = masked_whiten(advantages, mask)",
                "advantages = masked_whiten(advantages, mask)\n    returns = advantages + rollout.old_values",
            ),
        ),
    ),
    "L": Run(
        "critic not trained",
        _change("ppo_losses", ("policy_loss + vf_coef * value_loss, info", "policy_loss, info")),
    ),
}


def record_clinic(names: list[str]) -> None:
    """Run and write these cases, or all."""
    for name in names or RUNS:
        content = record(RUNS[name])
        if RUNS[name].diagnosis:
            content = {**seal(name, RUNS[name].diagnosis, content), **content}
        (FOLDER / f"{name}.json").write_text(_as_text(content), encoding="utf-8")
        last = content["history"][-1]
        print(
            f"{name}: {RUNS[name].diagnosis or 'healthy'}, judge {last['judge']}, KL {last['kl_to_ref']}",
            flush=True,
        )


def seal(letter: str, diagnosis: str, content: dict) -> dict[str, str]:
    """Salt and key of a case; the salt comes from what was recorded, so that the same run gives the same file."""
    salt = hashlib.sha256(_as_text(content).encode()).hexdigest()[:16]
    return {"salt": salt, "key": digest(salt, letter, diagnosis)}


def record(run: Run) -> dict:
    """Train as `run` says and return what is shown of it."""
    exercise = find(run.change.exercise) if run.change else None
    with (
        tempfile.TemporaryDirectory() as place,
        package_with(run.change, exercise) as package,
        fresh_code(package) as code,
    ):
        lab = open_lab(Settings(device="cpu", **{"steps": STEPS, **run.settings}), Path(place))
        lab = dataclasses.replace(lab, code=code)
        if run.reward is not None:
            settings = dataclasses.replace(lab.settings, reward=run.reward.__name__)
            lab = dataclasses.replace(lab, settings=settings, stand_in=run.reward)
        _lay_out_checkpoints(lab)
        if exercise is not None and exercise.module == "sft":
            _seed(lab)
            sft.train(lab, lab.folder / "sft")
        recorder = _Recorder(lab.tokenizer)
        _seed(lab)
        with observed(
            code.ppo, ppo_losses=recorder.losses, shape_token_rewards=recorder.rewards, ppo_step=recorder.step
        ):
            ppo.train(lab, lab.folder / "ppo")
        history = read_json(lab.folder / "ppo" / "history.json")
        samples = read_json(lab.folder / "ppo" / "samples.json")
    for entry in history:
        del entry["seconds"]
    return {
        "first_step": recorder.first_step,
        "history": history,
        "samples": samples,
        "rows": recorder.rows(),
    }


class _Recorder:
    """What passes between the functions of a run: figures of the first step, and two responses of the last one."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._handed = None  # to ppo_losses, at its first call in the present step
        self.first_step = None

    def rewards(self, arguments: dict, result) -> None:
        self._token_rewards = result

    def losses(self, arguments: dict, result) -> None:
        if self._handed is None:
            self._handed = {
                name: tensor.detach() for name, tensor in arguments.items() if torch.is_tensor(tensor)
            }
        if self.first_step is None:
            mask = self._handed["mask"].bool()
            old_logprobs, advantages = self._handed["old_logprobs"][mask], self._handed["advantages"][mask]
            ratio = (self._handed["new_logprobs"][mask] - old_logprobs).exp()
            self.first_step = {
                "ratio_min": ratio.min().item(),
                "ratio_max": ratio.max().item(),
                "logprob_mean": old_logprobs.mean().item(),
                "logprob_min": old_logprobs.min().item(),
                "advantage_mean": advantages.mean().item(),
                "advantage_std": advantages.std(correction=0).item(),
            }

    def step(self, arguments: dict, result) -> None:
        self._last = (arguments["rollout"], self._token_rewards, self._handed)
        self._handed = None

    def rows(self) -> list[dict]:
        """A response of the last step that ends early, with some of its padding, and the longest of the others."""
        batch, token_rewards, handed = self._last
        lengths = batch.response_mask.sum(dim=-1)
        early = (lengths - EARLY).abs().argmin().item()
        longest = max(
            (row for row in range(len(lengths)) if row != early), key=lambda row: lengths[row].item()
        )
        columns = {
            "mask": batch.response_mask, "logprob": batch.old_logprobs, "ref_logprob": batch.ref_logprobs,
            "reward": token_rewards, "value": batch.old_values, "advantage": handed["advantages"],
            "return": handed["returns"],
        }  # fmt: skip
        block = batch.response_mask.shape[1]
        rows = []
        for row in (early, longest):
            shown = min(int(lengths[row]) + LEFT_BEHIND, block)
            prompt = batch.full_ids[row, :-block][batch.full_mask[row, :-block].bool()]
            rows.append(
                {
                    "prompt": self._tokenizer.decode(prompt),
                    "score": batch.rm_score[row].item(),
                    "tokens": token_texts(self._tokenizer, batch.full_ids[row, -block:].tolist())[:shown],
                    **{column: tensor[row, :shown].tolist() for column, tensor in columns.items()},
                }
            )
        return rows


def _lay_out_checkpoints(lab: Lab) -> None:
    """The shipped checkpoints, where the stages of a run look for them."""
    shutil.copytree(SFT, lab.sft_model)
    folder = lab.folder / "reward_model"
    weights = {
        name.replace("transformer.", "backbone.", 1).replace("score.", "v_head.", 1): weight.float()
        for name, weight in read_tensors(REWARD / "model.safetensors").items()
    }
    write_tensors(folder / "model.safetensors", weights)
    scale = read_json(REWARD / "scale.json")
    figures = {"score_mean": scale["mean"], "score_std": scale["std"]}
    (folder / "figures.json").write_text(json.dumps(figures), encoding="utf-8")


def _seed(lab: Lab) -> None:
    torch.manual_seed(lab.settings.seed)
    random.seed(lab.settings.seed)


def _as_text(content: dict) -> str:
    """JSON with one step, sample or row a line."""

    def rounded(thing):
        if isinstance(thing, float):
            return float(f"{thing:.{DIGITS}g}")
        if isinstance(thing, dict):
            return {name: rounded(entry) for name, entry in thing.items()}
        return [rounded(entry) for entry in thing] if isinstance(thing, list) else thing

    def dumps(thing) -> str:
        return json.dumps(rounded(thing), ensure_ascii=False, separators=(",", ":"))

    parts = [
        f'"{name}":[\n' + ",\n".join(map(dumps, part)) + "\n]"
        if isinstance(part, list)
        else f'"{name}":{dumps(part)}'
        for name, part in content.items()
    ]
    return "{" + ",\n".join(parts) + "}\n"
