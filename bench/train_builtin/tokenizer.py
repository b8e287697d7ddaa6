"""Trains the byte-level BPE tokenizer on generated text and writes the tokenizer files of the model folder.

Capitalised words and digits are split from the space before them, so that a name or a number is the same
tokens after a space, inside quotes and at the start of a line: copying a text is then copying its tokens.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer
from transformers import AddedToken

from .conversation import render
from .mixture import MAX_DOCUMENT, Stage, conversations

VOCABULARY = 2048
CONTEXT = 4096
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
PAD, END = 0, 2
PIECES = (
    r"'(?:s|t|re|ve|m|ll|d)|\p{Lu}[\p{Ll}\p{M}]*| ?[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
)
SAMPLE = Stage(1.0, (28, 42, 24, 3, 3), MAX_DOCUMENT)
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def train_tokenizer(samples: int = 6000) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(PIECES), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY - len(MARKS),
        special_tokens=list(CONTROL),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    stream = itertools.islice(conversations("tokenizer", SAMPLE), samples)
    tokenizer.train_from_iterator((_plain_text(c.messages()) for c in stream), trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def _plain_text(messages: list[dict[str, str]]) -> str:
    text = render(messages)
    for control in CONTROL:
        text = text.replace(control, "")
    return text


def write_tokenizer(folder: Path) -> Tokenizer:
    """Writes tokenizer.json and tokenizer_config.json (with the chat template) to `folder`."""
    tokenizer = train_tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE.read_text(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer
