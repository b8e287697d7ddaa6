"""A server with two models loads each when a request asks for it, unloads unused ones, and outlives the death
of one of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest
from arbora.runtime.config import BUILTIN_MODEL
from processes import children_of, command_line
from served import HELLO, PATIENCE, Served, eventually, serve, text_of, write_served_checkpoint

FIRST = "builtin"
SECOND = "second"
BOTH = ("--also-serve", f"{SECOND}=arbora-builtin", "--kv-memory", "16MiB")


@pytest.fixture(scope="module")
def pair() -> Iterator[Served]:
    """Models that stay loaded once a request has asked for them."""
    with serve(BUILTIN_MODEL, *BOTH, "--keep-alive", "-1") as server:
        yield server


def processes(server: Served, role: str) -> dict[str, int]:
    """The process ids of a role by the models."""
    found = {}
    for pid in children_of(server.process.pid):
        command = [*filter(None, command_line(pid))]
        if any(part.endswith(f"runtime.{role}.process") for part in command):
            found[SECOND if command[-4].endswith("/m1") else FIRST] = pid
    return found


def loaded(server: Served) -> list[str]:
    """The models that Ollama's API lists as loaded."""
    return [model["name"].removesuffix(":latest") for model in server.http.get("/api/ps").json()["models"]]


def say(server: Served, model: str, **fields: Any) -> str:
    answer = server.client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=12, temperature=0, **fields
    )
    assert answer.model == model
    return text_of(answer)


def ask_by_ollama(server: Served, model: str, keep_alive: float | str | None = None) -> str:
    client = ollama.Client(server.url, timeout=PATIENCE)
    reply: str = client.generate(model, "Hello", keep_alive=keep_alive, options={"num_predict": 4})[
        "response"
    ]
    return reply


def test_a_model_is_loaded_by_the_first_request_for_it(pair: Served) -> None:
    assert loaded(pair) == [FIRST] and processes(pair, "model").keys() == {FIRST}
    assert say(pair, SECOND) == say(pair, FIRST)
    assert processes(pair, "model").keys() == processes(pair, "scheduler").keys() == {FIRST, SECOND}
    assert loaded(pair) == [FIRST, SECOND]
    assert [model["name"] for model in pair.http.get("/server").json()["models"]] == [FIRST, SECOND]


def test_all_models_are_listed(pair: Served) -> None:
    assert [model.id for model in pair.client.models.list()] == [FIRST, SECOND]
    assert pair.client.models.retrieve(SECOND).id == SECOND
    tags = ollama.Client(pair.url).list()["models"]
    assert [model["model"] for model in tags] == [f"{FIRST}:latest", f"{SECOND}:latest"]
    page = pair.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert [model["id"] for model in page["data"]] == [FIRST, SECOND]


def test_an_unknown_model_is_refused_with_the_known_ones(pair: Served) -> None:
    with pytest.raises(openai.NotFoundError, match=f"'{FIRST}' and '{SECOND}'.*'third'|'third'.*'{SECOND}'"):
        say(pair, "third")
    with pytest.raises(ollama.ResponseError, match="does not exist") as refused:
        ask_by_ollama(pair, "third")
    assert refused.value.status_code == 404


def test_each_api_reaches_each_model(pair: Served) -> None:
    bodies: dict[str, Any] = {
        "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
        "/v1/chat/completions": {"messages": HELLO, "max_tokens": 4},
        "/v1/messages": {"messages": HELLO, "max_tokens": 4},
        "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
        "/generate": {"prompt": "Hello", "max_tokens": 4},
        "/api/generate": {"prompt": "Hello", "stream": False, "options": {"num_predict": 4}},
        "/tokenize": {"prompt": "Hello"},
    }
    for path, body in bodies.items():
        before = count_requests(pair)
        for model in (FIRST, SECOND):
            answer = pair.http.post(path, json={"model": model, **body})
            assert answer.status_code == 200, (path, answer.text)
        if path != "/tokenize":
            after = count_requests(pair)
            assert all(after[model] > before[model] for model in (FIRST, SECOND)), (path, before, after)


def count_requests(server: Served) -> dict[str, float]:
    """The tokens that each model has generated."""
    lines = server.http.get("/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("arbora_output_tokens_total{")]
    return {line.split('"')[1]: float(line.split()[1]) for line in counted}


def test_caches_are_apart(pair: Served) -> None:
    prompt = "A prefix of many tokens, which one of the models computes and keeps. " * 4
    pair.http.delete("/cache")
    pair.client.completions.create(model=SECOND, prompt=prompt, max_tokens=1)
    cached = {
        model: pair.http.get("/cache", params={"model": model}).json()["sizes"]["cached"]["pages"]
        for model in (FIRST, SECOND)
    }
    assert cached[FIRST] == 0 < cached[SECOND]
    pinned = pair.http.post("/cache/pin", json={"model": SECOND, "prompt": prompt, "ttl_s": 60}).json()
    pair.http.delete("/cache")
    assert pair.http.get("/cache", params={"model": SECOND}).json()["pins"][0]["pages"] == pinned["pages"] > 0
    assert pair.http.delete(f"/cache/pin/{pinned['id']}").json()["deleted"]
    assert pair.http.delete("/cache").json()["freed"]["pages"] == pinned["pages"]
    explained = pair.http.post("/cache/explain", json={"model": SECOND, "prompt": prompt})
    assert explained.status_code == 200, explained.text


def test_one_model_serves_while_the_other_is_killed(pair: Served) -> None:
    say(pair, SECOND)
    first = processes(pair, "model")[FIRST]
    os.kill(processes(pair, "model")[SECOND], signal.SIGKILL)
    replies = [say(pair, FIRST) for _ in range(3)]
    assert len(set(replies)) == 1
    assert say(pair, SECOND) == replies[0], "the request waits for the model's next start"
    assert processes(pair, "model")[FIRST] == first
    assert pair.is_healthy


def test_an_unused_model_is_unloaded_and_loaded_again() -> None:
    with serve(BUILTIN_MODEL, *BOTH, "--keep-alive", "2") as server:
        before = say(server, SECOND)
        eventually(lambda: not processes(server, "model") and not processes(server, "scheduler"))
        assert loaded(server) == []
        assert server.is_healthy
        assert [model["state"] for model in server.http.get("/server").json()["models"]] == ["unloaded"] * 2
        metrics = server.http.get("/metrics").text
        assert f'arbora_model_loaded{{model="{SECOND}"}} 0.0' in metrics
        assert say(server, SECOND) == before
        assert processes(server, "model").keys() == {SECOND}


def test_a_model_in_use_stays_loaded() -> None:
    with serve(BUILTIN_MODEL, "--keep-alive", "0", "--kv-memory", "16MiB") as server:
        eventually(lambda: not processes(server, "model"))
        text = ""
        stream = server.client.completions.create(
            model=FIRST,
            prompt="Once upon a time",
            max_tokens=600,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for chunk in stream:
            if not text:
                model = processes(server, "model")
            text += chunk.choices[0].text
        assert text and model.keys() == {FIRST}
        eventually(lambda: not processes(server, "model"))


def test_requests_choose_how_long_their_model_stays_loaded() -> None:
    with serve(BUILTIN_MODEL, "--keep-alive", "1h", "--kv-memory", "16MiB") as server:
        ask_by_ollama(server, FIRST, "10m")
        (model,) = ollama.Client(server.url).ps()["models"]
        assert 590 < model["expires_at"].timestamp() - time.time() < 601
        ask_by_ollama(server, FIRST, 0)
        eventually(lambda: not processes(server, "model"))
        ask_by_ollama(server, FIRST)
        assert loaded(server) == [FIRST]
        stopped = server.http.post("/api/generate", json={"model": FIRST, "keep_alive": 0}).json()
        assert stopped["done_reason"] == "unload"
        eventually(lambda: not processes(server, "model"))
        stopped = server.http.post("/api/generate", json={"model": FIRST, "keep_alive": 0}).json()
        assert stopped["done_reason"] == "unload" and not processes(server, "model")


def test_a_client_that_leaves_is_dropped_while_its_model_loads() -> None:
    with serve(BUILTIN_MODEL, "--keep-alive", "0", "--kv-memory", "16MiB") as server:
        eventually(lambda: not processes(server, "model"))
        with pytest.raises(httpx.ReadTimeout):
            server.http.post("/v1/completions", json={"prompt": "Hello"}, timeout=0.5)
        eventually(lambda: "client=gone" in "".join(server.log))
        eventually(lambda: f"{FIRST} is unloaded" in "".join(server.log).partition("client=gone")[2])


def test_a_model_that_can_not_be_loaded_is_refused_with_the_reason(tmp_path: Path) -> None:
    broken = write_served_checkpoint(tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with serve(BUILTIN_MODEL, "--also-serve", str(broken), "--kv-memory", "16MiB") as server:
        for _ in range(2):
            words = "could not be loaded.*model.safetensors"
            with pytest.raises(openai.InternalServerError, match=words) as refused:
                say(server, "broken")
            assert refused.value.status_code == 503
            assert say(server, FIRST)
        assert loaded(server) == [FIRST]


def test_several_http_processes_share_the_models() -> None:
    with serve(BUILTIN_MODEL, *BOTH, "--keep-alive", "3", "--api-workers", "2") as server:
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda _: say(server, SECOND), range(8)))
        assert len(set(replies)) == 1
        assert sum(count_requests(server).values()) >= 8
        eventually(lambda: not processes(server, "model"))
        eventually(lambda: loaded(server) == [])
        assert say(server, FIRST) == replies[0]


def test_draining_ends_both_models_after_their_requests() -> None:
    with serve(BUILTIN_MODEL, *BOTH, "--keep-alive", "1h") as server:
        say(server, SECOND)
        pids = [*processes(server, "model").values(), *processes(server, "scheduler").values()]
        assert len(pids) == 4
        ended: list[str | None] = []

        def generate(model: str) -> None:
            reply = server.client.completions.create(
                model=model, prompt="Once", max_tokens=200, extra_body={"ignore_eos": True}
            )
            ended.append(reply.choices[0].finish_reason)

        threads = [threading.Thread(target=generate, args=(model,)) for model in (FIRST, SECOND)]
        for thread in threads:
            thread.start()
        eventually(lambda: server.running == 2)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(PATIENCE)
        assert ended == ["length", "length"]
        assert server.process.wait(PATIENCE) == 0
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
