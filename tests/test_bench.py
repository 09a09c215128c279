"""The bench: naive loop and taught code do the same work, the floor is counted right; speed is not tested."""

import copy
import dataclasses
import functools
import json
import statistics
import time
from types import SimpleNamespace

import pytest
import torch

from rlhf_lab import bench
from rlhf_lab.bench import PHASES, ModelSize, Subject
from rlhf_lab.devices import choose_compute
from rlhf_lab.errors import LabError
from rlhf_lab.taught_code import TaughtCode, load_code

CPU = choose_compute("cpu")
PROMPTS = ["there", "the weather is", "今天的天气", "the soup was warm and"]
NEW_TOKENS = 6


@pytest.fixture
def code():
    return load_code("solutions")


@pytest.fixture
def subject(code, model_folder):
    return Subject.load(code, model_folder, CPU)


@pytest.fixture
def both_rollouts(code, subject, monkeypatch):
    """The taught rollout of four responses without EOS, and what the naive loop says about the same rows."""
    with torch.no_grad():  # a value head that says something, and a reference that differs from the policy
        subject.policy.value_head[-1].weight.normal_()
        for parameter in subject.reference.parameters():
            parameter.mul_(1.05)
    lm = subject.policy.lm
    monkeypatch.setattr(lm, "generate", functools.partial(lm.generate, min_new_tokens=NEW_TOKENS))
    taught = code.ppo.rollout(
        subject.policy, subject.reference, subject.reward_model, subject.tokenizer, PROMPTS, NEW_TOKENS
    )
    subject.policy.eval()
    rows = [ids[valid.bool()] for ids, valid in zip(taught.full_ids, taught.full_mask, strict=True)]
    return taught, bench.naive_score(subject, rows, NEW_TOKENS)


def test_naive_and_taught_code_read_the_same_numbers_from_one_batch(both_rollouts):
    taught, naive = both_rollouts
    assert len({len(ids) for ids in naive.rows}) > 1, "rows of one length would not test the padding"
    for name in ("old_logprobs", "ref_logprobs", "old_values", "rm_score"):
        torch.testing.assert_close(getattr(naive, name), getattr(taught, name), atol=1e-4, rtol=0)


def test_naive_and_taught_updates_have_the_same_losses_and_weights(code, subject, both_rollouts):
    taught, naive = both_rollouts
    twin = copy.deepcopy(subject)
    twin.optim = torch.optim.SGD(twin.policy.parameters(), lr=0.05)
    subject.optim = torch.optim.SGD(subject.policy.parameters(), lr=0.05)

    taught_info = code.ppo.ppo_step(subject.policy, subject.optim, taught, ppo_epochs=bench.PPO_EPOCHS)
    naive_info = bench.naive_update(code, twin, naive)

    assert taught_info["approx_kl"] > 1e-4, "without a real step the comparison would be empty"
    for name, value in naive_info.items():
        assert value == pytest.approx(taught_info[name], abs=1e-4), name
    for ours, theirs in zip(subject.policy.parameters(), twin.policy.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_naive_generation_keeps_the_prompt_and_goes_on_to_the_limit(subject):
    prompt_ids = subject.tokenizer(PROMPTS[1]).input_ids
    ids = bench.naive_generate(subject.policy.lm, prompt_ids, 30, subject.tokenizer.eos_token_id).tolist()
    assert ids[: len(prompt_ids)] == prompt_ids
    assert len(ids) == len(prompt_ids) + 30
    assert subject.tokenizer.eos_token_id not in ids[len(prompt_ids) :]


def test_model_size_of_gpt2(code, gpt2_folder):
    policy = code.ppo.PolicyWithValueHead(str(gpt2_folder))
    vocabulary = policy.lm.config.vocab_size
    # a layer: 32 x 96 queries, keys and values, 32 x 32 output, 32 x 128 and back
    assert ModelSize.of(policy, torch.float32) == ModelSize(
        layers=2, width=32, backbone=2 * (32 * 96 + 32 * 32 + 2 * 32 * 128), lm_head=32 * vocabulary,
        value_head=32 * 32 + 32, bytes_per_weight=4,
    )  # fmt: skip


def test_model_size_of_llama(code, llama_folder):
    policy = code.ppo.PolicyWithValueHead(str(llama_folder))
    vocabulary = policy.lm.config.vocab_size
    # a layer: 32 x 32 queries and output, 32 x 16 keys and values, three of 32 x 48; the head is not tied
    assert ModelSize.of(policy, torch.float32) == ModelSize(
        layers=2, width=32, backbone=2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48), lm_head=32 * vocabulary,
        value_head=32 * 32 + 32, bytes_per_weight=4,
    )  # fmt: skip


def test_a_weight_is_read_in_the_precision_in_which_it_is_multiplied(code, gpt2_folder):
    policy = code.ppo.PolicyWithValueHead(str(gpt2_folder))
    in_float32, in_bfloat16 = (ModelSize.of(policy, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert policy.lm.get_output_embeddings().weight.dtype == torch.float32, "autocast leaves them as they are"
    assert in_bfloat16.bytes_to_read * 2 == in_float32.bytes_to_read


def test_the_rate_is_that_of_the_models_own_shape_on_a_cpu_and_of_a_large_one_on_a_gpu():
    assert bench.measured_shape(torch.device("cpu"), 500, 32) == (500, 32, 128)
    assert bench.measured_shape(torch.device("cuda"), 500, 32) == bench.GPU_SHAPE


def test_the_floor_against_a_count_by_hand():
    size = ModelSize(layers=3, width=10, backbone=1000, lm_head=70, value_head=7, bytes_per_weight=4)
    # 4 tokens see 1 + 2 + 3 + 4 = 10 tokens; 2 of them have an LM head, 1 a value head
    assert bench.forward_flops(size, 4, 2, 1) == 2 * (4 * 1000 + 2 * 70 + 1 * 7) + 4 * 3 * 10 * 10

    # one prompt of 3 tokens and 2 new ones: 4 tokens are read to predict both, the reward model reads all 5
    language_model = 2 * (4 * 1000 + 2 * 70) + 4 * 3 * 10 * 10
    policy = language_model + 2 * 2 * 7
    reward_model = 2 * 5 * 1000 + 4 * 3 * 10 * 15
    assert bench.step_work(size, [3], new_tokens=2, ppo_epochs=4) == {
        "generation": (language_model, 2),
        "scoring": (policy + language_model + reward_model, 3),
        "update": (4 * 3 * policy, 8),
    }
    both = bench.step_work(size, [3, 3], new_tokens=2, ppo_epochs=4)
    assert both["update"] == (2 * 4 * 3 * policy, 8), "a second row is more arithmetic and no more passes"


def test_bench_measures_every_phase_and_says_what_it_found(code, gpt2_folder, monkeypatch):
    monkeypatch.setattr(bench, "SECONDS_PER_RATE", 0.01)
    result = bench.bench(
        code, str(gpt2_folder), batch_size=5, new_tokens=NEW_TOKENS, repeats=2, compute=CPU, prompts=PROMPTS
    )
    for seconds in (result.taught, result.naive):
        for repeat in range(2):
            phases = [seconds[phase][repeat] for phase in PHASES]
            assert min(phases) > 0
            assert sum(phases) == pytest.approx(seconds["total"][repeat], rel=0.01)
    for phase in PHASES:
        assert result.floor[phase] >= result.flops[phase] / result.matmul_flops_per_second
    assert result.floor["total"] == pytest.approx(sum(result.floor[phase] for phase in PHASES))
    assert result.response_tokens == 5 * NEW_TOKENS
    assert result.taught_peak_bytes > 0 and result.naive_peak_bytes > 0

    text = bench.format_result(result)
    for phase in (*PHASES, "total"):
        [line] = [line for line in text.splitlines() if line.startswith(phase)]
        assert f"{result.taught_over_floor(phase):.1f}" in line
        assert f"{result.naive_over_taught(phase):.1f}" in line
    assert max(len(line) for line in text.splitlines()) <= 120

    content = json.loads(bench.to_json(result))
    assert content["taught"] == result.taught
    assert content["naive_over_taught"]["total"] == result.naive_over_taught("total")
    seconds = statistics.median(result.taught["generation"])
    assert content["share_of_floor"]["generation"] == pytest.approx(result.floor["generation"] / seconds)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch_size": 0}, "the batch size must be at least 1, and it is 0"),
        ({"new_tokens": 0}, "the number of new tokens must be at least 1, and it is 0"),
        ({"repeats": -1}, "the number of repeats must be at least 1, and it is -1"),
        ({"new_tokens": 60}, "with 60 new ones it does not fit the context of .*, 64 tokens"),
    ],
)
def test_sizes_that_cannot_be_measured_are_refused_in_one_sentence(code, gpt2_folder, sizes, message):
    with pytest.raises(LabError, match=message):
        bench.bench(code, str(gpt2_folder), compute=CPU, prompts=PROMPTS, **sizes)


def other_rollout(code, rollout) -> TaughtCode:
    ppo = SimpleNamespace(rollout=rollout, ppo_step=lambda *args, **kwargs: {})
    return dataclasses.replace(code, package="student", ppo=ppo)


def test_code_that_samples_in_another_way_is_named(code, gpt2_folder):
    subject = Subject.load(code, gpt2_folder, CPU)
    student = other_rollout(code, lambda *args: SimpleNamespace(response_mask=torch.ones(4, NEW_TOKENS)))
    with pytest.raises(LabError, match=r"student\.ppo\.rollout does not call policy\.lm\.generate"):
        bench.taught_step(student, subject, PROMPTS, NEW_TOKENS)


def test_code_that_cuts_responses_short_is_named_and_generate_is_put_back(code, gpt2_folder):
    subject = Subject.load(code, gpt2_folder, CPU)

    def cut_short(*args):
        rollout = code.ppo.rollout(*args)
        rollout.response_mask[0, -1] = 0
        return rollout

    generate = subject.policy.lm.generate
    with pytest.raises(LabError, match=r"student\.ppo\.rollout .* for each of 4 prompts.* counts 23 in all"):
        bench.taught_step(other_rollout(code, cut_short), subject, PROMPTS, NEW_TOKENS)
    assert subject.policy.lm.generate == generate


def test_peak_memory_sees_what_is_given_back():
    def hold_256_mib():
        held = torch.ones(64 * 2**20)
        time.sleep(0.5)  # the watcher has to get its turn on a busy machine
        return held.sum()

    before = bench.peak_memory(lambda: None, CPU.device)
    assert bench.peak_memory(hold_256_mib, CPU.device) - before > 200 * 2**20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_the_floor_on_a_gpu_is_below_what_was_measured(code, gpt2_folder):
    result = bench.bench(code, str(gpt2_folder), new_tokens=NEW_TOKENS, repeats=2, compute=choose_compute())
    assert result.matmul_shape == bench.GPU_SHAPE
    assert all(0 < result.share_of_floor(phase) < 1 for phase in (*PHASES, "total"))
