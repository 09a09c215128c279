"""`python -m rlhf_lab memory`: what a run needs on a GPU, by computation, on any machine."""

from . import backbones
from .devices import DTYPES
from .errors import LabError
from .lab import data_of_run, workload
from .memory import Arithmetic, format_needs, in_gib, largest, needs, read_shape
from .profiles import GIB, NOMINAL, PROFILES, choose_profile, describe_profile
from .settings import Settings


def memory_table(settings: Settings) -> str:
    """One profile line by line, or, for `--profile auto`, all of them, a line each.

    Raises:
        LabError: when backbone, data or profile is missing.
    """
    if settings.dtype not in ("auto", *DTYPES):
        raise LabError(f"dtype {settings.dtype!r} is not supported: use auto, {' or '.join(DTYPES)}")
    backbones.quiet_transformers()
    arithmetic = Arithmetic(bf16=settings.dtype != "float32", gpu=True)  # `auto` is bfloat16 on a GPU
    base = backbones.resolve(settings.backbone)
    tokenizer = backbones.load_tokenizer(base)
    work = workload(settings, tokenizer, data_of_run(settings, tokenizer))
    shape = read_shape(base)
    title = (
        f"computed memory of {settings.backbone} on a GPU, {'bfloat16' if arithmetic.bf16 else 'float32'}: "
        f"{work.batch} responses of {work.response} tokens to prompts of up to {work.prompt}"
    )
    if settings.profile != "auto":
        profile = choose_profile(settings.profile, None, lambda _: 0)
        found = needs(shape, work, profile, arithmetic)
        return format_needs(f"{title}\nprofile {describe_profile(profile)}", found, None, profile)
    lines = [title, "GiB of each stage, the reserve included:"]
    for profile in (None, *PROFILES.values()):
        found = needs(shape, work, profile, arithmetic)
        stages = ", ".join(f"{need.stage} {in_gib(need.total)}" for need in found.values())
        lines.append(f"  {describe_profile(profile)}: {stages}")
        if profile is not None and largest(found).total > NOMINAL * profile.card * GIB:
            lines[-1] += f"; too much for a card of {profile.card} GB: give a smaller --batch or --max-len"
    return "\n".join(lines)
