"""The memory that a run needs, computed from the backbone's config and the settings: no GPU, no weights, no trial.

What a training holds:

- weights, in float32: policy, reference, reward model (a classifier that is the reward instead, too);
- a gradient and AdamW's two moments for each weight that is trained, in float32;
- the activations that the forward pass keeps for the backward pass (`ModelShape.layer_bytes` derives them);
- the gradients that are on their way back through one layer;
- the logits, `[rows, response + 1, vocabulary]` in float32. Taught code sees those of the whole batch, so passes do not
  divide them. Where the backward pass begins there are three copies: the log-probabilities that `log_softmax` keeps, the
  gradient that `gather` gives them, and the gradient of the logits. `cross_entropy` needs four, since `train_sft` holds
  the logits until its next step;
- in generation, the cache of keys and values, and some copies of one position's logits.

A stage's need is the sum of what may be there at one moment, and then the reserve. It is an upper bound: in the backward
pass the last gradients come when the first activations are gone. What is exact, and how near the rest comes to what
autograd keeps, tests/test_memory.py measures on a CPU. On a GPU nothing of it has been measured: see docs/gpu.md.

Kaplan et al. 2020 count weights and operations in the same way; for activations see Korthikanti et al. 2022, "Reducing
activation recomputation in large transformer models", section 4, whose layer in half precision is GPT-2's with an
attention that keeps its probabilities.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

from .profiles import GIB, Profile

FLOAT, HALF = 4, 2  # bytes
MIB = 2**20
CONTEXT_BYTES = GIB // 2  # of the CUDA context and the libraries' workspaces, assumed
FRAGMENTATION = 0.1  # of everything else, assumed: what the allocator holds and cannot hand out
SAMPLED_ROWS = 64  # that the workbench samples or reads at a time: for the judge, for the held-out loss
SAMPLING_COPIES = 4  # of one position's logits: logits, their probabilities, and copies of both


@dataclass(frozen=True)
class Arithmetic:
    """What decides how many bytes a number takes.

    Attributes:
        bf16: matrix products in bfloat16, by autocast.
        gpu: whether it is a GPU's autocast, which raises powers in float32.
        attention: `sdpa`, which is what transformers takes, or `eager`.
    """

    bf16: bool
    gpu: bool
    attention: str = "sdpa"

    @property
    def product(self) -> int:
        """Bytes of a number that goes into a matrix product or comes out of it."""
        return HALF if self.bf16 else FLOAT


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a causal language model.

    Attributes:
        gated: Llama's layer (RMS norms, rotary positions, a gated MLP), as against GPT-2's.
        activation: GPT-2's, since one of them keeps more than the others.
        inner: width of the MLP.
        dropout: whether the model drops out in training mode.
        parameters: of the language model, tied ones once.
        head_parameters: of an LM head that is not tied to the embedding, or 0.
    """

    gated: bool
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    activation: str
    dropout: bool
    parameters: int
    head_parameters: int

    @classmethod
    def of(cls, config) -> "ModelShape":
        """From a transformers config. A family other than GPT-2 is counted as Llama's."""
        import torch
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):  # shapes without memory
            lm = AutoModelForCausalLM.from_config(config)
        gpt2 = config.model_type == "gpt2"
        heads = config.num_attention_heads
        head = lm.get_output_embeddings().weight
        return cls(
            gated=not gpt2,
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            inner=getattr(config, "n_inner" if gpt2 else "intermediate_size", None) or 4 * config.hidden_size,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocabulary=config.vocab_size,
            activation=config.activation_function if gpt2 else "",
            dropout=gpt2 and max(config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) > 0,
            parameters=sum(parameter.numel() for parameter in lm.parameters()),
            head_parameters=0 if head is lm.get_input_embeddings().weight else head.numel(),
        )

    @property
    def policy_parameters(self) -> int:
        """With the value head: a square layer, and one number."""
        return self.parameters + self.hidden**2 + 2 * self.hidden + 1

    @property
    def reward_parameters(self) -> int:
        """Without an LM head, and with one number that is read."""
        return self.parameters - self.head_parameters + self.hidden

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Weights in the matrix products of a layer."""
        kv_width = self.kv_heads * self.head_dim
        attention = 2 * self.hidden * self.attention_width + 2 * self.hidden * kv_width
        return attention + (3 if self.gated else 2) * self.hidden * self.inner

    def layer_bytes(self, tokens: int, length: int, arithmetic: Arithmetic, cached: bool = False) -> int:
        """What one layer keeps for the backward pass, its input included.

        With `H` hidden, `A` heads times head size, `I` inner width, 4 bytes for float32 and `p` bytes for what a matrix
        product reads and writes (4, or 2 in bfloat16), a token costs

        | | GPT-2 | Llama |
        |---|---|---|
        | norms: their inputs, the residual stream | `2 * 4 H` | `2 * 4 H` |
        | norms: the normalised input, which Llama's multiplies by hand | | `2 * 4 H` |
        | inputs of the products that read a norm (each makes its own copy in bfloat16) | `2 p H` | `2 p H`, bfloat16 `5 p H` |
        | queries, keys, values; of Llama repeated for each head | `3 p A` | `3 p A` |
        | output of the attention, input of the next product | `p A` | `p A` |
        | attention: a float of `sdpa` for each head, or `eager`'s probabilities for each token seen | | |
        | MLP: in and out of the activation; Llama's gate and product as well | `2 p I` | `4 p I` |

        and statistics of the norms. `gelu_new` is written out in five operations, each of which keeps something: see
        `_activation_bytes`. Under autocast each product keeps its own copy of its weights in bfloat16 as well, once a
        pass, since autocast's cache is off (`Compute.autocast`).

        Args:
            tokens: of all rows together, padding included.
            length: of a row.
            cached: the layer is called with a cache (transformers' default, which `train_sft` does not turn off):
                GPT-2's keys and values are kept in its three-in-one product and in the cache.
        """
        p = arithmetic.product
        norms = (4 if self.gated else 2) * FLOAT * self.hidden + (2 if self.gated else 4) * FLOAT
        own_copies = 5 if self.gated and arithmetic.bf16 else 2
        attention = 4 * p * self.attention_width
        if cached and not self.gated:
            attention += 2 * p * self.attention_width
        if arithmetic.attention == "sdpa":
            attention += FLOAT * self.heads
        else:
            attention += self.heads * length * (FLOAT + HALF if arithmetic.bf16 else FLOAT)
        mlp = 4 * p * self.inner if self.gated else self._activation_bytes(arithmetic) * self.inner
        a_token = norms + own_copies * p * self.hidden + attention + mlp
        return tokens * a_token + (HALF * self.layer_weights if arithmetic.bf16 else 0)

    def _activation_bytes(self, arithmetic: Arithmetic) -> int:
        """GPT-2's activation with its input and output, for each number of the MLP's width.

        `gelu_new(x) = 0.5 x * (1 + tanh(c (x + 0.044715 x^3)))` keeps `x` for the power, `tanh`, `0.5 x` and `1 + tanh`
        for their product, and its output for the next layer. A GPU's autocast raises the power in float32, and all that
        is made from it stays so; any other activation is one operation.
        """
        p = arithmetic.product
        if self.activation != "gelu_new":
            return 2 * p
        return 3 * FLOAT + 2 * HALF if arithmetic.bf16 and arithmetic.gpu else 5 * p

    def backbone_bytes(
        self,
        rows: int,
        length: int,
        arithmetic: Arithmetic,
        checkpointing: bool = False,
        cached: bool = False,
        training_mode: bool = False,
    ) -> int:
        """What the backbone keeps of one pass, up to the input of its last norm.

        With checkpointing that is the input of each layer, and in the backward pass the whole of one layer at a time.
        """
        tokens = rows * length
        layer = self.layer_bytes(tokens, length, arithmetic, cached)
        if self.dropout and training_mode:
            layer += 2 * self.hidden * tokens  # a byte for each number that is dropped or not
        layers = self.layers * FLOAT * self.hidden * tokens + layer if checkpointing else self.layers * layer
        ids, rotary = 2 * 8 * tokens, 2 * FLOAT * self.head_dim * tokens if self.gated else 0
        mask = arithmetic.product * tokens * length if arithmetic.attention == "sdpa" else 0
        last_norm = (2 if self.gated else 1) * FLOAT * self.hidden * tokens
        return layers + ids + rotary + mask + last_norm

    def flowing_bytes(self, rows: int, length: int, arithmetic: Arithmetic) -> int:
        """Gradients on their way back through one layer: at most one for each number that it keeps."""
        return self.layer_bytes(rows * length, length, arithmetic)

    def policy_bytes(
        self, rows: int, length: int, kept: int, arithmetic: Arithmetic, checkpointing: bool = False
    ) -> int:
        """What a policy keeps of one pass: backbone, value head, and the LM head on `kept` positions of a row."""
        value_head = 3 * FLOAT * self.hidden * rows * length
        return (
            self.backbone_bytes(rows, length, arithmetic, checkpointing)
            + value_head
            + self._head_bytes(rows * kept, arithmetic)
        )

    def language_model_bytes(
        self, rows: int, length: int, arithmetic: Arithmetic, checkpointing: bool = False, cached: bool = True
    ) -> int:
        """What a language model in training mode keeps of one pass."""
        backbone = self.backbone_bytes(rows, length, arithmetic, checkpointing, cached, training_mode=True)
        return backbone + self._head_bytes(rows * length, arithmetic)

    def _head_bytes(self, tokens: int, arithmetic: Arithmetic) -> int:
        weights = HALF * self.vocabulary * self.hidden if arithmetic.bf16 else 0
        return arithmetic.product * self.hidden * tokens + weights

    def logits_bytes(self, tokens: int) -> int:
        """One copy of the logits in float32."""
        return FLOAT * self.vocabulary * tokens

    def cache_bytes(self, rows: int, length: int) -> int:
        """Keys and values of all layers, in float32: rotary positions leave the keys so under autocast too."""
        return 2 * self.layers * self.kv_heads * self.head_dim * FLOAT * rows * length


@dataclass(frozen=True)
class Workload:
    """What a run does, as far as its memory depends on it.

    Attributes:
        batch: responses in a PPO step.
        prompt, response: tokens of the longest prompt and of the longest response.
        sft_batch, rm_batch, max_len: demonstrations, pairs, and the length of their rows.
        reward_model: whether one is trained for PPO.
        classifiers: bytes of the classifiers that stand in for it or judge.
    """

    batch: int
    prompt: int
    response: int
    sft_batch: int
    rm_batch: int
    max_len: int
    reward_model: bool
    classifiers: int = 0


@dataclass(frozen=True)
class Need:
    """What one stage needs: bytes by what they are for, all of which may be there at one moment."""

    stage: str
    parts: dict[str, int]

    @property
    def reserve(self) -> int:
        return CONTEXT_BYTES + int(FRAGMENTATION * sum(self.parts.values()))

    @property
    def total(self) -> int:
        return sum(self.parts.values()) + self.reserve


def trained_bytes(parameters: int) -> dict[str, int]:
    """What a model that is trained with AdamW holds: exact."""
    weights = FLOAT * parameters
    return {"weights": weights, "gradients": weights, "AdamW's two moments": 2 * weights}


def needs(
    shape: ModelShape, work: Workload, profile: Profile | None, arithmetic: Arithmetic
) -> dict[str, Need]:
    """The need of each stage, by its name."""
    found = {"sft": _sft(shape, work, profile, arithmetic)}
    if work.reward_model:
        found["reward_model"] = _reward_model(shape, work, profile, arithmetic)
    found["ppo"] = _ppo(shape, work, profile, arithmetic)
    return found


def largest(found: dict[str, Need]) -> Need:
    """The stage that needs most."""
    return max(found.values(), key=lambda need: need.total)


def _rows(profile: Profile | None, n_rows: int) -> int:
    return n_rows if profile is None else min(profile.rows, n_rows)


def _sft(shape: ModelShape, work: Workload, profile: Profile | None, arithmetic: Arithmetic) -> Need:
    rows = _rows(profile, work.sft_batch)
    activations = shape.language_model_bytes(
        rows,
        work.max_len,
        arithmetic,
        checkpointing=profile is not None and profile.checkpointing,
        cached=rows == work.sft_batch,
    )
    flowing = shape.flowing_bytes(rows, work.max_len, arithmetic)
    training = activations + flowing + 4 * shape.logits_bytes(work.sft_batch * work.max_len)
    if rows < work.sft_batch:
        training += _recomputed_logits(shape, rows * work.max_len, arithmetic)
    # AdamW of train_sft takes torch's default on a GPU, which works on a copy of all moments at a time
    update = FLOAT * shape.parameters
    looking_on = 3 * shape.logits_bytes(_rows(profile, SAMPLED_ROWS) * work.max_len)  # the held-out loss
    return Need(
        "sft",
        {
            **trained_bytes(shape.parameters),
            "activations and logits, or the optimiser's copies": max(training, update, looking_on),
            "classifiers": work.classifiers,
        },
    )


def _reward_model(shape: ModelShape, work: Workload, profile: Profile | None, arithmetic: Arithmetic) -> Need:
    rows = _rows(profile, 2 * work.rm_batch)  # chosen and rejected are one batch
    checkpointing = profile is not None and profile.checkpointing
    activations = shape.backbone_bytes(rows, work.max_len, arithmetic, checkpointing, training_mode=True)
    flowing = shape.flowing_bytes(rows, work.max_len, arithmetic)
    update = FLOAT * shape.reward_parameters
    return Need(
        "reward_model",
        {
            **trained_bytes(shape.reward_parameters),
            "activations, or the optimiser's copies": max(activations + flowing, update),
            "classifiers": work.classifiers,
        },
    )


def _ppo(shape: ModelShape, work: Workload, profile: Profile | None, arithmetic: Arithmetic) -> Need:
    rows, length, kept = _rows(profile, work.batch), work.prompt + work.response, work.response + 1
    checkpointing = profile is not None and profile.checkpointing
    activations = shape.policy_bytes(rows, length, kept, arithmetic, checkpointing)
    logits = 3 * shape.logits_bytes(work.batch * kept)
    if rows < work.batch:
        logits += _recomputed_logits(shape, rows * kept, arithmetic)
    sampled = max(work.batch, SAMPLED_ROWS)
    generation = shape.cache_bytes(sampled, length) + SAMPLING_COPIES * shape.logits_bytes(sampled)
    named = {f"policy: {name}": size for name, size in trained_bytes(shape.policy_parameters).items()}
    return Need(
        "ppo",
        {
            **named,
            "reference: weights": FLOAT * shape.policy_parameters,
            "reward model: weights": FLOAT * shape.reward_parameters if work.reward_model else 0,
            "classifiers": work.classifiers,
            "activations of one pass": activations,
            "gradients on their way through a layer": shape.flowing_bytes(rows, length, arithmetic),
            "logits of the batch": logits,
            "generation, beyond the two above": max(0, generation - activations - logits),
        },
    )


def _recomputed_logits(shape: ModelShape, tokens: int, arithmetic: Arithmetic) -> int:
    """Those of the pass that is computed again in the backward pass, as the LM head gives them."""
    return shape.logits_bytes(tokens) * arithmetic.product // FLOAT


def format_needs(
    title: str, found: dict[str, Need], card: tuple[int, int] | None, profile: Profile | None = None
) -> str:
    """The table that is printed before a run: the stage that needs most line by line, the others in one.

    Args:
        card: free and total memory of the GPU, in bytes, or None where there is none.
        profile: whose card it is held against where there is no GPU.
    """
    most = largest(found)
    rows = [(what, size) for what, size in most.parts.items() if size > 0]
    rows += [("reserve: CUDA context, 10 % for fragmentation", most.reserve), ("total", most.total)]
    width = max(len(what) for what, _ in rows)
    lines = [title, *(f"  {what:<{width}}  {size / MIB:>8,.0f} MiB" for what, size in rows)]
    others = [f"{need.stage} {in_gib(need.total)}" for need in found.values() if need is not most]
    if others:
        lines.append(f"  the other stages: {', '.join(others)}")
    if card is not None:
        lines.append(f"  the GPU has {in_gib(card[0])} free of {in_gib(card[1])}")
    elif profile is not None:
        lines.append(f"  a card of {profile.card} GB keeps {in_gib(profile.card * GIB - most.total)}")
    return "\n".join(lines)


def in_gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


@functools.cache
def read_shape(folder: Path) -> ModelShape:
    """The shape of the backbone in `folder`."""
    from transformers import AutoConfig

    return ModelShape.of(AutoConfig.from_pretrained(folder))
