"""Progress of a stage, and the watch for numbers that are not finite."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from .errors import LabError


class StageWatch:
    """Counts the steps of a stage, shows them as a progress bar, and stops the run at the first NaN or infinity.

    It looks at what the watched modules return, at every gradient before an optimiser uses it, and at the figures
    that it is given.

    Args:
        stage: name of the stage, for the bar and the message.
        n_steps: how many steps the stage has; `step` starts at `done`.
        last_good: what is safe on disk if the stage breaks now, in words.
    """

    def __init__(self, stage: str, n_steps: int, last_good: str, done: int = 0):
        self.stage = stage
        self.step = done
        self.last_good = last_good
        self._bar = tqdm(total=n_steps, initial=done, desc=stage, unit="step", dynamic_ncols=True)
        self._hooks = []

    def __enter__(self) -> "StageWatch":
        self._hooks.append(register_optimizer_step_pre_hook(self._look_at_gradients))
        return self

    def __exit__(self, *exception) -> None:
        self._bar.close()
        for hook in self._hooks:
            hook.remove()

    def advance(self, **shown: float) -> None:
        self.step += 1
        self._bar.set_postfix({name: f"{value:.3f}" for name, value in shown.items()}, refresh=False)
        self._bar.update()

    def module(self, module: torch.nn.Module, name: str) -> None:
        """Look at what `module` returns (its logits, or the first, where it returns more) each time it is called."""

        def look(_module, _inputs, output) -> None:
            tensor = getattr(output, "logits", output)
            if isinstance(tensor, tuple):  # a language model that was asked for one
                tensor = tensor[0]
            if not torch.isfinite(tensor).all():
                self._stop(name, "holds NaN or infinity")

        self._hooks.append(module.register_forward_hook(look))

    def figures(self, figures: dict[str, float]) -> None:
        """Look at the figures of the present step."""
        for name, value in figures.items():
            if not math.isfinite(value):
                self._stop(name, f"is {value}")

    def losses(self, losses: Sequence[float]) -> None:
        """Look at the losses of a finished stage, one a step."""
        for step, loss in enumerate(losses):
            if not math.isfinite(loss):
                self._stop("loss", f"is {loss}", step)

    def weights(self, model: torch.nn.Module) -> None:
        """Look at the weights that the last step left."""
        for name, weight in model.named_parameters():
            if not torch.isfinite(weight).all():
                self._stop(name, "holds NaN or infinity after the last step")

    def _look_at_gradients(self, optim: torch.optim.Optimizer, _args, _kwargs) -> None:
        gradients = [p.grad for group in optim.param_groups for p in group["params"] if p.grad is not None]
        if not all(torch.isfinite(gradient).all() for gradient in gradients):
            self._stop("the gradient of the loss", "holds NaN or infinity")

    def _stop(self, name: str, what: str, step: int | None = None) -> None:
        raise LabError(
            f"{self.stage}, step {self.step if step is None else step}: {name} {what}; the last good checkpoint is "
            f"{self.last_good}; a smaller learning rate is the first thing to try"
        )


class WatchedLoader:
    """A data loader that moves the stage's progress bar and calls `between_epochs(epochs_done)`.

    `train_sft` and `train_rm` are handed a loader and nothing else of the workbench; the loader is therefore the
    place from which the workbench can look on.
    """

    def __init__(
        self,
        loader: DataLoader,
        watch: StageWatch,
        between_epochs: Callable[[int], None] = lambda epochs_done: None,
    ):
        self._loader = loader
        self._watch = watch
        self._between_epochs = between_epochs
        self._epochs_begun = 0

    def __getattr__(self, name: str):
        return getattr(self._loader, name)  # `dataset`, `batch_size` and the like

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[dict]:
        if self._epochs_begun > 0:
            self._between_epochs(self._epochs_begun)
        self._epochs_begun += 1
        for batch in self._loader:
            yield batch
            self._watch.advance()


def shuffled(dataset: Dataset, batch_size: int, seed: int) -> DataLoader:
    """Batches in an order that depends on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, generator=generator)
