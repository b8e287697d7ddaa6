"""A model directory without weights: a byte-level tokenizer of a few hundred tokens and a ChatML template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEXT = (
    "The quick brown fox jumps over the lazy dog. "
    "Hello, how are you today? I am fine, thank you. "
    "the cat sat on the mat and the dog sat on the log. "
) * 4
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(directory: Path, template: str | None = CHATML, special: Sequence[str] = ()) -> Path:
    """`template` is the chat template's source, None for a model without one. `special` are further special
    tokens."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.add_special_tokens([tokenizers.AddedToken(each, normalized=False) for each in special])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>"}
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    sizes = {"vocab_size": VOCAB_SIZE, "architectures": ["LlamaForCausalLM"]}
    (directory / "config.json").write_text(json.dumps(sizes))
    return directory


def _tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    return tokenizer
