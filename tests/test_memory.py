"""The computed memory beside what autograd keeps and what is alive at the worst moment, counted on a CPU.

The counts see every tensor, whichever device it is on, but not what a kernel or an allocator takes for itself: that is
what the reserve is for, and what only the test on a GPU can tell.
"""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from rlhf_lab import backbones
from rlhf_lab.cli import main
from rlhf_lab.devices import choose_compute, reads_in_float32
from rlhf_lab.errors import LabError
from rlhf_lab.memory import Arithmetic, ModelShape, Workload, format_needs, largest, needs, trained_bytes
from rlhf_lab.passes import in_passes
from rlhf_lab.profiles import GIB, NOMINAL, PROFILE_LENGTH, PROFILES, Profile, choose_profile
from rlhf_lab.taught_code import load_code

WITHIN = 0.15  # of what was counted

SMOLLM2 = LlamaConfig(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True,
)  # fmt: skip
GPT2 = GPT2Config()  # the 124 million parameters of the hub's `gpt2`


def gpt2(width=32, layers=2, heads=4, activation="gelu_new", vocabulary=301):
    return GPT2Config(
        vocab_size=vocabulary, n_positions=128, n_embd=width, n_layer=layers, n_head=heads,
        activation_function=activation, bos_token_id=0, eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )  # fmt: skip


def llama(width=32, layers=2, heads=4, kv_heads=2, tied=True, vocabulary=301):
    return LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=128,
        tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


SHAPES = {
    "gpt2": gpt2(),
    "gpt2 wide": gpt2(width=96, layers=1, heads=3),
    "gpt2 deep": gpt2(width=24, layers=6, heads=2),
    "gpt2 fused gelu": gpt2(activation="gelu_pytorch_tanh"),
    "llama": llama(),
    "llama wide": llama(width=96, layers=1, heads=6, kv_heads=3),
    "llama deep": llama(width=24, layers=6, heads=2, kv_heads=2),
    "llama untied": llama(tied=False),
}
BATCHES = {"few long": (3, 60), "many short": (16, 12)}  # rows and length


@pytest.fixture
def save(tokenizer, tmp_path):
    """A folder with a random model of a config, and the tokenizer."""

    def make(config):
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return make


def storage_of(tensor):
    return tensor.untyped_storage()


def kept_bytes(model, run) -> int:
    """Bytes of the different storages that autograd keeps of `run()`, the parameters' own left out."""
    own = {storage_of(parameter).data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        if storage_of(tensor).data_ptr() not in own:
            kept[storage_of(tensor).data_ptr()] = (
                tensor,
                storage_of(tensor).nbytes(),
            )  # alive: no address is reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = run()
    del output
    return sum(size for _, size in kept.values())


class Alive(TorchDispatchMode):
    """Bytes of the tensors that are made inside, now and at most."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self._seen = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and storage_of(tensor) not in self._seen:
                self._count(storage_of(tensor))
        return result

    def _count(self, storage):
        size = storage.nbytes()
        self._seen.add(storage)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size):
        self.now -= size


def ids_and_mask(rows, length):
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, : length // 3] = 0  # padding, or transformers would leave the mask out
    return torch.randint(1, 300, (rows, length)), mask


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", SHAPES)
def test_what_autograd_keeps_of_a_pass_is_what_is_computed(save, name, batch, dtype):
    """Policy, reward model and language model; without the logits, which have a line of their own."""
    code, folder, shape = load_code("solutions"), save(SHAPES[name]), ModelShape.of(SHAPES[name])
    compute, arithmetic = choose_compute("cpu", dtype), Arithmetic(bf16=dtype == "bfloat16", gpu=False)
    rows, length = BATCHES[batch]
    ids, mask = ids_and_mask(rows, length)
    policy = reads_in_float32(code.ppo.PolicyWithValueHead(str(folder)))
    reward_model = reads_in_float32(code.reward_model.RewardModel(str(folder)))
    language_model = reads_in_float32(backbones.load_causal_lm(folder)).train()
    kept_positions = length // 2
    with compute.autocast():
        counted = {
            "policy": kept_bytes(policy, lambda: policy(ids, mask, logits_to_keep=kept_positions)),
            "reward model": kept_bytes(reward_model, lambda: reward_model(ids, mask)),
            "language model": kept_bytes(
                language_model, lambda: language_model(input_ids=ids, attention_mask=mask).logits
            ),
        }
    computed = {
        "policy": shape.policy_bytes(rows, length, kept_positions, arithmetic),
        "reward model": shape.backbone_bytes(rows, length, arithmetic, training_mode=True),
        "language model": shape.language_model_bytes(rows, length, arithmetic),
    }
    for model, size in computed.items():
        assert size == pytest.approx(counted[model], rel=WITHIN), model


def rollout_of(code, rows, length, response):
    """A batch of random responses: the memory of an update does not depend on what they say."""
    ids, mask = ids_and_mask(rows, length)
    zeros = torch.zeros(rows, response)
    return code.ppo.Rollout(
        ids, mask, zeros - 5, zeros - 5, zeros, torch.ones(rows), torch.ones(rows, response, dtype=torch.long), []
    )  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "at_most"),
    [
        (None, 1.25),
        (Profile("p", 8, 12, rows=4, checkpointing=False), 1.4),
        (Profile("p", 8, 12, rows=4, checkpointing=True), 1.9),
    ],
    ids=["no profile", "passes", "passes and checkpointing"],
)
@pytest.mark.parametrize(
    ("config", "dtype"), [(gpt2(layers=4), "float32"), (llama(layers=4), "bfloat16")], ids=["gpt2", "llama"]
)
def test_the_computed_need_of_an_update_is_an_upper_bound_and_a_near_one(
    save, config, dtype, profile, at_most
):
    """All that `ppo_step` has alive at its worst moment: gradients, moments, activations, logits."""
    code, folder, shape = load_code("solutions"), save(config), ModelShape.of(config)
    compute, rows, prompt, response = choose_compute("cpu", dtype), 12, 30, 18
    policy = reads_in_float32(code.ppo.PolicyWithValueHead(str(folder)))
    optim = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
    batch = rollout_of(code, rows, prompt + response, response)
    with compute.autocast(), in_passes(profile, policy), Alive() as alive:
        code.ppo.ppo_step(policy, optim, batch, ppo_epochs=2)
    work = Workload(rows, prompt, response, 4, 4, 32, reward_model=True)
    parts = needs(shape, work, profile, Arithmetic(dtype == "bfloat16", gpu=False))["ppo"].parts
    computed = sum(
        parts[name]
        for name in ("policy: gradients", "policy: AdamW's two moments", "activations of one pass",
                     "gradients on their way through a layer", "logits of the batch")
    )  # fmt: skip
    assert alive.most <= computed <= at_most * alive.most


@pytest.mark.parametrize("name", SHAPES)
def test_weights_gradients_and_moments_are_counted_exactly(save, name):
    code, folder, shape = load_code("solutions"), save(SHAPES[name]), ModelShape.of(SHAPES[name])
    models = {
        "policy": (code.ppo.PolicyWithValueHead(str(folder)), shape.policy_parameters),
        "reward model": (code.reward_model.RewardModel(str(folder)), shape.reward_parameters),
        "language model": (backbones.load_causal_lm(folder), shape.parameters),
    }
    for which, (model, computed) in models.items():
        assert sum(parameter.numel() for parameter in model.parameters()) == computed, which
    policy = models["policy"][0]
    optim = torch.optim.AdamW(policy.parameters(), fused=True)
    sum(parameter.sum() for parameter in policy.parameters()).backward()
    optim.step()
    counted = {
        "weights": sum(parameter.nbytes for parameter in policy.parameters()),
        "gradients": sum(parameter.grad.nbytes for parameter in policy.parameters()),
        "AdamW's two moments": sum(
            state[moment].nbytes for state in optim.state.values() for moment in ("exp_avg", "exp_avg_sq")
        ),
    }
    assert trained_bytes(shape.policy_parameters) == counted


def test_the_cache_of_generation_is_counted(save):
    config = llama()
    model, shape = backbones.load_causal_lm(save(config)), ModelShape.of(config)
    ids, mask = ids_and_mask(3, 20)
    with torch.no_grad():
        cache = model(input_ids=ids, attention_mask=mask, use_cache=True).past_key_values
    counted = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert shape.cache_bytes(3, 20) == counted


def workload_for(profile):
    return Workload(
        profile.batch, PROFILE_LENGTH, PROFILE_LENGTH, sft_batch=16, rm_batch=32, max_len=2 * PROFILE_LENGTH,
        reward_model=True,
    )  # fmt: skip


@pytest.mark.parametrize("config", [GPT2, SMOLLM2], ids=["gpt2", "smollm2"])
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_each_profile_fits_its_card_with_the_reserve(profile, config):
    shape = ModelShape.of(config)
    assert 124e6 < shape.parameters < 135e6
    need = largest(needs(shape, workload_for(profile), profile, Arithmetic(bf16=True, gpu=True))).total
    assert need <= NOMINAL * profile.card * GIB
    for smaller in (other for other in PROFILES.values() if other.card < profile.card):
        assert need > NOMINAL * smaller.card * GIB, "a smaller card would do"


def test_auto_takes_the_largest_profile_whose_card_and_need_fit():
    need = {"24gb": 18 * GIB, "16gb": 11 * GIB, "8gb": 6 * GIB}

    def chosen(free, total):
        profile = choose_profile("auto", (int(free * GIB), int(total * GIB)), lambda p: need[p.name])
        return profile.name

    assert chosen(139, 140) == "24gb"
    assert chosen(23, 23.6) == "24gb"
    assert chosen(12, 23.6) == "16gb", "something else is using the card"
    assert chosen(15, 15.7) == "16gb"
    assert chosen(7.5, 7.8) == "8gb"
    assert chosen(3, 3.9) == "8gb", "the smallest where none fits"


def test_a_cpu_has_no_profile_unless_one_is_asked_for():
    assert choose_profile("auto", None, lambda _: 0) is None
    assert choose_profile("none", (10 * GIB, 24 * GIB), lambda _: 0) is None
    assert choose_profile("8gb", None, lambda _: 0) is PROFILES["8gb"]
    with pytest.raises(LabError, match="there is no profile '12gb': use auto, 24gb, 16gb, 8gb or none"):
        choose_profile("12gb", None, lambda _: 0)


def test_the_table_names_each_part_the_total_and_the_card(save):
    shape = ModelShape.of(llama())
    found = needs(shape, Workload(4, 8, 8, 4, 4, 16, True), None, Arithmetic(True, gpu=True))
    text = format_needs("title", found, (3 * GIB, 8 * GIB))
    most = largest(found)
    shown = sum(
        float(line.split()[-2].replace(",", "")) for line in text.splitlines() if line.endswith("MiB")
    )
    assert shown == pytest.approx(2 * most.total / 2**20, abs=10), (
        "the parts and the reserve add up to the total"
    )
    assert "the GPU has 3.0 GiB free of 8.0 GiB" in text


def test_the_command_needs_no_gpu(capsys):
    assert main(["memory", "--backbone", "tiny", "--batch", "8"]) == 0
    all_profiles = capsys.readouterr().out
    assert "8 responses of 24 tokens" in all_profiles and all(name in all_profiles for name in PROFILES)
    assert main(["memory", "--backbone", "tiny", "--profile", "8gb"]) == 0
    assert "a card of 8 GB keeps" in capsys.readouterr().out
    assert main(["memory", "--profile", "12gb"]) == 1
    assert "there is no profile '12gb'" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("profile", [None, *PROFILES.values()], ids=["none", *PROFILES])
def test_a_gpu_allocates_what_is_computed(save, profile):
    """`max_memory_allocated` counts tensors, not context and fragmentation, which are the reserve's."""
    config = llama(width=384, layers=12, heads=6, kv_heads=3, vocabulary=20000)
    code, folder, shape = load_code("solutions"), save(config), ModelShape.of(config)
    compute, rows, prompt, response = choose_compute("cuda", "bfloat16"), 48, 40, 40
    torch.cuda.reset_peak_memory_stats()
    policy = reads_in_float32(code.ppo.PolicyWithValueHead(str(folder)).cuda())
    optim = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
    batch = rollout_of(code, rows, prompt + response, response)
    batch = code.ppo.Rollout(*(value.cuda() for value in list(vars(batch).values())[:-1]), [])
    with compute.autocast(), in_passes(profile, policy):
        code.ppo.ppo_step(policy, optim, batch, ppo_epochs=2)
    work = Workload(rows, prompt, response, 4, 4, 32, reward_model=False)
    parts = needs(shape, work, profile, Arithmetic(True, gpu=True))["ppo"].parts
    computed = sum(size for name, size in parts.items() if name != "reference: weights")
    assert 0.9 * torch.cuda.max_memory_allocated() <= computed <= 1.8 * torch.cuda.max_memory_allocated()
