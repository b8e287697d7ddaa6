"""`arbora bench` against a real server: counts that must be exact, and times that must be there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from arbora.frontend.cli.bench.client import Reply
from arbora.frontend.cli.bench.figures import figures
from arbora.frontend.cli.main import main
from chat_stub import chat_server
from served import CONTEXT, Served


def bench(capsys: pytest.CaptureFixture[str], url: str, *options: str) -> dict[str, Any]:
    assert main(["bench", "--url", url, "--json", *options]) == 0
    measured: dict[str, Any] = json.loads(capsys.readouterr().out)
    return measured


@pytest.mark.parametrize("loop", [("--streams", "3"), ("--rate", "50")])
def test_every_request_is_counted_with_its_tokens(
    served: Served, capsys: pytest.CaptureFixture[str], loop: tuple[str, str]
) -> None:
    found = bench(
        capsys, served.url, *loop, "--requests", "6", "--prompt-tokens", "64", "--output-tokens", "7"
    )["figures"]
    assert (found["requests"], found["errors"], found["output_tokens"]) == (6, 0, 42)
    assert 0.9 * 6 * 64 < found["prompt_tokens"] < 1.1 * 6 * 64  # with the chat template's tokens
    assert 0 < found["ttft_p50"] <= found["ttft_p90"] and found["tok_per_s"] > 0


def test_a_shared_beginning_is_found_in_the_cache(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    one_stream = ("--streams", "1", "--requests", "5", "--prompt-tokens", "400", "--output-tokens", "2")
    alone = bench(capsys, served.url, *one_stream, "--seed", "71")["figures"]["cached"]
    shared = bench(capsys, served.url, *one_stream, "--seed", "72", "--shared", "0.75")["figures"]["cached"]
    assert alone < 0.1  # the chat template's first tokens
    assert 0.75 * 4 / 5 - 0.1 < shared < 0.75 * 4 / 5 + 0.1  # four of five prompts find it


def test_the_table_shows_the_figures(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--requests", "2", "--prompt-tokens", "16", "--output-tokens", "3"]
    assert main(["bench", "--url", served.url, *options]) == 0
    said = capsys.readouterr().out
    title, *figures = [line for line in said.splitlines() if line.strip()]
    assert "4 streams, 2 requests in" in title and "failed requests" in figures[0]
    lines = {line.rsplit(None, 1)[0].strip(): line.split()[-1] for line in said.splitlines() if line.strip()}
    assert (lines["output tokens"], lines["failed requests"]) == ("6", "0")


@pytest.mark.parametrize(("prompt", "reply"), [("100k", "3"), ("16", "4090")])
def test_more_tokens_than_the_context_has_are_refused_before_any_request(
    served: Served, capsys: pytest.CaptureFixture[str], prompt: str, reply: str
) -> None:
    before = served.metrics().get("arbora_choices_finished_total")
    assert main(["bench", "--url", served.url, "--prompt-tokens", prompt, "--output-tokens", reply]) == 2
    said = capsys.readouterr().err
    assert f"and --output-tokens {reply}: the context of " in said and f"has {CONTEXT:,} tokens, " in said
    assert served.metrics().get("arbora_choices_finished_total") == before


def test_failed_requests_give_the_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with chat_server({"message": "no"}) as stub:
        assert main(["bench", "--url", stub.url, "--json", "--requests", "1"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["figures"]["errors"] == 1 and found["error"].startswith("status 400: ")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--shared", "2"), "--shared 2: expected a number from 0 to 1."),
        (("--rate", "fast"), "--rate fast: expected a number"),
        (("--requests", "0"), "--requests 0: expected a whole number from 1 on."),
        (("--prompt-tokens", "x"), "--prompt-tokens x: expected a whole number"),
        (("--rate", "1", "--streams", "2"), "--rate: arrivals at a rate need no --streams"),
        (("--url", "http://127.0.0.1:1"), "no server answers at http://127.0.0.1:1 (Connection refused)"),
        (("--url", "http://localhost:1"), "no server answers at http://localhost:1 (Connection refused)"),
        (("--url", "127.0.0.1:1"), "no server answers at http://127.0.0.1:1 (Connection refused)"),
        (("--url", "gopher://x"), "--url gopher://x: expected an address such as http://127.0.0.1:8000."),
        (("--url", "unix:/run/a"), "--url unix:/run/a: this command needs an address such as"),
    ],
)
def test_a_wrong_option_is_named(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], expected: str
) -> None:
    assert main(["bench", *options]) == 2
    assert expected in capsys.readouterr().err


def test_an_unknown_key_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with chat_server() as stub:
        stub.is_guarded = True
        assert main(["bench", "--url", stub.url, "--api-key", "wrong"]) == 2
    expected = f"the server at {stub.url} does not know this API key: give another with --api-key KEY"
    assert expected in capsys.readouterr().err


def test_figures_are_those_of_whole_replies() -> None:
    whole = Reply(arrivals=[0.1, 0.3, 0.4], finished=0.4, prompt_tokens=10, cached_tokens=5, output_tokens=3)
    found = figures([whole, Reply(error="broken", output_tokens=9)], 2.0)
    assert (found.requests, found.errors, found.output_tokens, found.tok_per_s) == (2, 1, 3, 1.5)
    assert (found.ttft_p50, found.itl_p50, found.itl_p99, found.itl_tail) == (100.0, 200.0, 200.0, 1.0)
    assert (found.cached, found.e2e_p50, found.req_per_s) == (0.5, 400.0, 0.5)
