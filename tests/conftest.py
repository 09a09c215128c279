"""Small random models and a small tokenizer, built once per session and never downloaded.

The models are untrained, but shaped so that mistakes show: their logits are far from uniform, their positions
matter, GPT-2 carries its usual dropout of 0.1, and its responses end in EOS after a few tokens each.
"""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

# models of this size gain nothing from a second thread, and lose much to it where cores are shared
torch.set_num_threads(1)

EOS = "<|endoftext|>"
EOS_LOGIT = 4.5  # added to GPT-2's logit of EOS: responses of a few tokens, of unequal length

# "there", "weather" and "kindness" are whole tokens: a text cut inside them is tokenised differently
CORPUS = [
    "there is a garden and the weather there is lovely",
    "the soup was warm and the kindness of the cook was rare",
    "there was rain, the weather was grey and the room was cold",
    "kindness is there, the garden is there, the weather is there",
    "这家餐厅的汤很好喝",
    "今天的天气很好",
]


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from the same random state, whichever tests run before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    """A byte-level BPE with EOS, without a pad token, as GPT-2's is."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=EOS, bos_token=EOS).save_pretrained(folder)
    return folder


@pytest.fixture
def tokenizer(tokenizer_folder):
    """A fresh tokenizer for each test: it has no pad token, and the taught code gives it one."""
    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture
def padded_tokenizer(tokenizer):
    """The usual arrangement: the pad token is the EOS token."""
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@pytest.fixture
def bos_tokenizer(tokenizer):
    """A tokenizer that puts a special token before and after a text unless it is told not to."""
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOS} $A {EOS}", special_tokens=[(EOS, tokenizer.eos_token_id)]
    )
    return tokenizer


@pytest.fixture(scope="session")
def gpt2_folder(tokenizer_folder, tmp_path_factory):
    """A random GPT-2 with its tokenizer: 2 layers, 32 wide, dropout 0.1."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=64,
            n_embd=32,
            n_layer=2,
            n_head=4,
            initializer_range=0.2,  # ten times GPT-2's own: far from uniform predictions
            resid_pdrop=0.1,
            embd_pdrop=0.1,
            attn_pdrop=0.1,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    with torch.no_grad():
        eos_direction = model.transformer.wte.weight[tokenizer.eos_token_id]
        model.transformer.ln_f.bias += EOS_LOGIT * eos_direction / eos_direction.square().sum()
    folder = tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def llama_folder(tokenizer_folder, tmp_path_factory):
    """A random Llama (rotary positions, RMS norm, no dropout, untied head) with the same tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    torch.manual_seed(2)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.2,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(params=["gpt2", "llama"])
def model_folder(request):
    """Both families: nothing in the taught code belongs to GPT-2 alone."""
    return request.getfixturevalue(f"{request.param}_folder")
