"""Exercises 7.1 to 7.6: the toy language model, checked by writing all of its responses down, and the runs with it."""

import copy
import math

import pytest
import torch

from rlhf_lab import toy as lab_toy
from rlhf_lab.cli import main
from rlhf_lab.taught_code import load_code
from solutions import toy
from solutions.ppo import compute_gae, response_mask
from solutions.toy import (
    BOS,
    EOS,
    PAD,
    Episodes,
    ToyLanguageModel,
    ValueNetwork,
    gae_with_dones,
    preference_pair,
    response_log_prob,
    rule_reward,
    sample_episodes,
    states_before,
    toy_ppo_step,
)

SMALL = {"vocab_size": 5, "embed_dim": 4, "hidden_dim": 6, "num_layers": 2}
LIMIT = 4.5  # standard errors: once in 150,000


def small_model(seed: int = 0, **sizes) -> ToyLanguageModel:
    """A model far from uniform, over PAD, BOS, EOS, UNK and the letter a."""
    torch.manual_seed(seed)
    model = ToyLanguageModel(**(SMALL | sizes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0)
    return model


def constant_model(probabilities: list[float]) -> ToyLanguageModel:
    model = ToyLanguageModel(len(probabilities), 3, 3, 1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.lm_head.bias.copy_(torch.tensor(probabilities).log())
    return model


def test_letters_and_ids():
    assert toy.encode("az") == [4, 29] and toy.encode("A ") == [toy.UNK] * 2
    assert toy.decode([4, PAD, 5, toy.UNK, EOS, 6]) == "ab"
    assert toy.decode([]) == ""


# --- 7.1 ToyLanguageModel ---


def test_the_defaults_are_those_of_the_source():
    model = ToyLanguageModel()
    assert model.embedding.weight.shape == (30, 64)
    assert (model.lstm.num_layers, model.lstm.hidden_size, model.lm_head.out_features) == (2, 128, 30)


def test_log_probs_are_those_of_each_prefix_alone():
    model, ids = small_model(), torch.tensor([[1, 4, 0, 2, 3], [1, 0, 0, 4, 4]])
    log_probs = model.get_log_probs(ids)
    assert log_probs.shape == (2, 4) and log_probs.requires_grad
    for row in range(2):
        for t in range(1, 5):
            logits, _ = model(ids[row : row + 1, :t])
            expected = logits[0, -1].log_softmax(-1)[ids[row, t]]
            assert log_probs[row, t - 1].item() == pytest.approx(expected.item(), abs=1e-5)


def test_a_row_ends_with_its_own_eos_and_pad_follows():
    model = small_model()
    prompt_ids = torch.tensor([[BOS, EOS], [EOS, PAD], [4, 4]]).repeat(40, 1)
    ids, logprobs = model.generate(prompt_ids, 6)
    assert ids.shape == (120, 8) and logprobs.shape == (120, 6) and not logprobs.requires_grad
    assert torch.equal(ids[:, :2], prompt_ids)
    real = response_mask(ids[:, 2:], EOS).bool()
    lengths = real.sum(dim=1)
    assert lengths.min() == 1 and lengths.max() == 6, "rows of all lengths"
    assert not ids[:, 2:][~real].any() and not logprobs[~real].any()
    assert (ids[:, 2:][real] == PAD).any(), "a PAD that is drawn is a token"
    assert torch.allclose(logprobs[real], model.get_log_probs(ids)[:, 1:][real], atol=1e-5)


def test_one_prompt_one_token():
    ids, logprobs = small_model().generate(torch.tensor([[BOS]]), 1)
    assert ids.shape == (1, 2) and logprobs.shape == (1, 1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_come_as_often_as_the_temperature_says(temperature):
    probabilities = torch.tensor([0.1, 0.05, 1e-9, 0.25, 0.6])
    model = constant_model(probabilities.tolist())
    ids, logprobs = model.generate(torch.full((500, 1), BOS), 8, temperature)
    expected = (probabilities.log() / temperature).softmax(0)
    real = response_mask(ids[:, 1:], EOS).bool()
    drawn = ids[:, 1:][real]
    for token, share in enumerate(expected.tolist()):
        error = math.sqrt(share * (1 - share) / len(drawn))
        assert abs((drawn == token).float().mean().item() - share) < LIMIT * error + 1e-3
    assert torch.allclose(logprobs[real], expected.log()[drawn], atol=1e-4)


# --- everything written down ---


def everything(model, max_len: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """All responses behind BOS, and the log-probability of each."""
    responses = lab_toy.all_responses(5, max_len, EOS, PAD)
    ids = torch.cat([torch.full((len(responses), 1), BOS), responses], dim=1)
    return ids, response_log_prob(model, ids, 1)


@pytest.mark.parametrize("max_len, n", [(1, 5), (3, 85), (4, 341)])
def test_the_probabilities_of_all_responses_add_up_to_1(max_len, n):
    ids, log_prob = everything(small_model(), max_len)
    assert len(ids) == n == len({tuple(row) for row in ids.tolist()})
    assert log_prob.exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_responses_are_sampled_as_often_as_they_are_scored():
    model, n = small_model(), 20_000
    ids, log_prob = everything(model)
    drawn, logprobs = model.generate(torch.full((n, 1), BOS), 3)
    place = {tuple(row): i for i, row in enumerate(ids.tolist())}
    indices = torch.tensor([place[tuple(row)] for row in drawn.tolist()])
    assert torch.allclose(logprobs.sum(dim=1), log_prob[indices], atol=1e-4)
    expected = log_prob.exp().detach()
    shares = torch.bincount(indices, minlength=len(ids)) / n
    errors = (expected * (1 - expected) / n).sqrt()
    assert ((shares - expected).abs() < LIMIT * errors + 1e-4).all()


def test_means_of_k1_and_k3_are_the_exact_kl():
    policy, reference, n = small_model(0), small_model(1), 20_000
    with torch.no_grad():
        log_prob, ref_log_prob = everything(policy)[1], everything(reference)[1]
        exact = (log_prob.exp() * (log_prob - ref_log_prob)).sum()
        ids, old = policy.generate(torch.full((n, 1), BOS), 3)
        mask = response_mask(ids[:, 1:], EOS).bool()
        log_ratio = (reference.get_log_probs(ids) - old).where(mask, 0.0)
    k1, k3 = -log_ratio, log_ratio.exp() - 1 - log_ratio
    errors = {}
    for name, per_token in (("k1", k1), ("k3", k3)):
        of_response = per_token.sum(dim=1)
        errors[name] = (of_response.std() / math.sqrt(n)).item()
        assert abs(of_response.mean() - exact) < LIMIT * errors[name], name
    assert exact > 20 * errors["k1"], "the KL is far from 0"
    assert (k3 >= 0).all() and (k1.sum(dim=1) < 0).any()
    assert errors["k3"] < errors["k1"]


def flat_gradient(number, model) -> torch.Tensor:
    found = torch.autograd.grad(number, list(model.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in found])


def test_the_sampled_policy_gradient_is_the_gradient_of_the_expected_reward():
    model, n = small_model(embed_dim=3, hidden_dim=4, num_layers=1), 20_000
    ids, log_prob = everything(model)
    rewards = torch.tensor([rule_reward(toy.decode(row)) for row in ids[:, 1:].tolist()])
    probability = log_prob.exp().detach()
    exact = flat_gradient((log_prob.exp() * rewards).sum(), model)

    each = torch.stack([rewards[i] * flat_gradient(log_prob[i], model) for i in range(len(ids))])
    spread = (probability @ each.square() - (probability @ each).square()).clamp(min=0).sqrt()
    assert torch.allclose(probability @ each, exact, atol=1e-4), "exact, from both sides"

    drawn, _ = model.generate(torch.full((n, 1), BOS), 3)
    drawn_rewards = torch.tensor([rule_reward(toy.decode(row)) for row in drawn[:, 1:].tolist()])
    sampled = flat_gradient((response_log_prob(model, drawn, 1) * drawn_rewards).mean(), model)
    assert torch.cosine_similarity(exact, sampled, dim=0) > 0.99
    assert ((sampled - exact).abs() < LIMIT * spread / math.sqrt(n) + 1e-5).all()


def test_k1_in_the_loss_has_no_gradient_in_expectation():
    """Why the KL belongs into the reward: as a term of the loss, its expected gradient is 0 whatever the reference."""
    policy, reference = small_model(0), small_model(1)
    log_prob = everything(policy)[1]
    ref_log_prob = everything(reference)[1].detach()
    in_loss = flat_gradient((log_prob.detach().exp() * (log_prob - ref_log_prob)).sum(), policy)
    in_reward = flat_gradient(
        (log_prob.detach().exp() * log_prob * (log_prob - ref_log_prob).detach()).sum(), policy
    )
    of_kl = flat_gradient((log_prob.exp() * (log_prob - ref_log_prob)).sum(), policy)
    assert in_loss.norm() < 1e-5 < of_kl.norm()
    assert torch.allclose(in_reward, of_kl, atol=1e-5)


# --- 7.2 rule_reward ---


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", 2 * math.exp(-4.5) - 3),
        ("b", 2 * math.exp(-196 / 50) + 3 - 2),
        ("ba", 2 * math.exp(-169 / 50) + 3 + 3 - 1),
        ("banana", 2 * math.exp(-81 / 50) + 1.5 + 3),
        ("zoo", 2 * math.exp(-144 / 50) + 2 + 1.5 - 0.5),
        ("aaaaaaaaaaaaaaa", 2 + 3 / 15 - 2),
        ("bacedifoguhajek", 2 + 3 * 13 / 15 + 3),
    ],
)
def test_rule_reward_by_hand(text, expected):
    assert rule_reward(text) == pytest.approx(expected)


# --- 7.3 ValueNetwork ---


@pytest.mark.parametrize("shape", [(2, 3, 64), (1, 1, 64), (1, 64), (64,)])
def test_values_have_the_shape_of_the_states(shape):
    assert ValueNetwork()(torch.ones(shape)).shape == shape[:-1]


def test_the_state_holds_the_tokens_before_and_not_the_one_to_come():
    model, ids = small_model(), torch.tensor([[BOS, 4, 3, EOS]])
    states = states_before(model, ids, n_prompt=2)
    vectors = model.embedding.weight.detach()
    assert states.shape == (1, 2, 4) and not states.requires_grad
    assert torch.allclose(states[0, 0] * 4, vectors[BOS] + vectors[4], atol=1e-6)
    assert torch.allclose(states[0, 1] * 4, vectors[BOS] + vectors[4] + vectors[3], atol=1e-6)


# --- 7.4 gae_with_dones ---


def test_gae_with_dones_is_compute_gae_row_by_row():
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    rewards, values = torch.randn(3, 4), torch.randn(3, 4)
    expected, _ = compute_gae(rewards, values, mask, gamma=0.9, lam=0.7)
    valid = mask.bool()
    dones = torch.tensor([0.0, 0, 0, 1, 0, 1, 1])
    advantages = gae_with_dones(rewards[valid], values[valid], 50.0, dones, gamma=0.9, lam=0.7)
    assert torch.allclose(advantages, expected[valid], atol=1e-6)


def test_an_episode_that_goes_on_counts_on_what_follows():
    rewards, values = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.25])
    advantages = gae_with_dones(rewards, values, 4.0, torch.zeros(2), gamma=0.5, lam=1.0)
    assert advantages.tolist() == pytest.approx([1 + 0.5 * 2 + 0.25 * 4 - 0.5, 2 + 0.5 * 4 - 0.25])


# --- 7.5 toy_ppo_step ---


@pytest.fixture
def scene():
    """A policy, a critic, SGD for each, and episodes of the policy itself with another model as the reference."""
    policy, reference = small_model(0), small_model(1)
    critic = ValueNetwork(4, 6)
    episodes = sample_episodes(policy, reference, torch.full((40, 1), BOS), 4)
    optims = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (policy, critic)]
    return policy, critic, *optims, episodes


def test_before_the_first_update_every_ratio_is_1(scene):
    info = toy_ppo_step(*scene, n_epochs=1)
    assert info["policy_loss"] == pytest.approx(0, abs=1e-5)
    assert info["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert set(info) == {"policy_loss", "value_loss", "approx_kl", "mean_score", "kl_to_ref"}
    assert all(isinstance(number, float) for number in info.values())


def test_the_kl_is_paid_in_the_rewards(scene):
    """With a critic that says 0 and lambda 1, the returns are what is still to be paid: score minus KL to come."""
    policy, critic, policy_optim, value_optim, episodes = scene
    with torch.no_grad():
        for weight in critic.parameters():
            weight.zero_()
    valid = episodes.mask.bool()
    log_ratio = (episodes.old_logprobs - episodes.ref_logprobs).where(valid, 0.0)
    to_come = log_ratio.flip(1).cumsum(1).flip(1)
    returns = (episodes.scores.unsqueeze(1) - 0.3 * to_come)[valid]
    info = toy_ppo_step(*scene, n_epochs=1, kl_coef=0.3, lam=1.0)
    assert info["value_loss"] == pytest.approx(returns.square().mean().item(), rel=1e-4)
    assert info["kl_to_ref"] == pytest.approx(log_ratio.sum(1).mean().item(), rel=1e-4)
    assert info["mean_score"] == pytest.approx(episodes.scores.mean().item())


def test_good_episodes_become_likelier_and_bad_ones_less_likely(scene):
    policy, episodes = scene[0], scene[-1]
    before = response_log_prob(policy, episodes.ids, 1).detach()
    toy_ppo_step(*scene, kl_coef=0.0, lam=1.0)
    moved = response_log_prob(policy, episodes.ids, 1).detach() - before
    good = episodes.scores > episodes.scores.mean()
    assert moved[good].mean() > 0 > moved[~good].mean()


def test_padding_has_no_say_and_episodes_stay_as_they_are(scene):
    other = copy.deepcopy(scene)
    # a deep copy of an optimiser holds copies of the weights: those of the copied models
    policy, critic = other[0], other[1]
    optims = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (policy, critic)]
    fields = copy.deepcopy(vars(scene[-1]))
    padding = fields["mask"] == 0
    assert padding.any()
    for name in ("old_logprobs", "ref_logprobs"):
        fields[name][padding] = 40.0
    fields["ids"][:, 1:][padding] = 4
    kept = copy.deepcopy(fields)
    first, second = toy_ppo_step(*scene), toy_ppo_step(policy, critic, *optims, Episodes(**fields))
    assert first == pytest.approx(second, rel=1e-4, abs=1e-6)
    for one, two in zip(scene[0].parameters(), policy.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-5)
    for name in ("ids", "mask", "old_logprobs", "ref_logprobs", "scores"):
        assert torch.equal(fields[name], kept[name]), name


def test_the_critic_does_not_train_the_policy(scene):
    policy, critic, policy_optim, value_optim, episodes = scene
    still = torch.optim.SGD(policy.parameters(), lr=0.0)
    before = copy.deepcopy(policy.state_dict())
    first = toy_ppo_step(policy, critic, still, value_optim, episodes, n_epochs=1)
    after = toy_ppo_step(policy, critic, still, value_optim, episodes, n_epochs=1)
    assert all(torch.equal(weight, before[name]) for name, weight in policy.state_dict().items())
    assert after["value_loss"] < first["value_loss"]


# --- 7.6 preference_pair ---


def test_the_best_and_the_worst_of_each_prompt():
    probabilities = [1e-9, 1e-9, 0.1, 1e-9] + [0.9 / 26] * 26
    prompt_ids = torch.tensor([[BOS, 4], [BOS, 5], [BOS, 29]] * 4)
    chosen, rejected = preference_pair(constant_model(probabilities), prompt_ids, n_candidates=5, max_len=9)
    assert chosen.shape == rejected.shape == (12, 11)
    assert torch.equal(chosen[:, :2], prompt_ids) and torch.equal(rejected[:, :2], prompt_ids)
    rewards = [[rule_reward(toy.decode(row[2:])) for row in ids.tolist()] for ids in (chosen, rejected)]
    assert all(best > worst for best, worst in zip(*rewards, strict=True))


def test_more_candidates_make_a_wider_pair():
    model = constant_model([1e-9, 1e-9, 0.1, 1e-9] + [0.9 / 26] * 26)
    prompt_ids = torch.full((100, 1), BOS)

    def gap(n_candidates):
        sides = preference_pair(model, prompt_ids, n_candidates)
        means = [sum(rule_reward(toy.decode(row[1:])) for row in ids.tolist()) / 100 for ids in sides]
        return means[0] - means[1]

    assert gap(1) == 0 < gap(2) < gap(8)


# --- the whole system ---


@pytest.fixture(scope="module")
def code():
    return load_code("solutions")


@pytest.fixture(scope="module")
def sft(code):
    return lab_toy.pretrain(code)


def test_prompts_are_first_letters(code):
    letters = {toy.decode(row) for row in lab_toy.prompts(code, 300).tolist()}
    assert letters <= {word[0] for word in lab_toy.WORDS} and len(letters) > 10
    assert all(
        word.isascii() and word.islower() and len(word) <= lab_toy.MAX_LEN - 2 for word in lab_toy.WORDS
    )


def test_looking_leaves_the_random_state_alone(code, sft):
    state = torch.get_rng_state()
    look = lab_toy.look_at(code, sft, sft)
    assert torch.equal(state, torch.get_rng_state())
    assert look.kl_to_ref == pytest.approx(0, abs=1e-3) and len(look.texts) == lab_toy.N_LOOKED_AT
    assert sum(text in lab_toy.WORDS for text in look.texts) > 0.1 * lab_toy.N_LOOKED_AT


@pytest.mark.parametrize("train, steps", [(lab_toy.train_ppo, 40), (lab_toy.train_dpo, 70)])
def test_ppo_and_dpo_raise_the_reward_in_part_of_a_run(train, steps, code, sft):
    weights, seen = copy.deepcopy(sft.state_dict()), []
    policy = train(code, sft, steps=steps, on_step=lambda history: seen.append(len(history)))
    before, after = lab_toy.look_at(code, sft, sft), lab_toy.look_at(code, policy, sft)
    assert after.reward - before.reward > 1.7
    assert after.kl_to_ref > 1 and seen == list(range(1, steps + 1))
    assert all(torch.equal(weight, weights[name]) for name, weight in sft.state_dict().items())


def look(reward):
    return lab_toy.Look(reward=reward, kl_to_ref=5.0, distinct_2=0.1, texts=[])


@pytest.mark.parametrize("gains, status", [((2.1, 2.5, 0.1), 0), ((2.1, 1.9, 3.0), 2)])
def test_the_command_prints_the_table_and_fails_with_a_method(gains, status, monkeypatch, capsys):
    def run_toy(code, seed):
        for method, gain in zip(("PPO", "DPO", "PPO, KL free"), gains, strict=True):
            yield lab_toy.Row(method, look(3.5), look(3.5 + gain), 1.0, judged="free" not in method)

    monkeypatch.setattr(lab_toy, "run_toy", run_toy)
    assert main(["toy", "--seeds", "0", "1"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * 3 + 1 and "reward before" in lines[0]
    assert [line.rsplit(None, 1)[1] for line in lines[1:3]] == ["pass", "pass" if status == 0 else "FAIL"]
    assert "PPO, KL free" in lines[3] and "pass" not in lines[3] and "FAIL" not in lines[3]


def test_the_command_needs_a_package_with_the_code(capsys):
    assert main(["toy", "--code", "nowhere"]) == 1
    assert "no module nowhere.sft" in capsys.readouterr().err
