"""Small models for the checks: a few thousand numbers, the same on every machine, with everything that shows mistakes.

Their logits are far from uniform, their positions matter, dropout is 0.1 as GPT-2's, and responses end in EOS after a
few tokens each.
"""

import atexit
import copy
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..backbones import TINY, load_tokenizer, quiet_transformers

EOS_LOGIT = 6.0  # added to the logit of EOS: a response has about six tokens
RECOMMENDED = {
    "top_k": 7,
    "repetition_penalty": 1.7,
}  # how the checkpoint of `recommending_folder` is to be sampled


def random_gpt2(seed: int, vocab_size: int, n_positions: int, n_embd: int, eos_id: int, n_layer: int = 2):
    """A GPT-2 of few layers, whose logits are far from uniform. Torch's random generator is as before afterwards."""
    from transformers import GPT2Config, GPT2LMHeadModel

    quiet_transformers()
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=n_positions, n_embd=n_embd, n_layer=n_layer, n_head=2,
        bos_token_id=eos_id, eos_token_id=eos_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        model = GPT2LMHeadModel(config)
    random = np.random.RandomState(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.copy_(torch.tensor(random.normal(0, 0.3, weight.shape)))
            elif name.endswith("bias"):
                weight.copy_(torch.tensor(random.normal(0, 0.05, weight.shape)))
    return model


@cache
def micro_folder() -> str:
    """A random GPT-2 of two layers, 16 wide, with the tokenizer of `tiny`; the folder lives as long as the process."""
    tokenizer = load_tokenizer(TINY)
    eos_id = tokenizer.eos_token_id
    model = random_gpt2(0, len(tokenizer), 64, 16, eos_id)
    with torch.no_grad():
        toward_eos = model.transformer.wte.weight[eos_id]
        model.transformer.ln_f.bias += EOS_LOGIT * toward_eos / toward_eos.square().sum()
    folder = tempfile.mkdtemp(prefix="rlhf-micro-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@cache
def recommending_folder() -> str:
    """The micro model, whose checkpoint recommends how to sample: a few tokens only, and no repetitions."""
    from transformers import GenerationConfig

    folder = tempfile.mkdtemp(prefix="rlhf-micro-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(micro_folder(), folder, dirs_exist_ok=True)
    GenerationConfig(do_sample=True, **RECOMMENDED).save_pretrained(folder)
    return folder


def micro_lm():
    """The micro model as transformers loads it: in eval mode."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(micro_folder(), dtype=torch.float32)


@cache
def reading_lm():
    """The micro model to read with or to copy: loading it again is slow. Nothing of the student's may change it."""
    return micro_lm()


def micro_tokenizer(pad: bool = True):
    """Its tokenizer; with `pad=False` as GPT-2's comes: without a pad token."""
    tokenizer = copy.deepcopy(_tokenizer())  # the taught code changes it; loading it again is slow
    tokenizer.pad_token = tokenizer.eos_token if pad else None
    return tokenizer


def special_tokenizer():
    """A tokenizer that puts EOS before and after a text unless it is told not to."""
    from tokenizers import processors

    tokenizer = micro_tokenizer()
    eos = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{eos} $A {eos}", special_tokens=[(eos, tokenizer.eos_token_id)]
    )
    return tokenizer


@cache
def _tokenizer():
    return load_tokenizer(Path(micro_folder()))


@cache
def reading_tokenizer():
    """The micro model's tokenizer to read with. A student's code gets a new one: it may change it."""
    return micro_tokenizer()


@cache
def token_ids(text: str) -> list[int]:
    """Ids of a text without special tokens: to be looked at, not changed."""
    return reading_tokenizer()(text, add_special_tokens=False).input_ids


class SmallCausalLM(nn.Module):
    """In place of a language model of transformers, and called as one: the attention mask is its third argument.

    Each output depends on all real tokens so far, and on the positions that it is given. There is dropout.

    Args:
        scale: of the logits.
    """

    def __init__(self, n_tokens: int, width: int, n_positions: int, scale: float = 1.0):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(n_tokens, width), nn.Embedding(n_positions, width)
        self.lm_head = nn.Linear(width, n_tokens)
        self.dropout = nn.Dropout(0.1)
        self.scale = scale

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    def forward(
        self, input_ids, past_key_values=None, attention_mask=None, position_ids=None, logits_to_keep=0, **_
    ):
        from transformers.modeling_outputs import CausalLMOutput

        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        read = (self.tokens(input_ids) + self.positions(position_ids)) * mask.unsqueeze(-1)
        hidden = self.dropout(read.cumsum(dim=1) / mask.cumsum(dim=1).clamp(min=1).unsqueeze(-1))
        return CausalLMOutput(logits=self.scale * self.lm_head(hidden)[:, -logits_to_keep:])
