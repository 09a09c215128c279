"""Everything that the stages of one run share, checked at the door."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import backbones, rewards
from .data import TOY_NAMES, CourseData, dialogues, load_data
from .devices import Compute, choose_compute
from .errors import LabError
from .memory import Arithmetic, Need, Workload, largest, needs, read_shape
from .profiles import Profile, choose_profile
from .settings import Settings
from .taught_code import TaughtCode, load_code


@dataclass(frozen=True)
class Lab:
    """One run's settings and what they stand for.

    Attributes:
        folder: the run folder.
        compute: device and dtype.
        code: the taught package.
        base: folder of the backbone.
        tokenizer: its tokenizer, with a pad token.
        judge: the independent judge, a text scorer from 0 to 1; never what PPO is trained on.
        stand_in: the text scorer that PPO is trained on, or None where a reward model is trained for it.
        profile: in how many passes a batch goes through the models, or None for one.
    """

    settings: Settings
    folder: Path
    compute: Compute
    code: TaughtCode
    base: Path
    tokenizer: Any
    data: CourseData
    judge: rewards.TextScorer
    stand_in: rewards.TextScorer | None
    profile: Profile | None = None

    @property
    def sft_model(self) -> Path:
        """Where the SFT stage leaves its model."""
        return self.folder / "sft" / "model"

    def needs(self, profile: Profile | None) -> dict[str, Need]:
        """The computed memory of each stage under a profile."""
        arithmetic = Arithmetic(self.compute.precision == "bfloat16", self.compute.device.type == "cuda")
        work = workload(self.settings, self.tokenizer, self.data)
        return needs(read_shape(self.base), work, profile, arithmetic)


def open_lab(settings: Settings, folder: Path) -> Lab:
    """Load code, backbone, data and judge.

    Raises:
        LabError: when one of them is missing, or a text does not fit; nothing has been trained then.
    """
    backbones.quiet_transformers()
    compute = choose_compute(settings.device, settings.dtype)
    code = load_code(settings.code)
    base = backbones.resolve(settings.backbone)
    tokenizer = backbones.load_tokenizer(base)
    data = data_of_run(settings, tokenizer)
    _check_lengths(settings, base, tokenizer, data)
    judge = _judge(settings, data, compute)
    stand_in = None if settings.reward == "rm" else text_scorer(settings.reward, compute)
    lab = Lab(settings, folder, compute, code, base, tokenizer, data, judge, stand_in)
    profile = choose_profile(
        settings.profile, compute.free_and_total(), lambda p: largest(lab.needs(p)).total
    )
    return dataclasses.replace(lab, profile=profile)


def data_of_run(settings: Settings, tokenizer) -> CourseData:
    """The data that a run reads; of a hub set the rows that fit into its lengths."""
    data = load_data(settings.data, settings.rows)
    return data if dialogues.named(settings.data) is None else dialogues.fitting(data, tokenizer, settings)


def workload(settings: Settings, tokenizer, data: CourseData) -> Workload:
    """What of settings and data the memory of a run depends on."""
    prompts = [*data.prompts_train["prompt"], *data.prompts_heldout["prompt"]]
    classifiers = {settings.reward, settings.judge} - {"rm", "auto", "toy", "vader"}
    return Workload(
        batch=settings.batch,
        prompt=max(map(len, tokenizer(prompts, add_special_tokens=False).input_ids)),
        response=settings.new_tokens,
        sft_batch=settings.sft_batch,
        rm_batch=settings.rm_batch,
        max_len=settings.max_len,
        reward_model=settings.reward == "rm",
        classifiers=sum(
            weights.stat().st_size
            for name in classifiers
            for weights in classifier_folder(name).glob("*.safetensors")
        ),
    )


def text_scorer(name: str, compute: Compute) -> rewards.TextScorer:
    """The stand-in called `name`: `vader`, `sst2` or a classifier's folder."""
    if name == "vader":
        return rewards.VaderScorer()
    return rewards.CheckedScorer(name, rewards.ClassifierScorer(classifier_folder(name), compute.device))


def classifier_folder(name: str) -> Path:
    return backbones.resolve(rewards.SST2 if name == "sst2" else name)


def _judge(settings: Settings, data: CourseData, compute: Compute) -> rewards.TextScorer:
    from .data.judge import ToyJudge

    name = settings.judge
    if name == "auto":
        # the corpus's own rules also read other English better than a judge that PPO is trained on
        name = "toy" if data.name in TOY_NAMES or settings.reward == "vader" else "vader"
    same_folder = Path(name).is_dir() and Path(name).resolve() == Path(settings.reward).resolve()
    if name == settings.reward or same_folder:
        raise LabError(
            f"the judge must be independent of the reward, and both are {name}: choose another --judge"
        )
    if name == "toy":
        return ToyJudge()
    scorer = text_scorer(name, compute)
    if name == "vader":
        return lambda texts: [(compound + 1) / 2 for compound in scorer(texts)]
    return scorer


def _check_lengths(settings: Settings, base: Path, tokenizer, data: CourseData) -> None:
    context = backbones.context_length(base, vocabulary=len(tokenizer))
    if settings.max_len > context:
        raise LabError(
            f"--max-len is {settings.max_len}, but {settings.backbone} reads {context} tokens at most"
        )
    limits = {
        "sft_train": (
            settings.max_len - 1,
            f"and --max-len {settings.max_len} leaves no room for a response",
        ),
        "prompts_train": (
            context - settings.new_tokens,
            f"and with {settings.new_tokens} new ones it does not fit into the context of {context}",
        ),
    }
    limits |= {"sft_heldout": limits["sft_train"], "prompts_heldout": limits["prompts_train"]}
    for split, (limit, why) in limits.items():
        prompts = list(getattr(data, split)["prompt"])
        for prompt, ids in zip(prompts, tokenizer(prompts, add_special_tokens=False).input_ids, strict=True):
            if not ids:
                raise LabError(f"{data.name}, {split}: the prompt {prompt!r} has no tokens")
            if len(ids) > limit:
                start = prompt if len(prompt) <= 40 else prompt[:40] + "..."
                raise LabError(f"{data.name}, {split}: the prompt {start!r} has {len(ids)} tokens, {why}")
