"""What the judge looks at: a snippet is run on small random inputs, and everything that it does is written down.

Written down are the variables at each `return`, what is returned, the gradients of it, and whether the arguments are as
before. The inputs are made so that a mistake shows: no two dimensions have one size (but for batches of one), masks are ragged
and on both sides, scores have ties, ratios leave the clip range on both sides, padding holds garbage, models have
unequal numbers of layers, and their checkpoints ask for things that a snippet has to overrule.
"""

import ast
import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..checks.models import RECOMMENDED, random_gpt2

Seen = dict[str, object]  # what -> a tensor, a number or a text
ARGUMENT, GRADIENT = "its argument ", "the gradient that reaches "
OTHER_RESULT = "what is returned"  # seen only where it is not made of the parts that are asked for
MASKS = ("mask", "response_mask")  # arguments that nothing is learned from
VOCABULARY, POSITIONS, WIDTH, EOS = 23, 16, 8, 0


def watch(name: str, thing: Callable) -> list[tuple[str, Seen]]:
    """Run the function or class called `name`; what was seen in each experiment, and the experiment's title.

    Raises:
        Exception: whatever the code raises; a note on it names the experiment.
    """
    experiments = {
        "rm_loss": (_comparisons, _call, ("the loss", "the accuracy")),
        "gather_logprobs": (_logits, _call, ("the result",)),
        "shape_token_rewards": (_rewards, _call, ("the result",)),
        "ppo_losses": (_updates, _call, ("the loss", "info")),
        "RewardModel": (_checkpoints, _use_reward_model, ()),
        "PolicyWithValueHead": (_checkpoints, _use_policy, ()),
    }
    inputs, run, names = experiments[name]
    seen = []
    for title, given in inputs():
        try:
            seen += [(f"{title}{more}", what) for more, what in run(thing, given, names)]
        except BaseException as error:
            error.add_note(title)
            raise
    return seen


# --- variables ------------------------------------------------------------------------------------

SNIPPET_FILE = "<the drill's snippet>"
REPORT = "_report_variables"
_reported: Seen = {}  # by the last function that has returned


class _Reporting(ast.NodeTransformer):
    def visit_Return(self, node: ast.Return) -> ast.Return:
        call = ast.parse(f"{REPORT}(locals(), None)", mode="eval").body
        call.args[1] = node.value or ast.Constant(None)
        return ast.copy_location(ast.Return(call), node)


def compiled(text: str) -> CodeType:
    """A snippet as code whose functions report their variables when they return; it needs `report` as `REPORT`."""
    return compile(ast.fix_missing_locations(_Reporting().visit(ast.parse(text))), SNIPPET_FILE, "exec")


def report(variables: dict, result):
    _reported.clear()
    _reported.update(
        {
            Variable(name): value.detach().clone()
            for name, value in variables.items()
            if isinstance(value, Tensor)
        }
    )
    return result


class Variable(str):
    """The name of a variable of the snippet, as a key of what was seen."""


# --- functions ------------------------------------------------------------------------------------


def _numbers(seed: int) -> Callable[..., Tensor]:
    """Normal random numbers, shape by shape."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator)


def _comparisons() -> Iterator[tuple[str, dict]]:
    for seed, pairs in enumerate((31, 40)):
        numbers = _numbers(seed)
        r_chosen = numbers(pairs)
        difference = 0.4 + numbers(pairs)
        difference[:4] = torch.tensor([0.0, 0.0, 0.0, 0.0005])
        yield f"{pairs} pairs, with ties", {"r_chosen": r_chosen, "r_rejected": r_chosen - difference}
    far = torch.tensor([1e4, -1e4, 0.5])
    yield "scores that are far apart", {"r_chosen": far, "r_rejected": torch.tensor([0.0, 0.0, 0.2])}


def _logits() -> Iterator[tuple[str, dict]]:
    for seed, (batch, seq, vocab) in enumerate([(3, 5, 7), (1, 4, 6), (2, 2, 9)]):
        ids = torch.randint(vocab, (batch, seq), generator=torch.Generator().manual_seed(seed))
        title = "a batch of one" if batch == 1 else f"{batch} texts of {seq} tokens"
        yield title, {"logits": 3 * _numbers(seed)(batch, seq, vocab), "input_ids": ids}


def _rewards() -> Iterator[tuple[str, dict]]:
    responses = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    after_prompts = torch.tensor(
        [[0, 0, 1, 1, 1, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]]
    )
    for seed, (title, mask, more) in enumerate(
        [
            ("three responses of unequal length", responses, {}),
            ("masks that begin with the prompt", after_prompts, {"kl_coef": 0.4}),
            ("a mask of truth values", after_prompts[:2].bool(), {"kl_coef": 0.4}),
            ("a mask of floats", responses[:2].float(), {"kl_coef": 0.4}),
        ]
    ):
        numbers = _numbers(seed)
        yield (
            title,
            {
                "rm_score": 3 * numbers(len(mask)),
                "old_logprobs": -2 + numbers(*mask.shape),
                "ref_logprobs": -2.5 + numbers(*mask.shape),
                "response_mask": mask,
                **more,
            },
        )


def _updates() -> Iterator[tuple[str, dict]]:
    shape = (6, 40)
    mask = (torch.arange(shape[1]) < torch.tensor([40, 31, 22, 9, 40, 1]).unsqueeze(-1)).long()
    other = {"clip_range": 0.1, "clip_range_value": 0.35, "vf_coef": 0.8}
    for seed, (title, padding, more) in enumerate(
        [
            ("ratios on both sides of the clip", 0.0, {}),
            ("other clip ranges", 0.0, other),
            ("garbage in the padding", 300.0, other),
            ("a clip range of 0", 0.0, {"clip_range": 0.0}),
        ]
    ):
        numbers = _numbers(seed)
        old_logprobs, old_values, log_ratio = -2 + numbers(*shape), numbers(*shape), 0.4 * numbers(*shape)
        log_ratio[:, ::5] = 0  # tokens whose probability has not changed
        yield (
            title,
            {
                "new_logprobs": old_logprobs + log_ratio + padding * (1 - mask),
                "old_logprobs": old_logprobs,
                "advantages": 0.7 + 2 * numbers(*shape),
                "new_values": old_values + 0.5 * numbers(*shape),
                "old_values": old_values,
                "returns": numbers(*shape),
                "mask": mask.float() if more else mask,
                **more,
            },
        )


def _call(function: Callable, given: dict, names: tuple[str, ...]) -> Iterator[tuple[str, Seen]]:
    """One call: what it returns, the gradients of that, and whether the arguments are as before."""
    arguments = {
        name: value.clone().requires_grad_(value.is_floating_point() and name not in MASKS)
        if isinstance(value, Tensor)
        else value
        for name, value in given.items()
    }
    with _recording_of_gradients(function) as modes:
        result = function(**arguments)
    seen: Seen = {
        ARGUMENT + name: value.detach().clone()
        for name, value in arguments.items()
        if isinstance(value, Tensor)
    }
    seen |= _reported | _named(result, names)
    if modes:
        seen["the gradient of what is only reported"] = "left out" if False in modes else "recorded"
    trained = {
        name: value for name, value in arguments.items() if isinstance(value, Tensor) and value.requires_grad
    }
    seen |= _gradients(_tensors(result), trained)
    yield "", seen


@contextmanager
def _recording_of_gradients(function: Callable) -> Iterator[set[bool]]:
    """Whether gradients were recorded, in each call of the given function `masked_mean`."""
    modes, given = set(), function.__globals__.get("masked_mean")
    if given is None:
        yield modes
        return

    def masked_mean(x, mask):
        modes.add(torch.is_grad_enabled())
        return given(x, mask)

    function.__globals__["masked_mean"] = masked_mean
    try:
        yield modes
    finally:
        function.__globals__["masked_mean"] = given


def _named(result, names: tuple[str, ...]) -> Seen:
    """What was returned, each part under its name."""
    parts = result if isinstance(result, tuple) else (result,)
    if len(parts) != len(names):
        return {OTHER_RESULT: f"a {type(result).__name__} of {len(parts)}"}
    seen: Seen = {}
    for name, part in zip(names, parts, strict=True):
        if isinstance(part, dict):
            seen |= {f"{name}[{key!r}]": value for key, value in part.items()}
        else:
            seen[name] = part.detach().clone() if isinstance(part, Tensor) else part
    return seen


def _tensors(result) -> list[Tensor]:
    parts = result if isinstance(result, tuple) else (result,)
    return [part for part in parts if isinstance(part, Tensor) and part.requires_grad]


def _gradients(results: list[Tensor], trained: dict[str, Tensor]) -> Seen:
    """Gradient of a weighted sum of the results, which tells their elements apart; no gradient is a gradient of 0."""
    gradients: tuple = (None,) * len(trained)
    if results:
        total = sum(
            (result * torch.linspace(0.5, 1.5, result.numel()).view_as(result)).sum() for result in results
        )
        gradients = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    return {
        GRADIENT + name: torch.zeros_like(value) if gradient is None else gradient
        for (name, value), gradient in zip(trained.items(), gradients, strict=True)
    }


# --- models ---------------------------------------------------------------------------------------


@cache
def _checkpoints() -> list[tuple[str, str]]:
    """Two random GPT-2s, saved in half precision and with advice for sampling: a title and a folder each."""
    from transformers import GenerationConfig

    made = []
    for layers in (2, 3):
        folder = tempfile.mkdtemp()  # in the worker's own folder, see `worker`
        model = random_gpt2(layers, VOCABULARY, POSITIONS, WIDTH, EOS, n_layer=layers)
        model.to(torch.bfloat16).save_pretrained(folder)
        GenerationConfig(do_sample=True, eos_token_id=EOS, **RECOMMENDED).save_pretrained(folder)
        made.append((f"a model of {layers} layers", folder))
    return made


def _batches() -> Iterator[tuple[str, Tensor, Tensor]]:
    """Ids and masks: padding on the right, padding on the left, and a batch of one."""
    for seed, (title, mask) in enumerate(
        [
            (", padding on the right", [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]),
            (", padding on the left", [[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]),
            (", a batch of one", [[0, 1, 1, 1]]),
        ]
    ):
        mask = torch.tensor(mask)
        ids = torch.randint(1, VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(seed))
        yield title, ids, mask


def _use_reward_model(kind: type[nn.Module], folder: str, _names) -> Iterator[tuple[str, Seen]]:
    torch.manual_seed(0)
    model = kind(folder)
    yield " is built", _parts(model)
    _fill(model.v_head)
    for title, ids, mask in _batches():
        with _recording(model) as seen:
            scores = model(ids, mask)
        seen |= _reported | _named(scores, ("the result",))
        seen |= _gradients(_tensors(scores), _some_weights(model.backbone, model.v_head))
        yield title, seen


def _use_policy(kind: type[nn.Module], folder: str, _names) -> Iterator[tuple[str, Seen]]:
    torch.manual_seed(0)
    model = kind(folder)
    advice = model.lm.generation_config.to_dict()
    yield (
        " is built",
        _parts(model)
        | {
            "the checkpoint's advice for sampling": str(sorted((k, str(v)) for k, v in advice.items())),
            "the last layer's weight at the start": model.value_head[-1].weight.detach().clone(),
            "the last layer's bias at the start": model.value_head[-1].bias.detach().clone(),
        },
    )
    _fill(model.value_head)
    for number, (title, ids, mask) in enumerate(_batches()):
        other_positions = torch.arange(ids.shape[1]).expand_as(ids) + 2
        options = {
            "": {},
            ", other position ids": {"position_ids": other_positions},
            ", three positions of logits": {"logits_to_keep": 3},
        }
        for more, given in options.items() if number == 0 else [("", {})]:
            with _recording(model) as seen:
                result = model(ids, mask, **given)
            seen |= _reported | _named(result, ("the logits", "the values"))
            seen |= _gradients(_tensors(result), _some_weights(model.lm.transformer, model.value_head))
            yield title + more, seen
    state = {name: weight + 1 for name, weight in model.lm.state_dict().items()}
    model.load_from_sft(state)
    seen = {"a weight of the language model": model.lm.transformer.wpe.weight.detach().clone()}
    try:
        model.load_from_sft({name: state[name] for name in list(state)[1:]})
        seen["a state dict that lacks a weight"] = "taken"
    except RuntimeError:
        seen["a state dict that lacks a weight"] = "refused"
    yield ", load_from_sft", seen


def _parts(model: nn.Module) -> Seen:
    """What the model is made of, and in which mode."""
    weights = {name: f"{tuple(weight.shape)} {weight.dtype}" for name, weight in model.named_parameters()}
    layers = [str(module) for name, module in model.named_children() if name.endswith("head")]
    return {
        "the list of the weights": str(weights),
        "the head": ", ".join(layers),
        "the model's training mode": str([module.training for module in model.modules()]),
    }


def _fill(head: nn.Module) -> None:
    """Give the weights of a new head values that are the same each time and not zero."""
    with torch.no_grad():
        for seed, weight in enumerate(head.parameters()):
            weight.copy_(_numbers(seed)(*weight.shape))


def _some_weights(backbone: nn.Module, head: nn.Module) -> dict[str, Tensor]:
    first = next(iter(head.parameters()))
    return {
        "the token embeddings": backbone.wte.weight,
        "the position embeddings": backbone.wpe.weight,
        "the head": first,
    }


@contextmanager
def _recording(model: nn.Module) -> Iterator[Seen]:
    """What cannot be seen in the result: caches that are kept, and tensors that are made on a fixed device."""
    seen: Seen = {}

    def look(module, arguments, output) -> None:
        if hasattr(output, "past_key_values"):
            seen["the cache for generation"] = "none" if output.past_key_values is None else "one"

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    devices = _Devices()
    try:
        with devices:
            yield seen
    finally:
        for hook in hooks:
            hook.remove()
    seen["the device of a new tensor"] = "a fixed one" if devices.fixed else "the input's"


class _Devices(TorchFunctionMode):
    """Notices `torch.arange` without the device of another tensor: it would fail on a GPU."""

    fixed = False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        caller = inspect.currentframe().f_back
        if function is torch.arange and caller.f_code.co_filename == SNIPPET_FILE:
            self.fixed |= not isinstance((kwargs or {}).get("device"), torch.device)
        return function(*args, **(kwargs or {}))
