"""Exercises 8.1 to 8.3: estimators of the KL, the controller of its price, and the trainer around PPO."""

import copy
import json
import math
import runpy
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from rlhf_lab.backbones import load_tokenizer
from rlhf_lab.checkpoints import SFT
from solutions import ppo, trainer
from solutions.trainer import (
    AdaptiveKLController,
    AutoModelForCausalLMWithValueHead,
    PPOConfig,
    PPOTrainer,
    kl_k1,
    kl_k2,
    kl_k3,
)

ESTIMATORS = [kl_k1, kl_k2, kl_k3]

# --- 8.1 the estimators ---


@pytest.mark.parametrize("estimator", [kl_k1, kl_k3])
def test_over_a_whole_vocabulary_k1_and_k3_are_the_kl(estimator):
    policy, reference = torch.randn(2, 5, 50, dtype=torch.float64).mul(2).softmax(-1)
    expected = (policy * (policy / reference).log()).sum(-1)
    found = (policy * estimator(policy.log(), reference.log())).sum(-1)
    assert torch.allclose(found, expected)


@pytest.mark.parametrize(
    "log_ratio, k1, k2, k3", [(1.0, 1.0, 0.5, 1 / math.e), (-1.0, -1.0, 0.5, math.e - 2)]
)
def test_known_values(log_ratio, k1, k2, k3):
    logprobs, ref_logprobs = torch.tensor([-1.5]), torch.tensor([-1.5 - log_ratio])
    found = [estimator(logprobs, ref_logprobs).item() for estimator in ESTIMATORS]
    assert found == pytest.approx([k1, k2, k3])


@pytest.mark.parametrize("distance, bias_of_k2", [(0.1, 0.0025), (1.0, 0.25)])
def test_bias_and_spread_between_two_normal_distributions(distance, bias_of_k2):
    """With the distance d, the KL is d^2 / 2; k2 has the mean d^2 / 2 + d^4 / 8."""
    samples = torch.randn(1_000_000, dtype=torch.float64)
    logprobs, ref_logprobs = -0.5 * samples**2, -0.5 * (samples - distance) ** 2
    k1, k2, k3 = (estimator(logprobs, ref_logprobs) / (distance**2 / 2) for estimator in ESTIMATORS)
    assert k1.mean().item() == pytest.approx(1, abs=0.06)
    assert k3.mean().item() == pytest.approx(1, abs=0.01)
    assert k2.mean().item() == pytest.approx(1 + bias_of_k2, abs=0.01)
    assert k1.std() > 1.1 * k3.std()
    assert (k1 < 0).any() and not (k2 < 0).any() and not (k3 < 0).any()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_an_estimator_is_elementwise_and_leaves_its_arguments_alone(estimator):
    pair = torch.randn(2, 3, 4).unbind()
    before = [x.clone() for x in pair]
    whole = estimator(*pair)
    assert whole.shape == (3, 4)
    assert torch.allclose(whole[1:, :2], estimator(pair[0][1:, :2], pair[1][1:, :2]))
    assert all(map(torch.equal, pair, before))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradient_reaches_both_arguments(estimator):
    pair = [x.double().requires_grad_() for x in torch.randn(2, 6)]
    assert torch.autograd.gradcheck(estimator, pair)


def test_k3_keeps_its_digits_near_zero():
    near = torch.tensor([1e-4], dtype=torch.float64)
    assert kl_k3(near, 0 * near).item() == pytest.approx(5e-9, rel=1e-3)
    assert kl_k3(near.float(), 0 * near.float()).item() >= 0


# --- 8.2 the controller ---


@pytest.mark.parametrize(
    "kl, factor", [(6.0, 1.0), (6.6, 1.01), (60.0, 1.02), (5.4, 0.99), (0.0, 0.98), (-3.0, 0.98)]
)
def test_one_update(kl, factor):
    controller = AdaptiveKLController(0.3, target=6.0, horizon=1000)
    assert controller.value == 0.3
    controller.update(kl, n_steps=100)
    assert controller.value == pytest.approx(0.3 * factor)


def test_updates_go_on_from_the_last_one():
    controller = AdaptiveKLController(0.3, target=6.0, horizon=1000)
    for _ in range(10):
        controller.update(12.0, n_steps=100)
    assert controller.value == pytest.approx(0.3 * 1.02**10)
    for _ in range(10):
        controller.update(0.0, n_steps=100)
    assert controller.value == pytest.approx(0.3 * 1.02**10 * 0.98**10)


def test_a_loop_is_held_at_its_target():
    """A KL that is the larger, the cheaper it is."""
    controller, kl = AdaptiveKLController(0.5, target=4.0, horizon=500), 0.0
    for _ in range(400):
        kl = 1.0 / controller.value
        controller.update(kl, n_steps=50)
    assert kl == pytest.approx(4.0, rel=0.01)


# --- 8.3 the configuration ---


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"batch_size": 6, "mini_batch_size": 4}, "batch_size 6 is not a multiple of mini_batch_size 4"),
        (
            {"batch_size": 8, "mini_batch_size": 4, "gradient_accumulation_steps": 3},
            "gradient_accumulation_steps 3",
        ),
        ({"kl_penalty": "full"}, "kl_penalty is 'full'"),
        ({"log_with": "wandb"}, "log_with is 'wandb'"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        PPOConfig(**settings)


# --- 8.3 PPOTrainer ---

PAIRS = [
    ("the soup", " was warm and the room"),
    ("there is a garden", " and rain"),
    ("kindness", " is rare"),
    ("今天的", "很好喝"),
]
SCORES = [1.0, -0.5, 0.7, 2.0]
PLAIN = {"batch_size": 4, "mini_batch_size": 4, "ppo_epochs": 1, "adap_kl_ctrl": False, "max_grad_norm": 1e9}


@pytest.fixture
def batch(padded_tokenizer):
    """Queries, responses of different lengths and scores."""

    def ids(text: str) -> torch.Tensor:
        return padded_tokenizer.encode(text, return_tensors="pt")[0]

    scores = [torch.tensor(score) for score in SCORES]
    return [ids(query) for query, _ in PAIRS], [ids(response) for _, response in PAIRS], scores


@pytest.fixture
def make(model_folder, padded_tokenizer):
    """A trainer on a small model, with an optimiser that only looks unless it has a learning rate; the reference is another
    model than the policy."""

    def made(lr: float = 0.0, **settings) -> PPOTrainer:
        torch.manual_seed(5)
        policy = AutoModelForCausalLMWithValueHead.from_pretrained(str(model_folder))
        torch.nn.init.normal_(policy.value_head[-1].weight, std=0.3)
        reference = copy.deepcopy(policy)
        with torch.no_grad():
            for weight in reference.parameters():
                weight += 0.02 * torch.randn_like(weight)
        optimizer = torch.optim.SGD(policy.parameters(), lr=lr)
        return PPOTrainer(PPOConfig(**PLAIN | settings), policy, reference, padded_tokenizer, optimizer)

    return made


def gradient(of: PPOTrainer) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in of.model.parameters() if weight.grad is not None])


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in model.parameters()]


def test_one_pass_over_the_whole_batch_is_a_ppo_step(make, batch):
    """Stage 3's own step on the same text moves the policy to the same place."""
    ours = make(lr=0.1, vf_coef=0.5, init_kl_coef=0.3, ppo_epochs=3, max_grad_norm=1.0)
    theirs = make(lr=0.1)
    ids, full_mask, mask, scores = theirs._batch(*batch)
    with torch.no_grad():
        logprobs, values = ppo.response_logprobs_and_values(theirs.model, ids, full_mask, mask.shape[1])
        ref_logprobs, _ = ppo.response_logprobs_and_values(theirs.ref_model, ids, full_mask, mask.shape[1])
    rollout = ppo.Rollout(ids, full_mask, logprobs, ref_logprobs, values, scores, mask, [""] * 4)
    info = ppo.ppo_step(theirs.model, theirs.optimizer, rollout, ppo_epochs=3, kl_coef=0.3)
    stats = ours.step(*batch)
    assert all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip(weights(ours.model), weights(theirs.model), strict=True)
    )
    assert stats["ppo/kl"] == stats["objective/kl"] == pytest.approx(info["kl_to_ref"], abs=1e-5)
    assert stats["ppo/mean_scores"] == pytest.approx(info["mean_reward"])


@pytest.mark.parametrize("mini, accumulated", [(1, 4), (2, 2)])
def test_accumulated_gradients_are_the_gradient_of_the_batch(make, batch, mini, accumulated):
    whole, parts = make(), make(mini_batch_size=mini, gradient_accumulation_steps=accumulated)
    whole.step(*batch)
    parts.step(*batch)
    assert gradient(whole).norm() > 0.01
    assert torch.allclose(gradient(whole), gradient(parts), atol=1e-5)


def test_before_the_first_update_every_ratio_is_one(make, batch):
    stats = make().step(*batch)
    assert abs(stats["ppo/policy/approxkl"]) < 1e-6 and stats["ppo/policy/clipfrac"] == 0
    stats = make(lr=0.05, mini_batch_size=1).step(*batch)
    assert stats["ppo/policy/approxkl"] > 1e-5


def test_the_reference_stays_and_the_policy_moves(make, batch):
    ours = make(lr=0.1)
    policy, reference = weights(ours.model), weights(ours.ref_model)
    ours.step(*batch)
    assert not all(map(torch.equal, policy, weights(ours.model)))
    assert all(map(torch.equal, reference, weights(ours.ref_model)))
    assert not any(weight.requires_grad for weight in ours.ref_model.parameters())


def test_without_a_reference_a_copy_of_the_policy_is_taken(make, batch, padded_tokenizer):
    policy = make().model
    ours = PPOTrainer(PPOConfig(**PLAIN), policy, tokenizer=padded_tokenizer)
    assert ours.ref_model is not policy
    assert ours.step(*batch)["ppo/kl"] == pytest.approx(0, abs=1e-5)
    assert isinstance(ours.optimizer, torch.optim.Adam)


def test_each_score_lands_on_its_own_response(make, batch):
    """The response with the highest score becomes more likely, and the one with the lowest less."""
    ours = make(lr=0.02, init_kl_coef=0.0, vf_coef=0.0, cliprange=9.0, ppo_epochs=2)
    ids, full_mask, mask, _ = ours._batch(*batch)

    @torch.no_grad()
    def logprobs() -> torch.Tensor:
        found, _ = ppo.response_logprobs_and_values(ours.model, ids, full_mask, mask.shape[1])
        return (found * mask).sum(-1)

    before = logprobs()
    ours.step(*batch)
    change = logprobs() - before
    assert change[3] > 0 > change[1]


@pytest.mark.parametrize("times, updates", [(1.4, 4), (1.6, 2)])
def test_target_kl_ends_an_update_at_one_and_a_half(make, batch, times, updates):
    moved = 2 * make(lr=0.02, ppo_epochs=2).step(*batch)["ppo/policy/approxkl"]
    ours, steps = make(lr=0.02, ppo_epochs=4, target_kl=moved / times), []
    ours.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    ours.step(*batch)
    assert len(steps) == updates if updates == 2 else len(steps) > 2


def test_the_price_adapts_and_is_charged_in_the_next_step(make, batch):
    ours = make(adap_kl_ctrl=True, init_kl_coef=0.4, target=1e-3, horizon=40)
    first, second = ours.step(*batch), ours.step(*batch)
    assert abs(first["ppo/kl"]) > 1e-3
    factor = 1 + math.copysign(0.2, first["ppo/kl"]) * 4 / 40
    assert first["objective/kl_coef"] == 0.4
    assert second["objective/kl_coef"] == pytest.approx(0.4 * factor)
    assert ours.kl_ctl.value == pytest.approx(0.4 * factor**2)
    fixed = make(init_kl_coef=0.4)
    fixed.step(*batch)
    assert fixed.kl_ctl.value == 0.4


@pytest.mark.parametrize("missing", ["queries", "responses", "scores"])
def test_lists_of_the_wrong_length_are_refused_and_nothing_moves(make, batch, missing):
    ours = make(lr=0.1)
    before = weights(ours.model)
    place = ("queries", "responses", "scores").index(missing)
    with pytest.raises(ValueError, match=f"{missing}: 3 of them, and batch_size is 4"):
        ours.step(*[given[:3] if i == place else given for i, given in enumerate(batch)])
    assert all(map(torch.equal, before, weights(ours.model)))


def test_rows_and_responses_with_their_query_are_understood(make, batch):
    queries, responses, scores = batch
    plain, rows = make(), make()
    plain.step(*batch)
    whole = [torch.cat([query, response])[None] for query, response in zip(queries, responses, strict=True)]
    rows.step([query[None] for query in queries], whole, [float(score) for score in scores])
    assert torch.allclose(gradient(plain), gradient(rows), atol=1e-6)


def test_a_response_that_begins_like_its_query_by_chance_stays_whole(make, batch):
    queries, responses, scores = batch
    ours = make()
    repeats = [torch.cat([queries[0], responses[0]]), *responses[1:]]
    full_ids, _, mask, _ = ours._batch(queries, repeats, scores)
    assert mask[0].sum() == len(queries[0]) + len(responses[0])
    assert torch.equal(full_ids[0, -mask.shape[1] :][mask[0].bool()], repeats[0])


def test_a_list_is_answered_as_each_query_alone(make, batch, padded_tokenizer):
    ours, queries = make(), batch[0]
    settings = {"max_new_tokens": 6, "do_sample": False}
    together = ours.generate(queries, **settings)
    responses = ours.generate(queries, return_prompt=False, **settings)
    for query, full, response in zip(queries, together, responses, strict=True):
        alone = ours.generate(query, **settings)
        assert alone.ndim == 2 and torch.equal(alone[0], full)
        assert torch.equal(full, torch.cat([query, response]))
        assert not (response[:-1] == padded_tokenizer.eos_token_id).any()


def test_what_is_read_of_a_sampled_response_is_what_was_sampled(make, batch):
    """Greedy responses are the likeliest tokens: the trainer's batch gives them their log-probabilities."""
    ours = make()
    full = ours.generate(batch[0], max_new_tokens=5, do_sample=False)
    ids, full_mask, mask, _ = ours._batch(batch[0], full, batch[2])
    with torch.no_grad():
        logprobs, _ = ppo.response_logprobs_and_values(ours.model, ids, full_mask, mask.shape[1])
        likeliest = [ours.model.lm(row[None]).logits[0].log_softmax(-1).max(-1).values for row in full]
    for row, query in enumerate(batch[0]):
        n = int(mask[row].sum())
        assert torch.allclose(logprobs[row, :n], likeliest[row][len(query) - 1 : -1], atol=1e-4)


def test_stats_are_floats_under_the_old_names(make, batch):
    stats = make(lr=0.02, mini_batch_size=2, ppo_epochs=2).step(*batch)
    assert {type(value) for value in stats.values()} == {float}
    assert all(map(math.isfinite, stats.values()))
    assert {
        "ppo/kl", "objective/kl", "objective/kl_coef", "objective/entropy", "ppo/mean_scores", "ppo/std_scores",
        "ppo/mean_non_score_reward", "ppo/loss/policy", "ppo/loss/value", "ppo/loss/total", "ppo/policy/approxkl",
        "ppo/policy/clipfrac", "ppo/returns/mean", "ppo/returns/var", "ppo/val/mean", "ppo/val/var", "ppo/val/error",
        "ppo/val/var_explained", "ppo/learning_rate", "tokens/queries_len_mean", "tokens/responses_len_mean",
    } == set(stats)  # fmt: skip
    assert stats["ppo/mean_scores"] == pytest.approx(sum(SCORES) / 4)
    assert stats["ppo/loss/total"] == pytest.approx(stats["ppo/loss/policy"] + 0.1 * stats["ppo/loss/value"])
    n_query, n_response = (sum(map(len, given)) / 4 for given in batch[:2])
    assert (stats["tokens/queries_len_mean"], stats["tokens/responses_len_mean"]) == (n_query, n_response)
    price = -stats["objective/kl_coef"] * stats["objective/kl"] / n_response
    assert stats["ppo/mean_non_score_reward"] == pytest.approx(price, abs=1e-6)


def test_stats_are_written_for_tensorboard_step_by_step(make, batch, tmp_path):
    ours = make(log_with="tensorboard", log_dir=str(tmp_path / "log"))
    history = [ours.step(*batch) for _ in range(2)]
    events = EventAccumulator(str(tmp_path / "log")).Reload()
    assert set(events.Tags()["scalars"]) == set(history[0])
    for name in history[0]:
        written = [(event.step, event.value) for event in events.Scalars(name)]
        assert written == [(i, pytest.approx(stats[name], rel=1e-5)) for i, stats in enumerate(history)]


def test_nothing_is_written_unless_asked(make, batch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make().step(*batch)
    assert not list(tmp_path.iterdir())


# --- a program in the style of the old library ---

PROGRAM = Path(__file__).parent / "programs" / "old_style.py"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A random DistilBERT with two labels and the course's tokenizer."""
    folder, tokenizer = tmp_path_factory.mktemp("classifier"), load_tokenizer(SFT)
    tokenizer.pad_token = tokenizer.eos_token
    labels = {0: "NEGATIVE", 1: "POSITIVE"}
    config = DistilBertConfig(
        vocab_size=len(tokenizer), dim=32, n_layers=1, n_heads=2, hidden_dim=64, max_position_embeddings=64,
        id2label=labels, label2id={label: i for i, label in labels.items()}, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    DistilBertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("reward", ["classifier", "stand-in"])
def test_an_old_program_runs_in_both_ways(reward, classifier, tmp_path, monkeypatch, capsys):
    where = classifier if reward == "classifier" else tmp_path / "no such folder"
    monkeypatch.setattr("sys.argv", [PROGRAM.name, str(SFT), str(tmp_path / "log"), str(where)])
    runpy.run_path(str(PROGRAM))
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["reward"] == reward and len(found["history"]) == 3
    for step in found["history"]:
        assert step["stats"]["ppo/mean_scores"] == pytest.approx(step["mean score"], abs=1e-6)
        assert math.isfinite(step["stats"]["ppo/kl"])
    assert found["history"][0]["stats"]["ppo/kl"] == pytest.approx(0, abs=1e-5)
    assert list((tmp_path / "log").iterdir())


def test_the_names_of_the_old_library_are_there():
    assert issubclass(AutoModelForCausalLMWithValueHead, ppo.PolicyWithValueHead)
    model = AutoModelForCausalLMWithValueHead.from_pretrained(str(SFT))
    assert model.device == torch.device("cpu")
    out = model.generate(torch.tensor([[5, 9]]), max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert out.shape[0] == 1 and out.shape[1] > 2
    assert trainer.PPOTrainer.log_stats(None, {}, {}, []) is None
