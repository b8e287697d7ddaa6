"""Replies of a scheduler and a model that drafts, against those of one that does not: token for token."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from arbora.runtime.messages import Abort, DraftCounts
from checkpoints import WINDOWED, random_model, save_model
from lora import save_adapter
from served_model import ServedModel

CONTEXT, PAGE, DRAFTS, NAN_TOKEN = 128, 4, 6, 99
PROMPTS = [np.random.default_rng(length).integers(100, 250, length).tolist() for length in (9, 30, 22, 14)]
NO_NAN: dict[str, Any] = {"logit_bias": {NAN_TOKEN: -100.0}}
SAMPLING: list[dict[str, Any]] = [
    NO_NAN,
    {"temperature": 1.0, "seed": 5, "top_k": 20, "logprobs": 2, **NO_NAN},
    {"temperature": 1.2, "seed": 9, "frequency_penalty": 0.8, "repetition_penalty": 1.2, **NO_NAN},
    {"temperature": 0.8, "seed": 2, "logit_bias": {120: 3.0, NAN_TOKEN: -100.0}, "min_tokens": 9},
]
Tokens = Sequence[int]


class Reply(NamedTuple):
    tokens: list[int]
    logprobs: bytes
    finish: str | None
    stop_token: int | None
    error: str | None


class Servers(NamedTuple):
    """Two with the same model, one of which makes drafts."""

    plain: ServedModel
    drafting: ServedModel


@pytest.fixture(scope="module", params=["all layers see all tokens", "windowed"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose embedding of `NAN_TOKEN` is NaN."""
    saved = random_model("qwen3", **(WINDOWED if request.param == "windowed" else {}))
    with torch.no_grad():
        saved.get_input_embeddings().get_parameter("weight")[NAN_TOKEN] = float("nan")
    return save_model(saved, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def servers(model: Path) -> Servers:
    return start_servers(model)


def start_servers(model: Path, **fields: Any) -> Servers:
    sizes = {"page_size": PAGE, "max_model_len": CONTEXT, "max_running": 4, "deterministic": True, **fields}
    plain = ServedModel(model, **sizes, speculate="off")
    return Servers(plain, ServedModel(model, **sizes, speculate=DRAFTS))


def read_reply(server: ServedModel, name: str) -> Reply:
    outputs = server.outputs[name]
    logprobs = b"".join(each.logprobs.top_values for each in outputs if each.logprobs is not None)
    last = outputs[-1]
    error = None if last.error is None else last.error.message
    return Reply(server.tokens(name), logprobs, last.finish, last.stop_token, error)


def expect(reply: Tokens) -> list[int]:
    """A prediction with some wrong tokens."""
    return [token if at % 9 else token % 50 + 100 for at, token in enumerate(reply, 1)]


def submit_all(server: ServedModel, prefix: str, replies: Mapping[int, Tokens], max_tokens: int) -> list[str]:
    """Submits all prompts. replies: what to predict, by the number of the prompt."""
    names = [f"{prefix}{number}" for number in range(len(PROMPTS))]
    for number, name in enumerate(names):
        predicted = expect(replies.get(number, ()))
        tokens = min(max_tokens, CONTEXT - len(PROMPTS[number]))
        server.submit(name, PROMPTS[number], tokens, prediction=predicted, **SAMPLING[number])
    return names


def compare_all(servers: Servers, prefix: str, max_tokens: int) -> dict[int, Reply]:
    """Compares the replies of both servers, of which one drafts from a prediction with some wrong tokens."""
    names = submit_all(servers.plain, prefix, {}, max_tokens)
    servers.plain.run()
    expected = {number: read_reply(servers.plain, name) for number, name in enumerate(names)}
    before = count_drafts(servers.drafting)
    submit_all(
        servers.drafting, prefix, {number: reply.tokens for number, reply in expected.items()}, max_tokens
    )
    servers.drafting.run()
    assert {at: read_reply(servers.drafting, name) for at, name in enumerate(names)} == expected
    drafted, accepted = (new - old for new, old in zip(count_drafts(servers.drafting), before, strict=True))
    assert 0 < accepted < drafted
    return expected


def count_drafts(server: ServedModel) -> tuple[int, int]:
    """How many tokens were drafted, and how many of them were sampled."""
    stats = server.scheduler.stats()
    return sum(stats.drafted.values()), sum(stats.accepted.values())


def test_outputs_tell_the_steps_and_the_drafts_of_a_reply(servers: Servers) -> None:
    reply = ask(servers.plain, "counted", PROMPTS[0], 40)
    drafted, accepted = count_drafts(servers.drafting)
    steps = servers.drafting.scheduler.stats().reply_steps
    ask(servers.drafting, "counted", PROMPTS[0], 40, prediction=expect(reply.tokens))
    told = DraftCounts()
    for output in servers.drafting.outputs["counted"]:
        told.add(output.drafts or DraftCounts())
    stats = servers.drafting.scheduler.stats()
    assert told.steps == stats.reply_steps - steps < 40
    assert (drafted + told.drafted, accepted + told.accepted) == count_drafts(servers.drafting)
    assert told.steps + told.accepted == len(reply.tokens) == 40
    assert all(output.drafts is None for output in servers.plain.outputs["counted"])


def test_replies_of_all_kinds_up_to_the_context_are_the_same(servers: Servers) -> None:
    replies = compare_all(servers, "whole", CONTEXT)
    assert {len(reply.tokens) for reply in replies.values()} == {CONTEXT - len(each) for each in PROMPTS}


def test_replies_of_two_adapters_and_of_none_in_the_same_steps_are_the_same(tmp_path: Path) -> None:
    base = random_model("qwen3", num_hidden_layers=2)
    loras = tuple((f"{seed}", save_adapter(tmp_path / f"{seed}", base, seed)) for seed in (1, 2))
    model = save_model(base, tmp_path / "model")
    servers = start_servers(model, loras=loras, max_running=6)
    digests = [each.digest for each in servers.plain.ready.adapters]
    assert len(set(digests)) == 2
    requests: dict[str, dict[str, Any]] = {
        f"{kind} {digest or 'base'}": {"namespace": digest, "adapter": digest, **sampling}
        for kind, sampling in (("greedy", {}), ("seeded", {"temperature": 1.0, "seed": 6, "top_k": 9}))
        for digest in (*digests, "")
    }
    for name, fields in requests.items():
        servers.plain.submit(name, PROMPTS[1], 50, **fields)
    servers.plain.run()
    expected = {name: read_reply(servers.plain, name) for name in requests}
    assert len({tuple(reply.tokens) for reply in expected.values()}) == 6, "each adapter has its own replies"
    for name, fields in requests.items():
        predicted = expect(expected[name].tokens)
        servers.drafting.submit(name, PROMPTS[1], 50, prediction=predicted, **fields)
    servers.drafting.run(6)
    assert servers.drafting.scheduler.stats().running == 6
    servers.drafting.run()
    assert {name: read_reply(servers.drafting, name) for name in requests} == expected
    for name in requests:
        counts = [output.drafts for output in servers.drafting.outputs[name] if output.drafts]
        assert 0 < sum(each.accepted for each in counts) < sum(each.drafted for each in counts)


@pytest.mark.parametrize(
    ("speculate", "told"),
    [
        (None, "--speculate auto: drafts of at most 12 tokens for each request"),
        (3, "--speculate 3: drafts of at most 3 tokens for each request"),
        ("off", "--speculate off: no drafts"),
    ],
)
def test_the_log_names_how_many_drafts_a_request_may_have(
    model: Path, speculate: int | str | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ServedModel(model, max_model_len=CONTEXT, speculate=speculate)
    assert [each for each in caplog.messages if "speculate" in each] == [told]


def test_retracted_replies_are_the_same(model: Path) -> None:
    pages = start_servers(model).plain.ready
    servers = start_servers(model, kv_memory=55 * pages.page_bytes)
    compare_all(servers, "a", 60)
    for server in servers:
        assert server.scheduler.stats().retractions > 0
        assert server.scheduler.stats().pages_used == 0


@pytest.mark.parametrize("place", (1, 4, 9, 13))
def test_a_reply_ends_with_a_stop_id_in_a_draft(servers: Servers, place: int) -> None:
    name = f"stop {place}"
    sampling = {"temperature": 1.0, "seed": 40, "namespace": "stop"}
    whole = ask(servers.plain, f"whole {place}", PROMPTS[1], 20, **sampling)
    stop = whole.tokens[place]
    sampling |= {"stop_token_ids": (stop,)}
    expected = ask(servers.plain, name, PROMPTS[1], 20, **sampling)
    assert (expected.finish, expected.stop_token) == ("stop", stop)
    assert ask(servers.drafting, name, PROMPTS[1], 20, prediction=whole.tokens, **sampling) == expected
    accepted = sum(each.prediction.accepted for each in servers.drafting.outputs[name] if each.prediction)
    assert accepted <= len(expected.tokens)
    turn = [*PROMPTS[1], *expected.tokens, 130, 140]
    assert ask(servers.drafting, f"{name} next", turn, 9) == ask(servers.plain, f"{name} next", turn, 9)


def ask(server: ServedModel, name: str, prompt: Tokens, max_tokens: int, **fields: Any) -> Reply:
    server.outputs.pop(name, None)
    server.submit(name, prompt, max_tokens, **{**NO_NAN, **fields})
    server.run()
    return read_reply(server, name)


@pytest.mark.parametrize("steps", (2, 3, 6))
def test_an_abort_in_flight_changes_no_other_reply(servers: Servers, steps: int) -> None:
    replies = compare_all(servers, f"unaborted {steps} ", 40)
    predicted = {number: reply.tokens for number, reply in replies.items()}
    names = submit_all(servers.drafting, f"aborted {steps} ", predicted, 40)
    servers.drafting.run(steps)
    for name in names[::2]:
        servers.drafting.handle(Abort(name))
    later = f"later {steps}"
    servers.drafting.submit(later, PROMPTS[0], 40, **NO_NAN)
    servers.drafting.run()
    for number, name in enumerate(names):
        tokens = servers.drafting.tokens(name)
        assert tokens == replies[number].tokens[: len(tokens) if number % 2 == 0 else 40]
        turn = [*PROMPTS[number], *tokens, 131]
        assert ask(servers.drafting, f"{name} next", turn, 9) == ask(servers.plain, f"{name} next", turn, 9)
    assert servers.drafting.tokens(later) == replies[0].tokens
    assert servers.drafting.scheduler.stats().pages_used == 0


Change = Callable[[list[int]], list[int]]


@pytest.mark.parametrize(
    "change",
    [
        lambda reply: [NAN_TOKEN, *reply[1:]],
        lambda reply: [*reply[:3], NAN_TOKEN, *reply[4:]],
        lambda reply: [token if at % 3 else NAN_TOKEN for at, token in enumerate(reply)],
    ],
)
def test_a_draft_that_leads_to_nan_spoils_no_token_before_it(servers: Servers, change: Change) -> None:
    reply = ask(servers.plain, "nan", PROMPTS[3], 30, temperature=1.0, seed=8)
    predicted = change(reply.tokens)
    for _ in range(2):
        drafted = ask(servers.drafting, "nan", PROMPTS[3], 30, temperature=1.0, seed=8, prediction=predicted)
        assert drafted == reply


@pytest.mark.parametrize("seed", range(3))
def test_a_sampled_token_that_leads_to_nan_fails_with_and_without_drafts(servers: Servers, seed: int) -> None:
    """The row after the token has an offset above 0, so its token is sampled again, and fails."""
    sampling = {"temperature": 1.0, "seed": seed, "logit_bias": {NAN_TOKEN: 6.0}}
    name = f"bad {seed}"
    failed = ask(servers.plain, name, PROMPTS[1], 60, **sampling)
    assert failed.tokens[-1] == NAN_TOKEN
    assert failed.finish == "error"
    assert failed.error is not None and "NaN" in failed.error
    predicted = [*failed.tokens, 101, 102, 103]
    assert ask(servers.drafting, name, PROMPTS[1], 60, prediction=predicted, **sampling) == failed
    for server in servers:
        assert server.scheduler.stats().pages_used == 0
    turn = [*PROMPTS[1], *failed.tokens[:-1], 130]
    assert ask(servers.drafting, f"{name} next", turn, 9) == ask(servers.plain, f"{name} next", turn, 9)
