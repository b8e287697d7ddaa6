"""Writes a checkpoint of random weights with a trained tokenizer, for measuring speed.

    PYTHONSAFEPATH=1 python bench/make_checkpoint.py --shape 0.6b build/0.6b

With `--adapters 8` it also writes LoRA adapters of all linear layers: DIRECTORY/adapters/0 and so on.

The shapes are those of Qwen3; `1b-moe` has 64 experts, of which each token has 8. The
tokenizer is a byte-level BPE of 32,000 tokens, trained on text that is generated
here; prompts made of the same words (`sample_text`) are about one token a word.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from arbora.runtime.model.decoder_config import load_decoder_config
from arbora.runtime.model.weight_formats import load_weight_formats
from arbora.runtime.model.weights import expected_tensors, projections
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

VOCAB_SIZE = 32_000
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, END_OF_TURN = 0, 2
SHAPES: dict[str, dict[str, Any]] = {
    "125m": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 3072,
    },
    "0.6b": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
    },
    "8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
    },
    "1b-moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 3072,
        "moe_intermediate_size": 384,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}
CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
SYLLABLES = [a + b + c for a in "bcdfghklmnprstvw" for b in "aeiou" for c in ("", "n", "r", "s", "l")]
WORDS = 60_000
LINES = 60_000


def words(seed: int = 0) -> list[str]:
    """Invented words; the frequent ones are short."""
    choose = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < WORDS:
        found["".join(choose.choices(SYLLABLES, k=2 + (len(found) > 4000) + choose.randrange(2)))] = None
    return list(found)


def sample_text(vocabulary: list[str], choose: random.Random, count: int) -> str:
    """`count` words, in which the n-th word of the vocabulary is about 1/n as frequent as the first."""
    picked = [vocabulary[int(len(vocabulary) ** choose.random()) - 1] for _ in range(count)]
    return " ".join(picked).capitalize() + "."


def corpus(seed: int = 0) -> Iterator[str]:
    """Yields lines of prose, JSON, numbers and code."""
    vocabulary, choose = words(seed), random.Random(seed)
    for line in range(LINES):
        if line % 4 == 0:
            fields = {choose.choice(vocabulary): choose.randrange(10**4) for _ in range(4)}
            yield json.dumps(fields, separators=(",", ":") if line % 8 else (", ", ": "))
        elif line % 4 == 1:
            name, other = choose.choices(vocabulary, k=2)
            yield f"def {name}({other}):\n    return {other}[{choose.randrange(100)}] + 1\n"
        else:
            yield sample_text(vocabulary, choose, 30)


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, tokenizer.get_vocab_size()
    return tokenizer


def write_config(directory: Path, shape: str) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": END_OF_TURN,
    }
    write_json(directory / "config.json", config | SHAPES[shape])
    write_json(directory / "generation_config.json", {"eos_token_id": [END_OF_TURN, END_OF_TEXT]})


def write_tokenizer(directory: Path) -> None:
    train_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[END_OF_TURN],
        "pad_token": SPECIAL[END_OF_TEXT],
        "model_max_length": 32_768,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(directory / "tokenizer_config.json", settings)


def write_weights(directory: Path) -> None:
    torch.manual_seed(0)
    unquantized = load_weight_formats(directory, frozenset())
    expected = expected_tensors(load_decoder_config(directory), unquantized.choose)
    tensors = {name: random_tensor(spec.shapes[0]) for name, spec in expected.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def write_adapters(directory: Path, count: int, rank: int) -> None:
    linear = [each for each in projections(load_decoder_config(directory)) if ".layers." in each.name]
    kinds = sorted({each.name.rpartition(".")[2] for each in linear})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": kinds}
    for number in range(count):
        adapter = directory / "adapters" / str(number)
        adapter.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for each in linear:
            name = f"base_model.model.{each.name}"
            tensors[f"{name}.lora_A.weight"] = random_tensor((rank, each.inputs))
            tensors[f"{name}.lora_B.weight"] = random_tensor((each.outputs, rank))
        save_file(tensors, adapter / "adapter_model.safetensors")
        write_json(adapter / "adapter_config.json", config)


def random_tensor(shape: tuple[int, ...]) -> torch.Tensor:
    """Drawn on a GPU if there is one: that takes seconds for an 8B shape. The values are then others."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensor = torch.ones(shape, dtype=torch.bfloat16, device=device)
    return (tensor.normal_(std=0.02) if len(shape) > 1 else tensor).cpu()


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--adapters", type=int, default=0, help="number of LoRA adapters")
    parser.add_argument("--rank", type=int, default=16, help="their rank (default: %(default)s)")
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    write_config(arguments.directory, arguments.shape)
    write_tokenizer(arguments.directory)
    write_weights(arguments.directory)
    write_adapters(arguments.directory, arguments.adapters, arguments.rank)


if __name__ == "__main__":
    main()
