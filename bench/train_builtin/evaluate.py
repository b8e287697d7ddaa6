"""Measures the built-in model on held-out conversations: greedy, unconstrained, its own replies as history.

    PYTHONPATH=bench python -P -m train_builtin.evaluate --model runtime/model/builtin

Invented names come from the half of the name space that training never sees. Chat and document questions
count when the reply contains exactly the asked fact; JSON counts when it parses to the expected object.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BatchEncoding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from .chat import make_chat
from .conversation import Conversation, Turn
from .documents import NOT_TOLD
from .extraction import make_extraction
from .lexicon import Words
from .mixture import document_of_any_length
from .small_talk import make_small_talk

MAKERS: dict[str, Callable[[Words], Conversation]] = {
    "chat": make_chat,
    "document": document_of_any_length,
    "json": make_extraction,
    "talk": make_small_talk,
}
MAX_PROMPT = 1024
MAX_REPLY = 200
"""tokens"""
Reply = Callable[[list[dict[str, str]]], str | None]
"""the model's reply to messages, or None if the prompt is longer than what is measured"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate Arbora's built-in model.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--conversations", type=int, default=100, help="for each task")
    parser.add_argument("--seed", type=int, default=1, help="another one asks other questions")
    parser.add_argument("--misses", type=int, default=0, help="wrong replies to print for each task")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    model.eval()
    reply_to = partial(greedy_reply, model=model, tokenizer=tokenizer)
    print(f"{'task':<10}{'asked':>7}{'right':>7}{'accuracy':>10}")
    for task in MAKERS:
        right, misses = evaluate(task, options.conversations, options.seed, reply_to)
        asked = sum(right.values())
        print(f"{task:<10}{asked:>7}{right[True]:>7}{right[True] / asked:>10.1%}", flush=True)
        for prompt_end, expected, reply in misses[: options.misses]:
            print(f"    {prompt_end!r}\n      expected {expected!r}\n      got      {reply!r}")


def evaluate(
    task: str, count: int, seed: int, reply_to: Reply
) -> tuple[Counter[bool], list[tuple[str, str, str]]]:
    """How many graded turns were right and wrong, and the wrong ones as (end of prompt, expected, reply)."""
    right: Counter[bool] = Counter()
    misses = []
    words = Words(random.Random(f"held-out/{seed}/{task}"), held_out=True)
    for _ in range(count):
        conversation = MAKERS[task](words)
        messages = conversation.messages(turns=0)
        for turn in conversation.turns:
            messages.append({"role": "user", "content": turn.user})
            reply = reply_to(messages)
            if reply is None:
                break
            messages.append({"role": "assistant", "content": reply})
            if turn.fact is None and task != "talk":
                continue
            good = is_right(task, turn, reply)
            right[good] += 1
            if not good:
                misses.append((turn.user[-300:], turn.reply, reply))
    return right, misses


def greedy_reply(
    messages: list[dict[str, str]], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> str | None:
    """See `Reply`."""
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert isinstance(prompt, BatchEncoding)
    length = prompt["input_ids"].shape[1]
    if length > MAX_PROMPT:
        return None
    with torch.inference_mode():
        output: torch.Tensor = model.generate(**prompt, max_new_tokens=MAX_REPLY, do_sample=False)
    reply = tokenizer.decode(output[0, length:], skip_special_tokens=True)
    assert isinstance(reply, str)
    return reply


def is_right(task: str, turn: Turn, reply: str) -> bool:
    if task == "json":
        expected: object = json.loads(turn.reply)
        return _parsed(reply) == expected
    if turn.fact is None or turn.fact == NOT_TOLD:
        return reply == turn.reply
    return re.search(rf"(?<!\w){re.escape(turn.fact)}(?!\w)", reply) is not None


def _parsed(reply: str) -> object:
    try:
        return json.loads(reply)
    except json.JSONDecodeError:
        return None


if __name__ == "__main__":
    main()
