"""The watch over a run: silent on correct code, one sentence for each invariant that a defect breaks."""

import copy
from types import SimpleNamespace

import pytest
import torch

from authoring.known import package_with
from rlhf_lab.checks.models import micro_folder, micro_tokenizer
from rlhf_lab.course import find
from rlhf_lab.invariants import INVARIANTS, observed, watch_invariants
from rlhf_lab.student_code import fresh_code
from solutions import ppo
from solutions.reward_model import RewardModel
from tests.bank import Entry, body

PROMPTS = ["The soup", "The new smart watch", "这家餐厅", "The train ride today"]
KL_COEF, LIMIT = 0.2, 8


class Run:
    """A few steps of PPO on the micro model with the functions of `module`.

    Args:
        watched: False leaves the watch out.
    """

    def __init__(self, module=ppo, *, watched=True, steps=3, head_start=False, **watch_options):
        torch.manual_seed(1)
        policy = ppo.PolicyWithValueHead(micro_folder())
        torch.nn.init.normal_(policy.value_head[-1].weight, std=0.5)
        ref_policy = copy.deepcopy(policy).eval().requires_grad_(False)
        if head_start:
            torch.nn.init.normal_(policy.lm.transformer.ln_f.bias, std=0.1)
        reward_model = RewardModel(micro_folder()).eval().requires_grad_(False)
        tokenizer = micro_tokenizer()
        self.lines = []
        watch = watch_invariants(
            module,
            policy,
            ref_policy,
            reward_model,
            tokenizer,
            KL_COEF,
            LIMIT,
            say=self.lines.append,
            **watch_options,
        )
        torch.manual_seed(2)

        def train(on_step):
            optim = torch.optim.AdamW(policy.parameters(), lr=3e-3)
            return module.train_ppo(
                policy, ref_policy, reward_model, tokenizer, PROMPTS, optim,
                n_steps=steps, batch_size=6, max_new_tokens=LIMIT, kl_coef=KL_COEF, on_step=on_step,
            )  # fmt: skip

        if watched:
            with watch:
                self.history = train(watch.on_step)
        else:
            self.history = train(None)
        self.results = watch.results
        self.weights = policy.state_dict()
        self.random_state = torch.random.get_rng_state()

    @property
    def broken(self):
        return {name for name, result in self.results.items() if result.startswith("broken")}


def run_with(exercise, *changes, **options):
    entry = Entry(exercise, "", changes, imports="", correct=False)
    with package_with(entry, find(exercise)) as folder, fresh_code(folder) as code:
        return Run(code.ppo, **options)


DEFECTS = {
    "dropout in the update": ("first ratio", "ppo_step", ("policy.eval()", "policy.train()")),
    "old log-probabilities renewed in each epoch": (
        "fixed targets",
        "ppo_step",
        ("            rollout.old_logprobs,\n            advantages", "            new_logprobs.detach(),\n            advantages"),
    ),
    "advantages scaled down in each epoch": (
        "fixed targets",
        "ppo_step",
        ("        optim.zero_grad()", "        advantages = advantages * 0.9\n        optim.zero_grad()"),
    ),
    "no whitening": ("whitened", "ppo_step", ("    advantages = masked_whiten(advantages, mask)\n", "")),
    "whitened over the padding too": (
        "whitened",
        "masked_whiten",
        body("return ((x - x.mean()) / (x.var() + eps).sqrt()).where(mask.bool(), 0.0)"),
    ),
    "KL sign": ("reward sum", "shape_token_rewards", ("-kl_coef * (old", "kl_coef * (old")),
    "score lost in the padding": ("reward sum", "shape_token_rewards", ("(tokens_left == 1)", "(tokens_left == 0)")),
    "kl_coef not handed on": ("reward sum", "train_ppo", (", kl_coef=kl_coef)", ")")),
    "padding leaks into the advantages": (
        "last return",
        "compute_gae",
        ("next_advantage = advantage.where(valid[:, t], 0.0)", "next_advantage = advantage"),
        ("next_value = values[:, t].where(valid[:, t], 0.0)", "next_value = values[:, t]"),
    ),
    "returns made of whitened advantages": (
        "last return",
        "ppo_step",
        (
            "    advantages = masked_whiten(advantages, mask)\n",
            "    advantages = masked_whiten(advantages, mask)\n    returns = advantages + rollout.old_values\n",
        ),
    ),
    "temperature for the policy alone": (
        "first KL",
        "response_logprobs_and_values",
        (
            "    return gather",
            "    logits = logits / (0.7 if next(policy.parameters()).requires_grad else 1.0)\n    return gather",
        ),
    ),
    "the policy asked in place of the reference": (
        "reference",
        "rollout",
        ("response_logprobs_and_values(ref_policy,", "response_logprobs_and_values(policy,"),
    ),
    "nothing cut off after EOS": ("response end", "response_mask", body("return torch.ones_like(response_ids)")),
    "max_new_tokens not handed on": ("response end", "train_ppo", ("in drawn], max_new_tokens)", "in drawn], 5)")),
    "reference updated": (
        "frozen",
        "train_ppo",
        ("            on_step(info, batch)\n", "            on_step(info, batch)\n        ref_policy.load_state_dict(policy.state_dict())\n"),
    ),
    "reward model changed": (
        "frozen",
        "train_ppo",
        ("        history.append(info)", "        reward_fn.v_head.weight.data += 0.1\n        history.append(info)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_breaks_its_invariant_and_no_other(name):
    broken, exercise, *changes = DEFECTS[name]
    run = run_with(exercise, *changes)
    assert run.broken == {broken}, run.lines
    line, summary = run.lines  # said once, and the run went on
    assert len(run.history) == 3
    assert (
        line.startswith(("invariant broken at step ", "invariant broken after the run: "))
        and "\n" not in line
    )
    looked_at = INVARIANTS[broken].look_at
    assert f"{looked_at} (exercise {find(looked_at).number})" in line
    assert f"{len(INVARIANTS) - 1} of {len(INVARIANTS)} invariants held over 3 steps" in summary


def test_every_invariant_has_a_defect_that_breaks_it():
    assert {broken for broken, *_ in DEFECTS.values()} == set(INVARIANTS)


def test_the_solution_breaks_none():
    run = Run()
    assert set(run.results.values()) == {"held"}
    assert run.lines == ["9 of 9 invariants held over 3 steps"]


def test_the_sample_variance_is_a_correct_variant():
    run = run_with("masked_whiten", ("(variance + eps)", "(variance * mask.sum() / (mask.sum() - 1) + eps)"))
    assert set(run.results.values()) == {"held"}


def test_keyword_arguments_and_another_mask_dtype_are_a_correct_variant():
    names = ["new_logprobs", "advantages", "new_values", "returns", "clip_range", "clip_range_value"]
    indent = " " * 12
    by_keyword = [(f"{indent}{name},\n", f"{indent}{name}={name},\n") for name in names]
    by_keyword += [
        (f"{indent}rollout.{name},\n", f"{indent}{name}=rollout.{name},\n")
        for name in ("old_logprobs", "old_values")
    ]
    by_keyword += [
        (f"{indent}mask,\n", f"{indent}mask=mask.bool(),\n"),
        (f"{indent}vf_coef,\n", f"{indent}vf_coef=vf_coef,\n"),
    ]
    assert set(run_with("ppo_step", *by_keyword).results.values()) == {"held"}


def test_the_watch_changes_nothing():
    watched, alone = Run(), Run(watched=False)
    assert watched.history == alone.history
    assert all(torch.equal(weight, alone.weights[name]) for name, weight in watched.weights.items())
    assert torch.equal(watched.random_state, alone.random_state)


def test_functions_that_are_not_called_are_not_counted_as_held():
    fused = body(
        "new_logprobs, values = response_logprobs_and_values(policy, rollout.full_ids, rollout.full_mask, "
        "rollout.response_mask.shape[1])\n"
        "return {'mean_reward': 0.0}"
    )
    run = run_with("ppo_step", fused)
    unseen = {name for name, result in run.results.items() if result.startswith("not seen")}
    assert unseen == {"first ratio", "fixed targets", "whitened", "reward sum", "last return"}
    assert run.lines[0].startswith("4 of 9") and "ppo_losses was not called" in run.lines[0]


def test_a_run_that_does_not_start_as_the_reference_is_not_asked_for_a_first_kl_of_0():
    run = Run(head_start=True, step=10)
    assert run.results.pop("first KL") == "not seen: policy and reference differ when the run begins"
    assert set(run.results.values()) == {"held"}


def test_a_run_without_on_step_says_so():
    run = run_with("train_ppo", ("if on_step is not None:", "if False:"))
    assert run.results["frozen"] == "not seen: train_ppo did not call on_step, or ref_policy is no module"
    assert run.lines[0].startswith("0 of 9 invariants held over 0 steps")


@pytest.mark.parametrize("batch", [None, {}, SimpleNamespace(response_mask=[1, 1])])
def test_wrong_types_are_said_and_do_not_stop_the_run(batch):
    module = SimpleNamespace(ppo_losses=lambda *args, **kwargs: None, shape_token_rewards=lambda *args: [0.0])
    lines = []
    with watch_invariants(module, None, "a model", None, micro_tokenizer(), say=lines.append) as watch:
        for _ in range(2):
            module.shape_token_rewards([1.0], None)
            module.ppo_losses(1.0, mask="a mask", unknown=3)
            watch.on_step({}, batch)
    *said, summary = lines
    assert len(said) == len(set(said)) == 8
    assert all(
        line.startswith("invariant not checked from step 0 on: ") and "Error: " in line for line in said
    )
    assert summary.startswith("0 of 9")


def test_the_functions_are_put_back_after_an_exception():
    originals = ppo.ppo_losses, ppo.shape_token_rewards
    lines = []
    watch = watch_invariants(ppo, None, None, None, micro_tokenizer(), say=lines.append)
    with pytest.raises(ZeroDivisionError), watch:
        assert ppo.ppo_losses is not originals[0]
        raise ZeroDivisionError
    assert (ppo.ppo_losses, ppo.shape_token_rewards) == originals
    assert lines == []


def test_observed_leaves_a_module_without_the_function_alone():
    module = SimpleNamespace()
    with observed(module, ppo_losses=lambda arguments, result: None):
        assert vars(module) == {}
    assert vars(module) == {}
