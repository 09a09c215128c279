"""Exercises 6.1 to 6.3: group advantages, the loss with the KL inside, the update, and the run as a whole."""

import copy
import inspect
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from solutions import grpo
from solutions.grpo import (
    GroupRollout,
    group_advantages,
    group_rollout,
    grpo_loss,
    grpo_step,
    response_logprobs,
    sequence_mean,
    train_grpo,
)
from solutions.ppo import masked_mean

# a long, a short and a single-token response
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
PROMPTS = ["the soup", "there is a garden and", "天气"]


def randn(*shape, mean=0.0, std=1.0):
    return mean + std * torch.randn(*shape, dtype=torch.float64)


# --- 6.1 group_advantages ---


def test_known_numbers_of_two_groups():
    # means 2 and 30, deviations (n - 1) 1 and 10
    advantages = group_advantages(torch.tensor([1.0, 2.0, 3.0, 40.0, 30.0, 20.0]), 3)
    assert torch.allclose(advantages, torch.tensor([-1.0, 0.0, 1.0, 1.0, 0.0, -1.0]))


@pytest.mark.parametrize("n_groups, group_size", [(1, 2), (3, 4), (4, 4), (6, 2)])
def test_each_group_has_mean_0_and_variance_1(n_groups, group_size):
    rewards = randn(n_groups * group_size) + torch.arange(n_groups).repeat_interleave(group_size) * 100
    groups = group_advantages(rewards, group_size).view(n_groups, group_size)
    assert torch.allclose(groups.mean(dim=1), torch.zeros(n_groups, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(groups.var(dim=1), torch.ones(n_groups, dtype=torch.float64))


def test_level_and_scale_of_a_group_say_nothing():
    rewards = randn(12)
    moved = (
        rewards.view(3, 4) * torch.tensor([[0.5], [2.0], [7.0]]) + torch.tensor([[5.0], [0.0], [-9.0]])
    ).flatten()
    assert torch.allclose(group_advantages(rewards, 4), group_advantages(moved, 4), atol=1e-6)


@pytest.mark.parametrize("group_size", [1, 2, 3, 4, 5, 6, 7, 8])
def test_equal_rewards_give_exactly_0(group_size):
    # the mean of eight times 0.7 is not 0.7, and rounding errors divided by each other are no small numbers
    rewards = torch.linspace(0.1, 1.0, 37).repeat_interleave(group_size)
    assert not group_advantages(rewards, group_size).any()


def test_an_equal_group_leaves_the_others_alone():
    other = torch.tensor([1.0, 2.0, 4.0, 3.0])
    together = group_advantages(torch.cat([torch.full((4,), 2.0), other]), 4)
    assert not together[:4].any()
    assert torch.equal(together[4:], group_advantages(other, 4))


def test_a_batch_that_is_no_multiple_is_refused():
    with pytest.raises(ValueError, match="10.*4"):
        group_advantages(torch.zeros(10), 4)


def test_rewards_stay_and_dtype_is_kept():
    rewards = randn(8)
    before = rewards.clone()
    assert group_advantages(rewards, 4).dtype == torch.float64
    assert torch.equal(rewards, before)


# --- 6.2 grpo_loss ---


def loss_arguments(log_ratio, to_ref, advantages, mask=None):
    """Arguments of `grpo_loss`: log-ratios of the new policy to the old one, and of the reference to the new policy."""
    old = randn(*log_ratio.shape, mean=-2.0, std=0.3)
    mask = torch.ones_like(log_ratio) if mask is None else mask
    return old + log_ratio, old, old + log_ratio + to_ref, advantages, mask


def test_sequence_mean_gives_every_response_the_same_weight():
    x = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0], [4.0, 4.0, 9.0, 9.0, 9.0], [7.0, 9.0, 9.0, 9.0, 9.0]])
    assert sequence_mean(x, MASK).item() == pytest.approx((1 + 4 + 7) / 3)
    assert masked_mean(x, MASK).item() == pytest.approx((5 + 8 + 7) / 8)


def test_before_the_first_step_the_policy_loss_is_minus_the_mean_advantage():
    advantages = torch.tensor([2.0, -1.0, 5.0], dtype=torch.float64)
    arguments = loss_arguments(torch.zeros(3, 5), torch.zeros(3, 5), advantages, MASK)
    loss, info = grpo_loss(*arguments)
    assert loss.item() == pytest.approx(-2.0)
    assert info == {"policy_loss": pytest.approx(-2.0), "kl_to_ref": 0.0, "approx_kl": 0.0, "clipfrac": 0.0}


def test_advantages_of_groups_cancel_before_the_first_step_and_their_gradient_does_not():
    advantages = group_advantages(randn(6), 3)
    new, old, ref, _, mask = loss_arguments(torch.zeros(6, 4), torch.zeros(6, 4), advantages)
    new.requires_grad_()
    loss, _ = grpo_loss(new, old, ref, advantages, mask)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-9)
    assert torch.allclose(new.grad, -advantages.unsqueeze(1).expand(6, 4) / 24)


@pytest.mark.parametrize(
    "ratio, advantage, policy_loss, moves",
    [(1.5, 1.0, -1.2, False), (1.5, -1.0, 1.5, True), (0.5, 1.0, -0.5, True), (0.5, -1.0, 0.8, False), (1.1, 2.0, -2.2, True)],
)  # fmt: skip
def test_clip_of_a_single_token(ratio, advantage, policy_loss, moves):
    advantages = torch.tensor([advantage], dtype=torch.float64)
    new, *fixed = loss_arguments(torch.full((1, 1), math.log(ratio)), torch.zeros(1, 1), advantages)
    new.requires_grad_()
    loss, info = grpo_loss(new, *fixed)
    loss.backward()
    assert info["policy_loss"] == pytest.approx(policy_loss)
    assert bool(new.grad.abs() > 1e-9) == moves


def test_k3_is_the_kl_on_average_over_samples_of_the_policy():
    policy = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    k3 = []
    for token in range(3):
        new, ref = policy[token].log().view(1, 1), reference[token].log().view(1, 1)
        _, info = grpo_loss(new, new, ref, torch.zeros(1), torch.ones(1, 1))
        k3.append(info["kl_to_ref"])
    assert min(k3) >= 0
    kl = (policy * (policy / reference).log()).sum().item()
    assert sum(p * k for p, k in zip(policy.tolist(), k3, strict=True)) == pytest.approx(kl)


@pytest.mark.parametrize("to_ref, expected", [(1.0, math.e - 2), (-1.0, math.exp(-1))])
def test_k3_of_a_single_token(to_ref, expected):
    arguments = loss_arguments(torch.full((1, 1), 0.4), torch.full((1, 1), to_ref), torch.ones(1))
    assert grpo_loss(*arguments)[1]["kl_to_ref"] == pytest.approx(expected)


def test_the_gradient_of_k3_is_one_less_the_ratio_of_reference_to_policy():
    new, old, ref, _, mask = loss_arguments(torch.zeros(1, 1), torch.full((1, 1), 0.7), torch.ones(1))
    new.requires_grad_()
    grpo_loss(new, old, ref, torch.zeros(1), mask, kl_coef=2.0)[0].backward()
    assert new.grad.item() == pytest.approx(2.0 * (1 - math.exp(0.7)))


def test_one_token_of_a_short_response_weighs_more():
    new, old, ref, advantages, _ = loss_arguments(torch.zeros(3, 5), torch.zeros(3, 5), torch.ones(3))
    new.requires_grad_()
    grpo_loss(new, old, ref, advantages, MASK)[0].backward()
    weights = -new.grad * MASK
    assert torch.allclose(weights.sum(dim=1), torch.full((3,), 1 / 3, dtype=torch.float64))
    assert weights[2, 0].item() == pytest.approx(5 * weights[0, 0].item())


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("garbage", [3.0, -1e6, 1e6])
def test_padding_has_no_say(dtype, garbage):
    arguments = loss_arguments(0.1 * randn(3, 5), 0.3 * randn(3, 5), torch.tensor([1.0, -2.0, 3.0]), MASK)
    dirty = [
        x.where(MASK.bool(), garbage * (i + 1)) if x.dim() == 2 else x for i, x in enumerate(arguments[:4])
    ]
    results, gradients = [], []
    for given in (arguments[:4], dirty):
        new = given[0].clone().requires_grad_()
        loss, info = grpo_loss(new, *given[1:], MASK.to(dtype))
        loss.backward()
        results.append({"loss": loss.item(), **info})
        gradients.append(new.grad)
    assert results[0] == pytest.approx(results[1])
    assert torch.allclose(gradients[0], gradients[1])
    assert not gradients[1][MASK == 0].any()


def test_gradient_reaches_the_new_log_probabilities_only():
    arguments = [
        x.requires_grad_() for x in loss_arguments(0.1 * randn(2, 3), 0.1 * randn(2, 3), randn(2))[:4]
    ]
    before = [x.detach().clone() for x in arguments]
    grpo_loss(*arguments, torch.ones(2, 3))[0].backward()
    assert arguments[0].grad is not None
    assert all(x.grad is None for x in arguments[1:])
    assert all(torch.equal(x, old) for x, old in zip(arguments, before, strict=True))


def test_means_of_approx_kl_and_clipfrac_are_over_all_tokens():
    log_ratio = torch.tensor([[0.0] * 5, [0.5, 0.5, 0, 0, 0], [-0.5, 0, 0, 0, 0]], dtype=torch.float64)
    info = grpo_loss(*loss_arguments(log_ratio, torch.zeros(3, 5), torch.ones(3), MASK))[1]
    assert info["clipfrac"] == pytest.approx(3 / 8)
    kl = (2 * (math.exp(0.5) - 1.5) + (math.exp(-0.5) - 0.5)) / 8
    assert info["approx_kl"] == pytest.approx(kl)
    assert all(isinstance(value, float) for value in info.values())


# --- 6.3 grpo_step, and what is given ---


@pytest.fixture
def lm(model_folder):
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    model.generation_config = GenerationConfig()
    return model


def some_reward(full_ids, full_mask):
    """Differs from answer to answer, whatever a model says."""
    return (full_ids * full_mask * torch.arange(full_ids.shape[1])).sum(dim=1) % 17 / 10


@pytest.fixture
def batch(lm, padded_tokenizer):
    torch.manual_seed(0)
    return group_rollout(lm, lm, some_reward, padded_tokenizer, PROMPTS, 4, max_new_tokens=6)


def stepped(lm, batch, lr=0.1, **settings):
    """A copy of the model after a step on plain gradients, what the step said, and how often the optimiser moved."""
    policy, moves = copy.deepcopy(lm), []
    optim = torch.optim.SGD(policy.parameters(), lr=lr)
    optim.register_step_post_hook(lambda *_: moves.append([p.grad.clone() for p in policy.parameters()]))
    return policy, grpo_step(policy, optim, batch, **settings), moves


def test_a_group_rollout_is_made_of_groups(lm, padded_tokenizer, batch):
    assert batch.group_size == 4
    assert batch.full_ids.shape[0] == len(batch.rewards) == len(batch.texts) == 12
    prompt_length = batch.full_ids.shape[1] - batch.response_mask.shape[1]
    for row in range(12):
        real = batch.full_mask[row, :prompt_length].bool()
        prompt = padded_tokenizer(PROMPTS[row // 4]).input_ids
        assert batch.full_ids[row, :prompt_length][real].tolist() == prompt
    assert len(set(batch.texts[:4])) > 1  # each row is a sample of its own
    assert torch.equal(batch.old_logprobs, batch.ref_logprobs)
    assert not batch.old_logprobs.requires_grad


def test_response_logprobs_agree_with_a_row_read_alone(lm, batch):
    n_response = batch.response_mask.shape[1]
    logprobs = response_logprobs(lm, batch.full_ids, batch.full_mask, n_response)
    for row in (0, 5, 11):
        ids = batch.full_ids[row][batch.full_mask[row].bool()].unsqueeze(0)
        length = int(batch.response_mask[row].sum())
        alone = lm(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[-length:, 0]
        assert torch.allclose(logprobs[row, :length], alone, atol=1e-4)


def test_one_step_of_the_optimiser_an_epoch(lm, batch):
    _, info, moves = stepped(lm, batch, n_epochs=3)
    assert len(moves) == 3
    assert info.keys() == {"policy_loss", "kl_to_ref", "approx_kl", "clipfrac", "mean_reward", "equal_groups"}
    assert info["mean_reward"] == pytest.approx(batch.rewards.mean().item())


def test_dropout_is_off(lm, batch):
    _, info, _ = stepped(lm.train(), batch, n_epochs=1)
    assert info["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert info["clipfrac"] == 0.0


def test_the_norm_of_the_gradient_is_limited(lm, batch):
    *_, moves = stepped(lm, batch, n_epochs=1, max_grad_norm=1e-3)
    assert torch.cat([g.flatten() for g in moves[0]]).norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_left_over_gradients_do_not_count(lm, batch):
    clean, *_ = stepped(lm, batch, n_epochs=2)
    for weight in lm.parameters():
        weight.grad = torch.ones_like(weight)
    other, *_ = stepped(lm, batch, n_epochs=2)
    assert all(
        torch.allclose(a, b, atol=1e-6) for a, b in zip(clean.parameters(), other.parameters(), strict=True)
    )


def test_equal_groups_are_counted_and_move_nothing_while_the_policy_is_the_reference(lm, batch):
    batch.rewards = torch.tensor([1.0] * 4 + [0.7] * 4 + [0.0, 1.0, 0.5, 0.5])
    assert stepped(lm, batch)[1]["equal_groups"] == pytest.approx(2 / 3)
    batch.rewards = torch.full((12,), 0.7)
    still, info, _ = stepped(lm, batch)
    assert info["equal_groups"] == 1.0
    assert all(
        torch.allclose(a, b, atol=1e-6) for a, b in zip(still.parameters(), lm.parameters(), strict=True)
    )


def test_equal_groups_are_pulled_back_to_the_reference(lm, batch):
    batch.rewards = torch.full((12,), 0.7)
    batch.ref_logprobs = batch.ref_logprobs + 0.5
    _, first, _ = stepped(lm, batch, n_epochs=1)
    _, later, _ = stepped(lm, batch, n_epochs=5)
    assert later["kl_to_ref"] < first["kl_to_ref"]


def test_the_rollout_stays_as_it_is(lm, batch):
    before = copy.deepcopy(batch)
    stepped(lm, batch)
    assert all(
        torch.equal(value, getattr(before, name))
        for name, value in vars(batch).items()
        if isinstance(value, torch.Tensor)
    )


def test_better_answers_become_more_likely(lm, batch):
    policy, *_ = stepped(lm, batch, n_epochs=3, lr=0.05, kl_coef=0.0)
    with torch.no_grad():
        new = response_logprobs(policy, batch.full_ids, batch.full_mask, batch.response_mask.shape[1])
    gain = ((new - batch.old_logprobs) * batch.response_mask).sum(dim=1)
    advantages = group_advantages(batch.rewards, 4)
    assert (gain * advantages).sum() > 0


def test_a_run_is_repeatable_and_leaves_the_reference_alone(lm, padded_tokenizer):
    reference = copy.deepcopy(lm)
    histories = []
    for _ in range(2):
        torch.manual_seed(3)
        policy, seen = copy.deepcopy(lm), []
        histories.append(
            train_grpo(
                policy, reference, some_reward, padded_tokenizer, PROMPTS,
                torch.optim.AdamW(policy.parameters(), lr=1e-3), n_steps=2, n_prompts=2, group_size=3,
                max_new_tokens=4, on_step=lambda info, rollout: seen.append(rollout),
            )
        )  # fmt: skip
        assert len(seen) == 2 and isinstance(seen[0], GroupRollout) and len(seen[0].rewards) == 6
    assert histories[0] == histories[1]
    assert all(torch.equal(a, b) for a, b in zip(reference.parameters(), lm.parameters(), strict=True))


@pytest.mark.parametrize(
    "function, defaults",
    [
        (group_advantages, {"eps": 1e-8}),
        (grpo_loss, {"clip_range": 0.2, "kl_coef": 0.04}),
        (grpo_step, {"n_epochs": 4, "clip_range": 0.2, "kl_coef": 0.04, "max_grad_norm": 1.0}),
    ],
)
def test_defaults(function, defaults):
    parameters = inspect.signature(function).parameters.values()
    assert {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty} == defaults


def test_the_module_says_where_its_exercises_are():
    for name, number in (("group_advantages", "6.1"), ("grpo_loss", "6.2"), ("grpo_step", "6.3")):
        assert f"(exercise {number})" in inspect.getdoc(getattr(grpo, name))
