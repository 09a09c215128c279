"""Builds the backbone `tiny`: `python -m rlhf_lab build-tiny` trains it from nothing, minutes on two cores.

A GPT-2 of about a million parameters reads reviews (`data/corpus/pretraining.py`): every topic, every
wording, every opinion, many with a rating. It learns the language and which words mean well, and nothing of
the task: documents end with a newline and never with EOS, so how to answer a prompt and when to stop is left
for SFT.
"""

import hashlib
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from ..data.corpus.pretraining import pretraining_text
from ..runs import replace_folder, write_json

EOS = "<|endoftext|>"
N_LINES = 40_000
VOCABULARY = 2_304
LONGEST_TOKEN = 18  # bytes: whole English words, but at most six Chinese characters
CONTEXT = 128
STEPS = 1_200
BATCH = 16
LEARNING_RATE = 3e-3
WARM_UP = 50
LOG_EVERY = 100


def corpus_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def train_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2's: one special token, no pad token, nothing added at the beginning."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=LONGEST_TOKEN,
        show_progress=False,
    )
    bpe.train_from_iterator(text.splitlines(keepends=True), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=EOS, eos_token=EOS, unk_token=EOS, model_max_length=CONTEXT
    )


def new_model(vocabulary: int, eos_id: int) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=CONTEXT,
            n_embd=128,
            n_layer=4,
            n_head=4,
            bos_token_id=eos_id,
            eos_token_id=eos_id,
            activation_function="gelu_pytorch_tanh",  # gelu_new, GPT-2's, in one kernel instead of eight
        )
    )


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    warm = min(1.0, (step + 1) / WARM_UP)
    return LEARNING_RATE * warm * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def pretrain(model: GPT2LMHeadModel, stream: torch.Tensor, steps: int) -> float:
    """Train on random windows of the token stream; returns the mean loss of the last steps (nats)."""
    optim = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    model.eval()  # no dropout: it would double the time, and few lines are read more than once
    losses = []
    start = time.perf_counter()
    for step in range(steps):
        for group in optim.param_groups:
            group["lr"] = learning_rate(step, steps)
        first = torch.randint(len(stream) - CONTEXT, (BATCH, 1))
        window = stream[first + torch.arange(CONTEXT)]
        logits = model(input_ids=window[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optim.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        losses.append(loss.item())
        if (step + 1) % LOG_EVERY == 0:
            seconds = time.perf_counter() - start
            print(f"tiny: step {step + 1}/{steps}, loss {loss.item():.3f}, {seconds:.0f} s", flush=True)
    return sum(losses[-LOG_EVERY:]) / len(losses[-LOG_EVERY:])


def build_tiny(out: Path, steps: int = STEPS, seed: int = 0) -> None:
    """Train tokenizer and model and write them, with their provenance, to the folder `out`.

    The same seed and number of steps give the same bytes on one machine (with the same number of threads).
    """
    text = pretraining_text(N_LINES, seed)
    tokenizer = train_tokenizer(text)
    stream = torch.tensor(tokenizer.backend_tokenizer.encode(text).ids)
    torch.manual_seed(seed)
    model = new_model(len(tokenizer), tokenizer.eos_token_id)
    loss = pretrain(model, stream, steps)
    with replace_folder(Path(out)) as folder:
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
        write_json(
            folder / "provenance.json",
            {
                "made_by": "python -m rlhf_lab build-tiny",
                "seed": seed,
                "steps": steps,
                "corpus_lines": N_LINES,
                "corpus_tokens": len(stream),
                "corpus_sha256": corpus_hash(text),
                "parameters": model.num_parameters(),
                "loss": round(loss, 4),
            },
        )
