"""`arbora bench`: its options, and its figures as a table or JSON."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....runtime.errors import ConfigError
from ....runtime.option_values import number, read_token_count, whole_number
from ...launch.progress import progress_bar
from ..output import JSON_HELP, ReadValue, console, print_json, table
from ..server_option import add_server, server_url

if TYPE_CHECKING:
    from .load import Load, Measured

DESCRIPTION = (
    "Measure a running server with generated chats. With --streams each stream sends its next request when\n"
    "it has a reply (a closed loop); with --rate requests arrive at random times (an open loop)."
)
EXAMPLE = "arbora bench --streams 8 --requests 64 --prompt-tokens 1000 --output-tokens 100 --shared 0.8"
STREAMS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def add(flag: str, metavar: str, read: Callable[[str], object], default: object, help: str) -> None:
        told = "" if default is None else f" (default: {default})"
        parser.add_argument(
            flag, action=ReadValue, read=read, metavar=metavar, default=default, help=f"{help}{told}"
        )

    add_server(parser)
    add("--requests", "REQUESTS", whole_number(1), 32, "in all")
    add("--streams", "STREAMS", whole_number(1), None, f"open at a time (default: {STREAMS})")
    add("--rate", "RATE", number(0.001, 1e5), None, "requests a second, in place of --streams")
    add("--prompt-tokens", "TOKENS", read_token_count, 512, "of each prompt")
    add("--output-tokens", "TOKENS", read_token_count, 64, "of each reply")
    add("--shared", "SHARE", number(0, 1), 0, "share of each prompt, 0 to 1, with which all prompts begin")
    add("--seed", "SEED", whole_number(0), 0, "other texts and arrivals, which no cache has yet")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    """Runs the load and prints its figures. Returns 1 if a request failed."""
    load = _load(parsed)
    from .load import measure

    is_shown = sys.stderr.isatty() and not parsed.json
    with progress_bar(load.requests, is_shown, unit="request", leave=False) as on_reply:
        found = asyncio.run(measure(server_url(parsed.url), parsed.api_key, load, on_reply))
    if parsed.json:
        print_json(found)
    else:
        _print(found)
    return 1 if found.figures.errors else 0


def _load(parsed: argparse.Namespace) -> Load:
    """The load that the options describe. Raises ConfigError for options that can't be used together."""
    if parsed.streams and parsed.rate:
        raise ConfigError("--rate: arrivals at a rate need no --streams. Leave one of them out.")
    from .load import Load

    return Load(
        requests=parsed.requests,
        streams=parsed.streams or STREAMS,
        rate=parsed.rate,
        prompt_tokens=parsed.prompt_tokens,
        output_tokens=parsed.output_tokens,
        shared=parsed.shared,
        seed=parsed.seed,
    )


def _print(found: Measured) -> None:
    figures, load = found.figures, found.load
    loop = f"{load.streams} streams" if load.rate is None else f"{load.rate:g} requests/s"
    title = f"{found.model}: {loop}, {figures.requests} requests in {found.seconds:.1f} s"
    rows = [
        ("failed requests", f"{figures.errors:,}"),
        ("prompt tokens", f"{figures.prompt_tokens:,}"),
        ("of them cached", f"{figures.cached:.1%}"),
        ("output tokens", f"{figures.output_tokens:,}"),
        ("output tokens/s", f"{figures.tok_per_s:,.1f}"),
        ("prompt tokens/s", f"{figures.prompt_tok_per_s:,.1f}"),
        ("requests/s", f"{figures.req_per_s:,.2f}"),
        ("time to first text, median", _ms(figures.ttft_p50)),
        ("time to first text, 90 of 100", _ms(figures.ttft_p90)),
        ("time between reads with text, median", _ms(figures.itl_p50)),
        ("time between reads with text, 99 of 100", _ms(figures.itl_p99)),
        ("whole reply, median", _ms(figures.e2e_p50)),
    ]
    screen = console()
    screen.print(table(title, ("", ""), rows))
    if found.error is not None:
        screen.print(f"first error: {found.error}", markup=False)


def _ms(milliseconds: float | None) -> str:
    return "–" if milliseconds is None else f"{milliseconds:,.1f} ms"
