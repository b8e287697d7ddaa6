"""`arbora bench`: its options, and its figures as a table or JSON."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ....runtime.errors import ConfigError
from ....runtime.option_values import read_token_count, whole_number
from ..output import JSON_HELP, console, print_json, table
from ..server_option import add_server, server_url

if TYPE_CHECKING:
    from .load import Load, Measured, OnReply

DESCRIPTION = (
    "Measure a running server with generated chats. With --streams each stream sends its next request when\n"
    "it has a reply (a closed loop); with --rate requests arrive at random times (an open loop)."
)
EXAMPLE = "arbora bench --streams 8 --requests 64 --prompt-tokens 1000 --output-tokens 100 --shared 0.8"


class Range(NamedTuple):
    least: float
    most: float


SHARES = Range(0.0, 1.0)
RATES = Range(0.001, 1e5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument("--requests", default="32", metavar="REQUESTS", help="in all (default: 32)")
    parser.add_argument("--streams", metavar="STREAMS", help="open at a time (default: 4)")
    parser.add_argument("--rate", metavar="RATE", help="requests a second, in place of --streams")
    parser.add_argument(
        "--prompt-tokens", default="512", metavar="TOKENS", help="of each prompt (default: 512)"
    )
    parser.add_argument("--output-tokens", default="64", metavar="TOKENS", help="of each reply (default: 64)")
    parser.add_argument(
        "--shared",
        default="0",
        metavar="SHARE",
        help="share of each prompt, from 0 to 1, with which all prompts begin (default: 0)",
    )
    parser.add_argument(
        "--seed",
        default="0",
        metavar="SEED",
        help="other texts and arrivals, which no cache has yet (default: 0)",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    """1 if a request failed."""
    load = _load(parsed)
    from .load import measure

    with _bar(load.requests, not parsed.json) as on_reply:
        found = asyncio.run(measure(server_url(parsed.url), parsed.api_key, load, on_reply))
    if parsed.json:
        print_json(found)
    else:
        _print(found)
    return 1 if found.figures.errors else 0


def _load(parsed: argparse.Namespace) -> Load:
    """Raises ConfigError for an option that can't be used."""
    if parsed.streams and parsed.rate:
        raise ConfigError("--rate: arrivals at a rate need no --streams. Leave one of them out.")
    from .load import Load

    return Load(
        requests=_whole("--requests", parsed.requests),
        streams=_whole("--streams", parsed.streams or "4"),
        rate=None if parsed.rate is None else _number("--rate", parsed.rate, RATES),
        prompt_tokens=_tokens("--prompt-tokens", parsed.prompt_tokens),
        output_tokens=_tokens("--output-tokens", parsed.output_tokens),
        shared=_number("--shared", parsed.shared, SHARES),
        seed=_whole("--seed", parsed.seed, 0),
    )


def _whole(flag: str, text: str, least: int = 1) -> int:
    try:
        return whole_number(least)(text)
    except ValueError as error:
        raise ConfigError(f"{flag} {text}: {error}") from None


def _tokens(flag: str, text: str) -> int:
    try:
        return read_token_count(text)
    except ValueError as error:
        raise ConfigError(f"{flag} {text}: {error}") from None


def _number(flag: str, text: str, allowed: Range) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not allowed.least <= number <= allowed.most:
        raise ConfigError(f"{flag} {text}: expected a number from {allowed.least:g} to {allowed.most:g}.")
    return number


@contextmanager
def _bar(requests: int, is_wanted: bool) -> Iterator[OnReply]:
    """Counts replies in a bar on standard error if that is a terminal."""
    if not is_wanted or not sys.stderr.isatty():
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=requests, unit="request", dynamic_ncols=True, leave=False) as bar:
        yield bar.update


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
