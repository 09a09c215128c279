"""What the hidden tests of the update steps share: numbers spread over a rollout, and what a step has done with it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.room.props import shared

from .candidate import Candidate
from .hidden import Draw, check, close, entries, number, parts, tensor

Weights = Mapping[str, Tensor]
Right = Callable[[bool], tuple[dict[str, float], Weights]]


def moves(off_policy: float) -> list[float]:
    """Log-ratios of a policy that has moved so far at most since its rollout: none is near a limit of a clip."""
    return [off_policy * share for share in (0.06, -1.0, 0.19, -0.38, 1.0, -0.19, 0.38, -0.06)]


def spread(
    draw: Draw, draw_padding: Draw, real: Tensor, *sizes: float, far: tuple[float, float] = (20, 30)
) -> Tensor:
    """These numbers over the real tokens, in any order; far out, between these two, on padding."""
    found = draw_padding.uniform(*far, *real.shape)
    here = draw.shuffled([sizes[i % len(sizes)] for i in range(int(real.sum()))])
    found[real] = torch.tensor(here)
    return found


class Update:
    """What came back of a call of `ppo_step` or `grpo_step`.

    Attributes:
        info: its numbers.
        moved: how far each weight has moved.
        steps: how many steps the optimiser has made.
        rollout: the rollout after the call.
    """

    def __init__(
        self,
        candidate: Candidate,
        function: str,
        learner: Any,
        rollout: Any,
        settings: Mapping[str, float],
        seed: int,
        weights: Weights,
        names: Sequence[str],
        right: Right,
    ):
        """Make the call.

        Args:
            learner: policy and optimiser, in the room.
            weights: of the policy, before.
            names: of the numbers in `info`.
            right: for each of the two standard deviations that a grader accepts, what should be returned and how each
                weight should move.
        """
        policy, optim = parts(learner, 2)
        answer = candidate.call(function, policy, optim, rollout, after=(2,), seed=seed, **settings)
        info = entries(answer.value, *names)
        self.rollout = answer.after[2]
        self.info = {name: number(info[name]) for name in names}
        self.steps = number(candidate.call(shared.steps_of, policy).value)
        after = candidate.call(shared.weights, policy).value
        self.moved = {name: after[name] - before for name, before in weights.items()}
        self._right = right

    @property
    def way(self) -> Tensor:
        """How far all weights have moved, in one row."""
        return in_one_row(self.moved.values())

    def says(self, *names: str) -> bool:
        """Whether these entries of `info` are right."""
        return any(same_info(self.info, self._right(other)[0], names) for other in (False, True))

    def moves(self) -> bool:
        """Whether every weight has moved as it should."""
        return any(same_moves(self.moved, self._right(other)[1]) for other in (False, True))

    def does_as(self, other: "Update") -> bool:
        """Whether both have moved the weights, in the same way, and say the same."""
        moved = bool(self.way.norm() > 1e-4)
        return moved and same_moves(self.moved, other.moved) and same_info(self.info, other.info, self.info)


def sets_gradients_to_zero(step: Callable[..., Update], epochs: str, left_over: float) -> bool:
    """Whether a gradient that was there before changes nothing, and that of one epoch is gone in the next.

    Args:
        step: makes a small step on one scene.
        epochs: what the function calls its number of epochs.
    """
    clean = step()
    if not step(left_over=left_over).does_as(clean):
        return False
    return twice_as_far(clean.way, step(**{epochs: 2}).way)


def twice_as_far(one: Tensor, both: Tensor) -> bool:
    """Whether two epochs lead less than three times as far as one, which a sum of their gradients does.

    Steps as small as those that this is asked of are the same in both epochs, so that two of them lead twice as far.
    """
    return bool(both @ one < 2.5 * one.square().sum())


def check_kept(way: Tensor, after: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Of an update that moves the weights: fail unless what it was made on is as it was, in every field."""
    check(way.norm() > 1e-4, "Your update moves no weight.")
    for name, old in before.items():
        now = after[name]
        check(torch.equal(tensor(now), old) if isinstance(old, Tensor) else now == old)


def in_one_row(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def same_info(one: Mapping[str, float], other: Mapping[str, float], names: Iterable[str]) -> bool:
    return all(close(one[name], other[name], tolerance=1e-3) for name in names)


def same_moves(one: Weights, other: Weights) -> bool:
    return all((one[name] - moved).norm() <= 2e-3 * moved.norm() + 1e-5 for name, moved in other.items())
