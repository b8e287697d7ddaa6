"""What an int8 KV cache costs the built-in model: its own tasks, with both dtypes of the cache.

    PYTHONSAFEPATH=1 python bench/kv_dtype.py --conversations 100

Prints the right replies of each task and how many replies are the same with both. `bench/kernels.py kv_dtype`
prints the times of the kernels.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from arbora import Engine
from arbora.runtime.config import BUILTIN_MODEL
from arbora.runtime.model.builtin.training.evaluate import MAKERS, evaluate
from transformers import AutoTokenizer, PreTrainedTokenizerBase

KV_DTYPES = ("auto", "int8")


class EngineModel:
    """An engine in the place of the model of transformers that `evaluate` expects."""

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self.replies: dict[tuple[int, ...], str] = {}
        """by prompt"""

    def generate(self, input_ids: torch.Tensor, max_new_tokens: int, **_: object) -> torch.Tensor:
        prompt = input_ids[0].tolist()
        text = self._engine.generate(prompt, max_tokens=max_new_tokens, temperature=0.0).text
        self.replies[tuple(prompt)] = text
        return torch.tensor([[*prompt, *self._tokenizer.encode(text, add_special_tokens=False)]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=100, help="for each task")
    parser.add_argument("--seed", type=int, default=1, help="another one asks other questions")
    parser.add_argument("--dtype", default="bfloat16", help="of the activations")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN_MODEL)
    found: dict[str, dict[str, tuple[int, int]]] = {}
    replies: list[dict[tuple[int, ...], str]] = []
    for kv_dtype in KV_DTYPES:
        with Engine(device="cpu", dtype=options.dtype, kv_dtype=kv_dtype) as engine:
            model: Any = EngineModel(engine, tokenizer)
            for task in MAKERS:
                right, _ = evaluate(task, options.conversations, options.seed, model, tokenizer)
                found.setdefault(task, {})[kv_dtype] = right[True], sum(right.values())
            replies.append(model.replies)
    print(f"{'task':<10}" + "".join(f"{name:>16}" for name in KV_DTYPES))
    for task, results in found.items():
        cells = (f"{right}/{asked} {right / asked:.1%}" for right, asked in results.values())
        print(f"{task:<10}" + "".join(f"{cell:>16}" for cell in cells))
    both = replies[0].keys() & replies[1].keys()
    same = sum(replies[0][prompt] == replies[1][prompt] for prompt in both)
    print(f"the same reply to {same} of {len(both)} prompts that both got")


if __name__ == "__main__":
    main()
