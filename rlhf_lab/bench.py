"""What one PPO step costs: the taught code between a naive loop and the floor that the arithmetic sets.

The taught code runs as it is. Its step is split by a clock around `policy.lm.generate`:

| phase | what is timed |
|---|---|
| generation | the calls of `policy.lm.generate` inside `rollout` |
| scoring | the rest of `rollout`: policy, reference and reward model read the batch, texts are decoded |
| update | `ppo_step`: advantages, then forward, backward and optimiser, `PPO_EPOCHS` times |

For equal work in every repeat no response may end early: the clock around `generate` adds `min_new_tokens`,
which forbids EOS, and the naive loop forbids it in the same way. Naive and taught steps take turns, so that a
machine that is busy with something else slows both.

The naive loop gives the same numbers from the same models (a test holds the two together) without the three
habits that make the taught code fast: it keeps no cache, applies the LM head to every position, and takes
prompts one by one.

The floor counts floating-point operations as in Hoffmann et al. 2022, "Training compute-optimal large
language models", appendix F, and Kaplan et al. 2020, "Scaling laws for neural language models", section 2.1:

- a forward pass costs `2 * weights` operations a token in the matrix products, a multiplication and an
  addition each;
- attention costs `2 * 2 * width` a layer for each pair of a token and one that it sees, itself included: once
  for the scores, once for the weighted sum of the values; `width` is heads times head size;
- a backward pass costs twice a forward pass.

Counted is what the algorithm cannot do without: real tokens but no padding, the causal half of the attention,
the LM head and the value head only where a response token is predicted, and a cache in generation, which
makes it as much arithmetic as one forward pass. Element-wise work (norms, softmax, the optimiser) is not
counted: the ratio shows it.

The floor's time is that number over the rate of a matrix product, measured in the same run: on a CPU on the
model's own shape, `[batch * tokens, hidden] x [hidden, 4 * hidden]`, on a GPU on `GPU_SHAPE`, for a card comes to
its rate in large products only, and a small one would measure the launch. Where it takes longer to read the
weights once in each pass, at the speed of a copy of as many bytes, that time is the floor. It often is in
generation, whose passes are one token long. A weight is read in the precision in which it is multiplied: the
weights are stored in float32, and with bfloat16 autocast casts them anew in each pass, but they change only with
an update, so that the casts are a cost that the ratio shows. The floor takes the best rate and the loops the
median time: on a machine that is busy with something else taught/floor comes out too high, naive/taught does not.
"""

import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from . import backbones
from .devices import Compute, reads_in_float32
from .errors import LabError
from .taught_code import TaughtCode

PHASES = ("generation", "scoring", "update")
PPO_EPOCHS = 4
LEARNING_RATE = 1e-5
GPU_SHAPE = (8192, 8192, 8192)  # of the matrix product that says what a card can do
SECONDS_PER_RATE = 0.2  # how long a matrix product or a copy is repeated to find its best rate

PROMPTS = (
    "The film",
    "Our hotel room",
    "I think the service here",
    "The new phone that my sister bought last week",
    "Lunch",
    "When the train finally arrived in the evening, the journey",
    "The teacher of my course",
    "My first impression of the city and of its people",
    "The book",
    "After two weeks with these running shoes, I would say that they",
    "The concert last night",
    "This small café behind the old station",
    "The museum",
    "What the guide told us about the castle and its garden",
    "The weather on our trip",
    "The soup that they served before the main course",
)


@dataclass(frozen=True)
class BenchResult:
    """Everything that was measured and counted.

    Attributes:
        prompt_tokens: length of the shortest and of the longest prompt.
        response_tokens: of all rows together.
        taught, naive: seconds of each repeat, for each of `PHASES` and for `total`.
        floor: seconds of each phase and `total`.
        flops: floating-point operations of each phase that the floor counts.
        matmul_shape: rows, inner size and columns of the matrix product that was measured.
        taught_peak_bytes, naive_peak_bytes: on a GPU what PyTorch had allocated at most, on a CPU the most
            that the whole process had resident, Python and its libraries included.
    """

    code: str
    backbone: str
    compute: str
    parameters: int
    batch_size: int
    prompt_tokens: tuple[int, int]
    new_tokens: int
    response_tokens: int
    ppo_epochs: int
    taught: dict[str, list[float]]
    naive: dict[str, list[float]]
    floor: dict[str, float]
    flops: dict[str, float]
    matmul_shape: tuple[int, int, int]
    matmul_flops_per_second: float
    copy_bytes_per_second: float
    taught_peak_bytes: int
    naive_peak_bytes: int

    def share_of_floor(self, phase: str) -> float:
        """How much of the speed that the floor allows the taught code reaches, 0 to 1."""
        return 1 / self.taught_over_floor(phase)

    def taught_over_floor(self, phase: str) -> float:
        return statistics.median(self.taught[phase]) / self.floor[phase]

    def naive_over_taught(self, phase: str) -> float:
        return statistics.median(self.naive[phase]) / statistics.median(self.taught[phase])

    def generated_per_second(self, seconds: dict[str, list[float]]) -> float:
        """Tokens sampled in a second of generation, of `taught` or `naive`."""
        return self.response_tokens / statistics.median(seconds["generation"])

    def processed_per_second(self, seconds: dict[str, list[float]]) -> float:
        """Response tokens that a second of the whole step gets through, of `taught` or `naive`."""
        return self.response_tokens / statistics.median(seconds["total"])


def bench(
    code: TaughtCode,
    backbone: str = "tiny",
    batch_size: int = 16,
    new_tokens: int = 20,
    repeats: int = 5,
    *,
    compute: Compute,
    prompts: Sequence[str] = PROMPTS,
) -> BenchResult:
    """Measure one PPO step of the taught code, of the naive loop, and the floor.

    Args:
        prompts: texts of different length; taken in turn until the batch is full.

    Raises:
        LabError: for sizes below 1, prompts that do not fit the context, or code that cannot be measured.
    """
    sizes = {"batch size": batch_size, "number of new tokens": new_tokens, "number of repeats": repeats}
    for name, size in sizes.items():
        if size < 1:
            raise LabError(f"the {name} must be at least 1, and it is {size}")
    torch.manual_seed(0)
    backbones.quiet_transformers()
    folder = backbones.resolve(backbone)
    subject = Subject.load(code, folder, compute)
    batch = [prompts[i % len(prompts)] for i in range(batch_size)]
    prompt_ids = [subject.tokenizer(text, add_special_tokens=False).input_ids for text in batch]
    lengths = [len(ids) for ids in prompt_ids]
    context = backbones.context_length(folder)
    if max(lengths) + new_tokens > context:
        raise LabError(
            f"the longest prompt has {max(lengths)} tokens, and with {new_tokens} new ones it does not fit "
            f"the context of {backbone}, {context} tokens: ask for fewer new tokens"
        )

    def taught() -> dict[str, float]:
        return taught_step(code, subject, batch, new_tokens)

    def naive() -> dict[str, float]:
        return naive_step(code, subject, prompt_ids, new_tokens)

    model_size = ModelSize.of(subject.policy, compute.dtype)
    tokens, hidden = batch_size * (max(lengths) + new_tokens), subject.policy.lm.config.hidden_size
    matmul_shape = measured_shape(compute.device, tokens, hidden)
    taught_seconds, naive_seconds, matmul_rates, copy_rates = [], [], [], []
    with compute.autocast():
        # the first step of each warms up the libraries: it is not timed, and the memory is read from it
        taught_peak, naive_peak = peak_memory(taught, compute.device), peak_memory(naive, compute.device)
        for _ in range(repeats):
            taught_seconds.append(taught())
            naive_seconds.append(naive())
            matmul_rates.append(matmul_rate(matmul_shape, compute))
            copy_rates.append(copy_rate(model_size.bytes_to_read, compute.device))

    work = step_work(model_size, lengths, new_tokens, PPO_EPOCHS)
    floor = {
        phase: max(flops / max(matmul_rates), passes * model_size.bytes_to_read / max(copy_rates))
        for phase, (flops, passes) in work.items()
    }
    return BenchResult(
        code=code.package,
        backbone=backbone,
        compute=str(compute),
        parameters=sum(parameter.numel() for parameter in subject.policy.parameters()),
        batch_size=batch_size,
        prompt_tokens=(min(lengths), max(lengths)),
        new_tokens=new_tokens,
        response_tokens=batch_size * new_tokens,
        ppo_epochs=PPO_EPOCHS,
        taught={name: [seconds[name] for seconds in taught_seconds] for name in (*PHASES, "total")},
        naive={name: [seconds[name] for seconds in naive_seconds] for name in (*PHASES, "total")},
        floor={**floor, "total": sum(floor.values())},
        flops={phase: flops for phase, (flops, _) in work.items()},
        matmul_shape=matmul_shape,
        matmul_flops_per_second=max(matmul_rates),
        copy_bytes_per_second=max(copy_rates),
        taught_peak_bytes=taught_peak,
        naive_peak_bytes=naive_peak,
    )


@dataclass
class Subject:
    """The models that both loops work on."""

    policy: nn.Module
    reference: nn.Module
    reward_model: nn.Module
    optim: torch.optim.Optimizer
    tokenizer: object
    device: torch.device

    @classmethod
    def load(cls, code: TaughtCode, folder: Path, compute: Compute) -> "Subject":
        policy = reads_in_float32(code.ppo.PolicyWithValueHead(str(folder)).to(compute.device))
        reference = reads_in_float32(code.ppo.PolicyWithValueHead(str(folder)).to(compute.device))
        reward_model = reads_in_float32(code.reward_model.RewardModel(str(folder)).to(compute.device))
        return cls(
            policy=policy,
            reference=reference.eval().requires_grad_(False),
            reward_model=reward_model.eval().requires_grad_(False),
            # fused: one pass over the weights in place of a dozen, on a CPU too
            optim=torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, fused=True),
            tokenizer=backbones.load_tokenizer(folder),
            device=compute.device,
        )


# the taught code


def taught_step(code: TaughtCode, subject: Subject, prompts: list[str], new_tokens: int) -> dict[str, float]:
    """Seconds of one step of the taught code, by phase.

    Raises:
        LabError: when `rollout` does not sample with `policy.lm.generate`, or cuts responses short.
    """
    lm, device = subject.policy.lm, subject.device
    generate = lm.generate
    generation = 0.0

    def timed_generate(*args, **kwargs) -> Tensor:
        nonlocal generation
        begin = now(device)
        output = generate(*args, **{**kwargs, "min_new_tokens": new_tokens})
        generation += now(device) - begin
        return output

    lm.generate = timed_generate
    begin = now(device)
    try:
        rollout = code.ppo.rollout(
            subject.policy, subject.reference, subject.reward_model, subject.tokenizer, prompts, new_tokens
        )
    finally:
        del lm.generate
    rolled_out = now(device)
    code.ppo.ppo_step(subject.policy, subject.optim, rollout, ppo_epochs=PPO_EPOCHS)
    end = now(device)

    if generation == 0.0:
        raise LabError(f"{code.package}.ppo.rollout does not call policy.lm.generate: nothing can be timed")
    response_tokens = int(rollout.response_mask.sum())
    if response_tokens != len(prompts) * new_tokens:
        raise LabError(
            f"{code.package}.ppo.rollout was asked for {new_tokens} new tokens for each of {len(prompts)} "
            f"prompts, with EOS forbidden, and its response_mask counts {response_tokens} in all"
        )
    return {
        "generation": generation,
        "scoring": rolled_out - begin - generation,
        "update": end - rolled_out,
        "total": end - begin,
    }


# the naive loop


@dataclass
class NaiveRollout:
    """What the naive loop knows of a batch: rows without padding, and `[batch, response]` tensors."""

    rows: list[Int[Tensor, "seq"]]
    old_logprobs: Float[Tensor, "batch response"]
    ref_logprobs: Float[Tensor, "batch response"]
    old_values: Float[Tensor, "batch response"]
    rm_score: Float[Tensor, "batch"]


def naive_step(
    code: TaughtCode, subject: Subject, prompt_ids: list[list[int]], new_tokens: int
) -> dict[str, float]:
    """Seconds of one step of the naive loop, by phase."""
    device = subject.device
    subject.policy.eval()
    begin = now(device)
    eos_id = subject.tokenizer.eos_token_id
    rows = [naive_generate(subject.policy.lm, ids, new_tokens, eos_id) for ids in prompt_ids]
    generated = now(device)
    rollout = naive_score(subject, rows, new_tokens)
    scored = now(device)
    naive_update(code, subject, rollout)
    end = now(device)
    return {
        "generation": generated - begin,
        "scoring": scored - generated,
        "update": end - scored,
        "total": end - begin,
    }


@torch.no_grad()
def naive_generate(lm: nn.Module, prompt_ids: list[int], new_tokens: int, eos_id: int) -> Int[Tensor, "seq"]:
    """Prompt and sampled response of one row; every token is paid for with a pass over the whole row."""
    ids = torch.tensor([prompt_ids], device=lm.device)
    for _ in range(new_tokens):
        logits = lm(input_ids=ids, use_cache=False).logits[:, -1].float()
        logits[:, eos_id] = -torch.inf
        next_id = torch.multinomial(logits.softmax(dim=-1), num_samples=1)
        ids = torch.cat([ids, next_id], dim=1)
    return ids[0]


@torch.no_grad()
def naive_score(subject: Subject, rows: list[Int[Tensor, "seq"]], response_length: int) -> NaiveRollout:
    """What the three models say about rows whose last `response_length` tokens are the response."""
    read = [naive_read(subject.policy, ids, response_length) for ids in rows]
    read_by_reference = [naive_read(subject.reference, ids, response_length) for ids in rows]
    scores = [subject.reward_model(ids[None], torch.ones_like(ids[None])) for ids in rows]
    return NaiveRollout(
        rows=rows,
        old_logprobs=torch.cat([logprobs for logprobs, _ in read]),
        ref_logprobs=torch.cat([logprobs for logprobs, _ in read_by_reference]),
        old_values=torch.cat([values for _, values in read]),
        rm_score=torch.cat(scores),
    )


def naive_update(code: TaughtCode, subject: Subject, rollout: NaiveRollout) -> dict[str, float]:
    """The update of `ppo_step`, gradients gathered row by row; the losses of the last epoch."""
    response_length = rollout.old_logprobs.shape[1]
    mask = torch.ones_like(rollout.old_logprobs)
    token_rewards = code.ppo.shape_token_rewards(
        rollout.rm_score, rollout.old_logprobs, rollout.ref_logprobs, mask
    )
    advantages, returns = code.ppo.compute_gae(token_rewards, rollout.old_values, mask)
    advantages = code.ppo.masked_whiten(advantages, mask)
    for _ in range(PPO_EPOCHS):
        subject.optim.zero_grad()
        infos = []
        for i, ids in enumerate(rollout.rows):
            row = slice(i, i + 1)
            new_logprobs, new_values = naive_read(subject.policy, ids, response_length)
            loss, info = code.ppo.ppo_losses(
                new_logprobs,
                rollout.old_logprobs[row],
                advantages[row],
                new_values,
                rollout.old_values[row],
                returns[row],
                mask[row],
            )
            # rows are equally long: the mean over the tokens of the batch is the mean of the rows' means
            (loss / len(rollout.rows)).backward()
            infos.append(info)
        nn.utils.clip_grad_norm_(subject.policy.parameters(), 1.0)
        subject.optim.step()
    return {name: statistics.fmean(info[name] for info in infos) for name in infos[0]}


def naive_read(
    policy: nn.Module, ids: Int[Tensor, "seq"], response_length: int
) -> tuple[Float[Tensor, "1 response"], Float[Tensor, "1 response"]]:
    """Log-probabilities and values of the response of one row, from logits on every position of it."""
    logits, values = policy(ids[None], torch.ones_like(ids[None]))
    logprobs = F.log_softmax(logits, dim=-1)[0, :-1].gather(-1, ids[1:, None]).squeeze(-1)
    return logprobs[None, -response_length:], values[:, -response_length - 1 : -1]


# the floor


@dataclass(frozen=True)
class ModelSize:
    """What the count of operations needs to know of a policy.

    Attributes:
        layers: number of transformer layers.
        width: heads times head size.
        backbone: weights of the matrix products that each token goes through, embeddings not included.
        lm_head: hidden size times vocabulary.
        value_head: weights of its two matrix products.
        bytes_per_weight: in the precision in which they are multiplied.
    """

    layers: int
    width: int
    backbone: int
    lm_head: int
    value_head: int
    bytes_per_weight: int

    @classmethod
    def of(cls, policy: nn.Module, dtype: torch.dtype) -> "ModelSize":
        config = policy.lm.config
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        head = policy.lm.get_output_embeddings().weight
        return cls(
            layers=config.num_hidden_layers,
            width=config.num_attention_heads * head_size,
            backbone=matmul_weights(policy.lm.base_model),
            lm_head=head.numel(),
            value_head=matmul_weights(policy.value_head),
            bytes_per_weight=dtype.itemsize,
        )

    @property
    def bytes_to_read(self) -> int:
        """What one pass through backbone and LM head has to read at least."""
        return (self.backbone + self.lm_head) * self.bytes_per_weight


def matmul_weights(module: nn.Module) -> int:
    """Number of weights that are multiplied with every token: matrices, except embeddings (a look-up)."""
    return sum(
        parameter.numel()
        for part in module.modules()
        if not isinstance(part, nn.Embedding)
        for parameter in part.parameters(recurse=False)
        if parameter.ndim == 2
    )


def forward_flops(size: ModelSize, tokens: int, predicted: int, valued: int) -> int:
    """Floating-point operations of a forward pass over one row (the formula stands at the top of this file).

    Args:
        tokens: length of the row.
        predicted: positions with LM head.
        valued: positions with value head.
    """
    products = size.backbone * tokens + size.lm_head * predicted + size.value_head * valued
    pairs = tokens * (tokens + 1) // 2
    return 2 * products + 2 * 2 * size.layers * size.width * pairs


def step_work(
    size: ModelSize, prompt_lengths: Sequence[int], new_tokens: int, ppo_epochs: int
) -> dict[str, tuple[int, int]]:
    """Floating-point operations and number of passes over the weights, of each phase of one PPO step.

    The last response token is read by the reward model alone: nobody predicts what comes after it.
    """
    generation = reference = policy = reward = 0
    for prompt_length in prompt_lengths:
        tokens = prompt_length + new_tokens
        generation += forward_flops(size, tokens - 1, new_tokens, 0)
        reference += forward_flops(size, tokens - 1, new_tokens, 0)
        policy += forward_flops(size, tokens - 1, new_tokens, new_tokens)
        reward += forward_flops(size, tokens, 0, 0)
    return {
        "generation": (generation, new_tokens),
        "scoring": (policy + reference + reward, 3),
        "update": (3 * policy * ppo_epochs, 2 * ppo_epochs),
    }


def measured_shape(device: torch.device, tokens: int, hidden: int) -> tuple[int, int, int]:
    """Rows, inner size and columns of the matrix product whose rate the floor takes."""
    return GPU_SHAPE if device.type == "cuda" else (tokens, hidden, 4 * hidden)


def matmul_rate(shape: tuple[int, int, int], compute: Compute) -> float:
    """Floating-point operations a second of a matrix product, the best of several."""
    rows, inner, columns = shape
    left = torch.randn(rows, inner, device=compute.device, dtype=compute.dtype)
    right = torch.randn(inner, columns, device=compute.device, dtype=compute.dtype)
    product = torch.empty(rows, columns, device=compute.device, dtype=compute.dtype)
    seconds = best_seconds(lambda: torch.mm(left, right, out=product), compute.device)
    return 2 * rows * inner * columns / seconds


def copy_rate(n_bytes: int, device: torch.device) -> float:
    """Bytes a second that a copy of `n_bytes` reads and writes, the best of several."""
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * n_bytes / best_seconds(lambda: target.copy_(source), device)


def best_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the best mean of ten in a row."""
    call()
    best, deadline = float("inf"), now(device) + SECONDS_PER_RATE
    while now(device) < deadline:
        begin = now(device)
        for _ in range(10):
            call()
        best = min(best, (now(device) - begin) / 10)
    return best


# the instruments


def now(device: torch.device) -> float:
    """Seconds on a clock, when the device has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """The most bytes in use while `call` runs (see `BenchResult` for what counts)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return torch.cuda.max_memory_allocated(device)

    import psutil

    process = psutil.Process()
    peak = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        done.set()
        watcher.join()
    return peak


# what a person and a program read


def format_result(result: BenchResult) -> str:
    """The result as a table with what is needed to read it."""
    shortest, longest = result.prompt_tokens
    lines = [
        f"One PPO step of {result.code} on {result.backbone}, "
        f"{result.parameters / 1e6:.1f} million parameters",
        f"{result.compute}; {result.batch_size} prompts of {shortest} to {longest} tokens, "
        f"{result.new_tokens} new tokens each, {result.ppo_epochs} update epochs",
        "",
        f"seconds: median (min to max), repeats: {len(result.taught['total'])}",
        f"{'':<12}{'floor':>9}   {'taught code':<27}{'naive loop':<27}"
        f"{'taught/floor':>12}{'naive/taught':>14}",
    ]
    for phase in (*PHASES, "total"):
        lines.append(
            f"{phase:<12}{_seconds(result.floor[phase]):>9}   "
            f"{_spread(result.taught[phase]):<27}{_spread(result.naive[phase]):<27}"
            f"{result.taught_over_floor(phase):>12.1f}{result.naive_over_taught(phase):>14.1f}"
        )
    lines.append("")
    for name, seconds, peak in (
        ("taught code", result.taught, result.taught_peak_bytes),
        ("naive loop", result.naive, result.naive_peak_bytes),
    ):
        lines.append(
            f"{name + ':':<13}tokens a second: {result.generated_per_second(seconds):,.0f} in generation, "
            f"{result.processed_per_second(seconds):,.0f} in the whole step; "
            f"peak memory {peak / 2**20:,.0f} MiB"
        )
    rows, inner, columns = result.matmul_shape
    lines += [
        f"{'floor:':<13}{sum(result.flops.values()) / 1e9:,.1f} billion operations; "
        f"here a [{rows}, {inner}] x [{inner}, {columns}] product does",
        f"{'':<13}{result.matmul_flops_per_second / 1e9:,.0f} billion a second, and a copy moves "
        f"{result.copy_bytes_per_second / 1e9:,.1f} GB a second",
        "",
        "taught/floor: how many times longer the taught code takes than the arithmetic alone.",
        "naive/taught: how many times longer the same result takes without a cache, with the LM head on",
        "              every position, one prompt at a time.",
    ]
    return "\n".join(lines)


def to_json(result: BenchResult) -> str:
    """The result with its ratios, for a program."""
    ratios = {
        "share_of_floor": {phase: result.share_of_floor(phase) for phase in (*PHASES, "total")},
        "taught_over_floor": {phase: result.taught_over_floor(phase) for phase in (*PHASES, "total")},
        "naive_over_taught": {phase: result.naive_over_taught(phase) for phase in (*PHASES, "total")},
    }
    return json.dumps({**asdict(result), **ratios}, indent=1)


def _spread(seconds: list[float]) -> str:
    return f"{_seconds(statistics.median(seconds))} ({_seconds(min(seconds))} to {_seconds(max(seconds))})"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 10 else f"{value:.4f}"
