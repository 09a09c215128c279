"""Props of the examinations in `toy.py`."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ...checks.training import leave_over
from .shared import examined

# --- 7.1 ToyLanguageModel -------------------------------------------------------------------------


def language_model(sizes: Sequence[int], weights: Mapping[str, Tensor], training: bool = False) -> nn.Module:
    """A language model of the package that is examined, with these weights and in this mode."""
    model = examined("toy").ToyLanguageModel(*sizes)
    model.load_state_dict(weights)
    return model.train(training)


def weights_of_new(*sizes: int) -> dict[str, Tensor]:
    return dict(examined("toy").ToyLanguageModel(*sizes).named_parameters())


def gradients(model: nn.Module, ids: Tensor, cotangent: Tensor) -> dict[str, Tensor | None]:
    """Gradient of each weight when `cotangent` arrives at the log-probabilities; None where none arrives."""
    log_probs = model.get_log_probs(ids)
    if log_probs.requires_grad:
        log_probs.backward(cotangent)
    return {name: weight.grad for name, weight in model.named_parameters()}


# --- 7.3 ValueNetwork -----------------------------------------------------------------------------

Layers = list[dict[str, Tensor | None]]  # weight and bias of each linear layer, in the order of the layers


def layers_of_new(*sizes: int) -> tuple[Layers, int]:
    """The linear layers of a new critic, and how many numbers all of its weights are."""
    critic = examined("toy").ValueNetwork(*sizes)
    return _layers(critic), sum(weight.numel() for weight in critic.parameters())


@torch.no_grad()
def critic(sizes: Sequence[int], layers: Layers, training: bool = False) -> nn.Module:
    """A critic of the package that is examined, with these numbers in its linear layers."""
    made = examined("toy").ValueNetwork(*sizes)
    for layer, new in zip(_linear(made), layers, strict=True):
        layer.weight.copy_(new["weight"])
        if layer.bias is not None:
            layer.bias.copy_(new["bias"])
    return made.train(training)


def critic_gradients(critic: nn.Module, states: Tensor, cotangent: Tensor) -> tuple[Layers, Tensor | None]:
    """Gradients of the linear layers and of the states when `cotangent` arrives at the values."""
    states = states.clone().requires_grad_()
    values = critic(states)
    if values.requires_grad:
        values.backward(cotangent)
    found = [
        {"weight": layer.weight.grad, "bias": None if layer.bias is None else layer.bias.grad}
        for layer in _linear(critic)
    ]
    return found, states.grad


def _layers(critic: nn.Module) -> Layers:
    return [{"weight": layer.weight, "bias": layer.bias} for layer in _linear(critic)]


def _linear(critic: nn.Module) -> list[nn.Linear]:
    return [layer for layer in critic.modules() if isinstance(layer, nn.Linear)]


# --- 7.5 toy_ppo_step -----------------------------------------------------------------------------


class Learner:
    """A policy, a critic, an optimiser for each, and how often these two have made a step.

    Args:
        policy_sizes, policy_weights: of the language model.
        critic_sizes, critic_layers: of the value network.
        rates: learning rates of policy and critic.
        momentum: of both.
        left_over: gradient that every weight has, as if from an earlier step; None: no gradient.
    """

    def __init__(
        self,
        policy_sizes: Sequence[int],
        policy_weights: Mapping[str, Tensor],
        critic_sizes: Sequence[int],
        critic_layers: Layers,
        rates: Sequence[float],
        momentum: float,
        left_over: float | None,
    ):
        self.policy = language_model(policy_sizes, policy_weights, training=True)
        self.critic = critic(critic_sizes, critic_layers, training=True)
        models = self.policy, self.critic
        self.optims = [
            torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
            for model, lr in zip(models, rates, strict=True)
        ]
        self.steps = [0, 0]
        for at, optim in enumerate(self.optims):
            optim.register_step_post_hook(lambda *_, at=at: self._count(at))
        for model in models:
            leave_over(model, left_over)

    def _count(self, at: int) -> None:
        self.steps[at] += 1


def learner(*arguments) -> tuple[Learner, nn.Module, nn.Module, object, object]:
    """A `Learner`, and what `toy_ppo_step` is handed of it: policy, critic and their optimisers."""
    made = Learner(*arguments)
    return made, made.policy, made.critic, *made.optims


def outcome(made: Learner) -> tuple[dict[str, Tensor], Layers, list[int]]:
    """Weights of the policy, layers of the critic, and steps of both optimisers."""
    return made.policy.state_dict(), _layers(made.critic), made.steps


# --- 7.6 preference_pair --------------------------------------------------------------------------


class Scripted:
    """In place of a policy: it "samples" from a script, for each prompt one response after the other.

    Attributes:
        calls: rows, max_len and temperature of each call.
    """

    def __init__(self, prompts: list[list[int]], responses: list[list[list[int]]], pad_id: int):
        self._script = {tuple(prompt): rows for prompt, rows in zip(prompts, responses, strict=True)}
        self._next = dict.fromkeys(self._script, 0)
        self._pad_id = pad_id
        self.calls: list[tuple[int, int, float]] = []

    def generate(self, prompt_ids: Tensor, max_len: int, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        self.calls.append((len(prompt_ids), max_len, float(temperature)))
        rows = []
        for row in prompt_ids.tolist():
            responses, at = self._script[tuple(row)], self._next[tuple(row)]
            self._next[tuple(row)] = at + 1
            response = responses[at % len(responses)][:max_len]
            rows.append([*row, *response, *[self._pad_id] * (max_len - len(response))])
        return torch.tensor(rows), torch.zeros(len(rows), max_len)


def calls_of(policy: Scripted) -> list[tuple[int, int, float]]:
    return policy.calls
