"""`arbora plan`: its options, and its answer as tables or JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, get_args

from ....runtime.byte_sizes import in_units
from ....runtime.config import DType, KvDType, QuantizeMethod
from ....runtime.errors import ConfigError
from ....runtime.option_values import number, one_of, read_size, read_token_count
from ...model_files.model_source import find_config, served_name
from ..output import JSON_HELP, ReadValue, console, print_json, table
from . import fleet
from .fleet_report import report_fleet
from .gpus import GPUS, Gpu, gpu_named

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .estimate import Estimate, Fit, Question

DESCRIPTION = (
    "Estimate a model on a GPU, or on this machine's CPU: bytes of the weights and of the KV cache,\n"
    "requests that fit, and bounds of its speed and cost. Only config.json is needed, from a directory or\n"
    "the hub.\n"
    f"GPUs: {', '.join(GPUS)}."
)
EXAMPLE = "arbora plan Qwen/Qwen3-8B --gpu h100-sxm --context 8K --price-per-hour 2.5"
BAR_WIDTH = 40
NOT_ENOUGH = 1
"""exit code if no number of replicas is fast enough"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def add(
        flag: str, metavar: str, read: Callable[[str], object], help: str, default: object = None
    ) -> None:
        parser.add_argument(flag, action=ReadValue, read=read, metavar=metavar, default=default, help=help)

    def add_words(flag: str, metavar: str, words: tuple[str, ...], default: str | None) -> None:
        told = f"{', '.join(words)} (default: {default or 'as stored'})"
        add(flag, metavar, one_of(*words), told, default)

    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a directory, a GGUF file, or a name such as qwen3:8b or Qwen/Qwen3-8B (default: the built-in "
        "model)",
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="a GPU of the table above (default: this machine's CPU)"
    )
    add("--memory", "SIZE", read_size, "memory of another GPU, such as 24GiB")
    told = "tokens of a request (default: what the model allows)"
    add("--context", "TOKENS", lambda text: (text, read_token_count(text)), told)
    add_words("--dtype", "DTYPE", get_args(DType), "auto")
    add_words("--quantize", "METHOD", get_args(QuantizeMethod), None)
    add_words("--kv-dtype", "DTYPE", get_args(KvDType), "auto")
    price = number(1e-6, 1e6, "a price such as 2.50")
    add("--price-per-hour", "PRICE", price, "of the device, for the cost of a million tokens")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    fleet.add_arguments(parser)


def run(parsed: argparse.Namespace) -> int:
    fleet.check_flags(parsed)
    question = _question(parsed)
    if parsed.fleet:
        planned = fleet.plan_fleet(parsed, question)
        _show(planned, lambda: report_fleet(planned, parsed), parsed.json)
        return NOT_ENOUGH if planned.replicas is None else 0
    from .estimate import PlannedModel, estimate

    found = estimate(question, PlannedModel.read(question))
    _show(found, lambda: report(found), parsed.json)
    return 0


def _show(found: object, report: Callable[[], Iterator[RenderableType]], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    screen = console()
    for part in report():
        screen.print(part)


def _question(parsed: argparse.Namespace) -> Question:
    """The question that the options ask. Raises ConfigError for options that can't be used together."""
    gpu = None if parsed.gpu is None else gpu_named(parsed.gpu)
    if parsed.price_per_hour is not None and gpu is None and parsed.steps is None:
        raise ConfigError(
            "--price-per-hour: costs follow from a GPU's speed, or from measured steps. Name a GPU with "
            "--gpu, or give --fleet and --steps."
        )
    is_gpu = gpu is not None or parsed.memory is not None
    context_text, context = parsed.context or ("", None)
    from .estimate import Question

    return Question(
        model=find_config(parsed.model),
        name=served_name(parsed.model),
        device="cuda" if is_gpu else "cpu",
        memory=parsed.memory or _memory(gpu),
        gpu=gpu,
        context=context,
        context_text=context_text,
        dtype=parsed.dtype,
        quantize=parsed.quantize,
        kv_dtype=parsed.kv_dtype,
        price=parsed.price_per_hour,
    )


def _amount(cost: float | None) -> str:
    if cost is None:
        return ""
    return f"{cost:,.3f}" if cost >= 0.01 else f"{Decimal(f'{cost:.2g}'):f}"


def _memory(gpu: Gpu | None) -> int:
    """The bytes of the GPU's memory, or without a GPU the free bytes of this machine."""
    if gpu is not None:
        return gpu.memory
    import torch

    from ....runtime.model.devices import free_memory

    return free_memory(torch.device("cpu"))


def report(found: Estimate) -> Iterator[RenderableType]:
    """The tables and the plot."""
    place = "this machine's free memory" if found.device == "cpu" else "the GPU's memory"
    yield (
        f"{found.model} in {found.dtype}, KV cache in {found.kv_dtype}, "
        f"{in_units(found.memory_bytes)} of {place}"
    )
    yield (
        f"KV cache: {found.kv_bytes_per_token:,} bytes a token, {in_units(found.page_bytes)} a page of "
        f"{found.page_size} tokens"
    )
    others = [fit for fit in found.formats if fit.format != found.chosen.format]
    rows = [_fit_row(found.chosen, " (chosen)"), *(_fit_row(fit, "") for fit in others)]
    heads = ("weights", "bytes", "KV cache", "pages", f"requests of {found.context:,} tokens")
    yield table("What fits", heads, rows)
    if any(fit.is_expanded for fit in (found.chosen, *found.formats)):
        yield "* The device has no product for this format yet: memory holds it in 16 or 32 bits."
    if not found.decode:
        yield "Estimates of speed need a GPU of the table: name one with --gpu."
        return
    prefill = (f"prefill, one prompt of {found.context:,}", found.prefill_tokens_per_s or 0.0)
    speeds = [
        *((f"decode, batch {s.batch}", s.tokens_per_s, s.cost_per_million, s.fits) for s in found.decode),
        (*prefill, found.prefill_cost_per_million, found.chosen.requests > 0),
    ]
    costs = () if found.prefill_cost_per_million is None else ("cost of 1M tokens",)
    yield table(
        f"Upper bounds of speed with {found.context:,} tokens of context (estimates)",
        ("", "tokens/s", *costs, "fits"),
        [
            (name, f"{rate:,.0f}", *([_amount(cost)] if costs else []), "yes" if fits else "no")
            for name, rate, cost, fits in speeds
        ],
    )
    if costs:
        yield "Costs are in the currency of --price-per-hour."
    most = max(speed.tokens_per_s for speed in found.curve)
    yield "Decoded tokens/s by batch"
    for speed in found.curve:
        bar = "█" * max(1, round(BAR_WIDTH * speed.tokens_per_s / most))
        note = "" if speed.fits else "  (does not fit)"
        yield f"{speed.batch:>5} {bar} {speed.tokens_per_s:,.0f}{note}"
    yield (
        "A bound is reached only by kernels at full bandwidth or rate, without any other cost. Source of "
        f"the GPU's figures: {found.source}."
    )


def _fit_row(fit: Fit, note: str) -> tuple[str, ...]:
    star = "*" if fit.is_expanded else ""
    kv = in_units(fit.kv_bytes) if fit.pages else "does not fit"
    return (
        f"{fit.format}{star}{note}",
        in_units(fit.weight_bytes),
        kv,
        f"{fit.pages:,}",
        f"{fit.requests:,}",
    )
