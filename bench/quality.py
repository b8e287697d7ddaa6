"""Measures the quality that a weight format or a KV cache's dtype costs, compared with float32.

    python bench/quality.py --format bfloat16 --format int8 --format "--quantize int4 --kv-dtype int8"
    python bench/quality.py CHECKPOINT --format model.Q4_K_M.gguf --format bfloat16

A format is a dtype, a value of `--quantize`, or options of `arbora serve`, optionally after the path of
another model. The reference is MODEL in float32. Every format predicts the same tokens, with the runner of
the server:

KL          divergence from the reference's distribution, in nats: the mean of all positions and their p99
top-1       share of positions whose most likely token is the reference's
perplexity  of the texts themselves

The texts are `texts/prose.txt` and, for the built-in model, conversations of the kind that it was trained on.
That model also does its four tasks: the tables have the share of right replies of each, and, of the prompts
that both got, the share of replies equal to the reference's. With random weights only the divergences mean
something, and little: such weights are more sensitive to rounding than trained ones. It needs transformers.
For the small built-in model OMP_NUM_THREADS=1 is fastest on a busy machine.
"""

from __future__ import annotations

import argparse
import gc
import random
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, get_args

import torch

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / "lib")]
from arbora.runtime.config import BUILTIN_MODEL, QuantizeMethod
from arbora.runtime.errors import ConfigError
from divergence import Divergence, divergence
from loaded_model import LoadedModel, config_of
from reports import table
from train_builtin.evaluate import MAKERS, MAX_PROMPT, MAX_REPLY, evaluate
from train_builtin.lexicon import Words
from transformers import AutoModelForCausalLM, AutoTokenizer, BatchEncoding, PreTrainedTokenizerBase

PROSE = Path(__file__).parent / "texts" / "prose.txt"
SHORT_NAMES = {
    **{dtype: ["--dtype", dtype] for dtype in ("float32", "bfloat16", "float16")},
    **{name: ["--quantize", name] for name in get_args(QuantizeMethod)},
}
EXAMPLE_CONVERSATIONS = 12
"""conversations of each task whose tokens are predicted"""

Windows = list[list[int]]
"""token ids of each sequence that is predicted on its own"""
Predict = Callable[[list[int]], torch.Tensor]
"""Returns the log-probabilities after each of the tokens but the last, float32 [len(tokens) - 1, vocab]."""
Replies = dict[tuple[int, ...], str]
"""replies by the tokens of their prompt"""


class Row(NamedTuple):
    """The figures of one format for each text, and its shares for each task and of `same replies`."""

    name: str
    texts: dict[str, Divergence]
    tasks: dict[str, float]


def arguments_of(format_: str, model: Path) -> list[str]:
    """The arguments of `arbora serve` for a format."""
    words = shlex.split(format_)
    if len(words) == 1 and words[0] in SHORT_NAMES:
        words = SHORT_NAMES[words[0]]
    return [str(model), *words] if not words or words[0].startswith("-") else words


def windows_of(tokens: Sequence[int], length: int, most: int) -> Windows:
    """Cuts at most `most` tokens into pieces of `length`; a last piece of one token is dropped."""
    pieces = [list(tokens[start : min(start + length, most)]) for start in range(0, most, length)]
    return [piece for piece in pieces if len(piece) > 1]


def conversations(tokenizer: PreTrainedTokenizerBase, most: int) -> Windows:
    """Whole conversations of the built-in model's tasks, with the right replies."""
    found = []
    for task, make in MAKERS.items():
        words = Words(random.Random(f"quality/{task}"), held_out=True)
        for _ in range(EXAMPLE_CONVERSATIONS):
            tokens = tokenizer.apply_chat_template(make(words).messages(), return_dict=True)
            assert isinstance(tokens, BatchEncoding)
            found.append(list(tokens["input_ids"])[:most])
    return found


def texts_of(options: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> dict[str, Windows]:
    prose = tokenizer.encode(PROSE.read_text(encoding="utf-8"), add_special_tokens=False)
    texts = {"prose": windows_of(prose, options.window, options.tokens)}
    if is_builtin(options.model):
        texts["conversations"] = conversations(tokenizer, options.window)
    return texts


def is_builtin(model: Path) -> bool:
    return model.resolve() == BUILTIN_MODEL


def predictions(texts: dict[str, Windows], predict: Predict) -> dict[str, torch.Tensor]:
    return {name: torch.cat([predict(window) for window in windows]) for name, windows in texts.items()}


def targets_of(windows: Windows) -> torch.Tensor:
    """The token after each position, which is predicted; int64."""
    return torch.tensor([after for window in windows for _, after in pairwise(window)])


def task_accuracy(
    model: LoadedModel, tokenizer: PreTrainedTokenizerBase, conversations_each: int
) -> tuple[dict[str, float], Replies]:
    """The share of right replies for each task, and all replies."""
    ends = frozenset([tokenizer.eos_token_id])
    replies: Replies = {}

    def reply_to(messages: list[dict[str, str]]) -> str | None:
        encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        assert isinstance(encoded, BatchEncoding)
        prompt = list(encoded["input_ids"])
        if len(prompt) > MAX_PROMPT:
            return None
        reply = tokenizer.decode(model.reply(prompt, ends, MAX_REPLY), skip_special_tokens=True)
        assert isinstance(reply, str)
        replies[tuple(prompt)] = reply
        return reply

    shares = {}
    for task in MAKERS:
        right, _ = evaluate(task, conversations_each, 1, reply_to)
        shares[task] = right[True] / right.total()
    return shares, replies


def same_replies(reference: Replies, replies: Replies) -> float:
    both = reference.keys() & replies.keys()
    return sum(reference[prompt] == replies[prompt] for prompt in both) / len(both)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """A row for the reference, one for transformers if asked for, and one for each format."""
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    texts = texts_of(options, tokenizer)
    targets = {name: targets_of(windows) for name, windows in texts.items()}
    context = max(options.window, MAX_PROMPT + MAX_REPLY if is_builtin(options.model) else 0)
    reference: dict[str, torch.Tensor] = {}
    reference_replies: Replies = {}

    def row(name: str, found: dict[str, torch.Tensor], tasks: dict[str, float]) -> Row:
        return Row(
            name, {text: divergence(reference[text], found[text], targets[text]) for text in texts}, tasks
        )

    formats = ["float32", *options.format]
    configs = [config_of(arguments_of(format_, options.model), context) for format_ in formats]
    for format_, config in zip(formats, configs, strict=True):
        model = LoadedModel(config)
        found = predictions(texts, partial(model.logprobs, chunk=options.chunk))
        if {found[text].shape for text in texts} - {reference.get(t, found[t]).shape for t in texts}:
            raise SystemExit(
                f"--format {format_}: its vocabulary has {model.ready.vocab_size} tokens, the reference's "
                f"{next(iter(reference.values())).shape[1]}: only formats of one model can be compared."
            )
        reference = reference or found
        tasks: dict[str, float] = {}
        if is_builtin(options.model) and options.conversations:
            tasks, replies = task_accuracy(model, tokenizer, options.conversations)
            reference_replies = reference_replies or replies
            tasks["same replies"] = same_replies(reference_replies, replies)
        yield row(format_, found, tasks)
        del model
        gc.collect()
        if format_ == "float32" and options.oracle:
            yield row("float32 in transformers", predictions(texts, oracle(options.model)), {})


def oracle(model: Path) -> Predict:
    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    module.eval()

    @torch.inference_mode()
    def predict(tokens: list[int]) -> torch.Tensor:
        logits: torch.Tensor = module(torch.tensor([tokens])).logits
        return logits[0, :-1].log_softmax(-1)

    return predict


def quality_table(rows: Sequence[Row]) -> str:
    texts, tasks = rows[0].texts, rows[0].tasks
    figures = ("perplexity", "KL mean", "KL p99", "top-1")
    head = ["format", *(f"{text}: {figure}" for text in texts for figure in figures), *tasks]
    return table(head, [[label(row.name), *_cells(row, tasks)] for row in rows])


def label(format_: str) -> str:
    """The name of a format in the tables, without its model's folder."""
    first, space, options = format_.partition(" ")
    return f"{first.rpartition('/')[2]}{space}{options}"


def _cells(row: Row, tasks: dict[str, float]) -> Iterator[str]:
    for each in row.texts.values():
        yield from (f"{each.perplexity:.5g}", f"{each.kl_mean:.2e}", f"{each.kl_p99:.2e}", f"{each.top1:.2%}")
    yield from (f"{row.tasks[task]:.1%}" if row.tasks else "–" for task in tasks)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?", default=BUILTIN_MODEL, help="default: the built-in")
    parser.add_argument("--format", action="append", default=[], help="may be repeated")
    parser.add_argument("--window", type=int, default=512, help="tokens of a sequence (default: 512)")
    parser.add_argument("--tokens", type=int, default=2048, help="of the prose at most (default: 2048)")
    parser.add_argument(
        "--chunk", type=int, default=128, help="tokens of a step; 1 measures the kernels of decode"
    )
    parser.add_argument(
        "--conversations", type=int, default=50, help="for each task of the built-in model; 0: no tasks"
    )
    parser.add_argument("--oracle", action="store_true", help="add a row of transformers, in float32")
    options = parser.parse_args(arguments)
    for name, least in {"window": 2, "tokens": 2, "chunk": 1, "conversations": 0}.items():
        if getattr(options, name) < least:
            parser.error(f"--{name} {getattr(options, name)}: must be at least {least}")
    return options


def main() -> None:
    rows: list[Row] = []
    failure = None
    try:
        for row in measure(parse()):
            rows.append(row)
            print(f"{row.name} is measured", file=sys.stderr, flush=True)
    except (ConfigError, ArithmeticError) as error:
        failure = f"quality.py: error: {error}"
    if rows:
        print(quality_table(rows))
    sys.exit(failure)


if __name__ == "__main__":
    main()
