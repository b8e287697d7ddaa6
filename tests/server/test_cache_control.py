"""Pins, drops, opt-outs and isolated keys on servers with all their processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from served import Served, eventually, serve

LONG = "the cat sat on the mat and the dog sat on the cat " * 8


def system(topic: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": f"Talk of {topic}. {LONG}"}]


def cached_of(client: openai.OpenAI, model: str, messages: list[dict[str, str]], **extra: Any) -> int:
    """Adds a question to the messages, and returns how many tokens were cached."""
    asked: Any = [*messages, {"role": "user", "content": "Hello?"}]
    reply = client.chat.completions.create(model=model, messages=asked, max_tokens=1, extra_body=extra)
    assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
    return reply.usage.prompt_tokens_details.cached_tokens or 0


def pin(served: Served, **body: Any) -> Any:
    answer = served.http.post("/cache/pin", json={"ttl_s": 600, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def tenants(served_model: Path) -> Iterator[Served]:
    flags = ("--api-key", "one", "--api-key", "two", "--isolate", "keys", "--pin-memory", "40KB")
    with serve(served_model, *flags, key="one") as server:
        yield server


def test_a_pinned_conversation_outlives_a_drop(served: Served) -> None:
    pinned = pin(served, messages=system("pins"))
    cached_of(served.client, served.model, system("drops"))
    freed = served.http.delete("/cache").json()["freed"]
    assert freed["pages"] > 0 and freed["bytes"] > 0
    assert cached_of(served.client, served.model, system("drops")) < pinned["tokens"]
    assert cached_of(served.client, served.model, system("pins")) >= pinned["tokens"]
    assert served.http.delete(f"/cache/pin/{pinned['id']}").status_code == 200
    served.http.delete("/cache")
    assert cached_of(served.client, served.model, system("pins")) == 0


def test_ollamas_keep_alive_of_zero_ends_the_lease(served: Served) -> None:
    def asked(keep_alive: str | int, *messages: dict[str, str]) -> None:
        body = {
            "messages": messages,
            "keep_alive": keep_alive,
            "stream": False,
            "options": {"num_predict": 1},
        }
        assert served.http.post("/api/chat", json=body).status_code == 200

    def kept() -> int:
        leases = served.http.get("/cache").json()["leases"]
        return sum(lease["kind"] == "keep_alive" for lease in leases)

    asked("1h", *system("one"), {"role": "user", "content": "Hello?"})
    asked("1h", *system("two"), {"role": "user", "content": "Hello?"})
    eventually(lambda: kept() == 2)
    asked(0, *system("one"), {"role": "user", "content": "Hello?"})
    eventually(lambda: kept() == 1)
    asked(0)
    eventually(lambda: kept() == 0)


def test_a_pin_ends_by_itself(served: Served) -> None:
    pinned = pin(served, messages=system("time"), ttl_s=0.5)
    assert pinned["expires_at"] <= time.time() + 0.5
    eventually(lambda: served.http.get("/cache").json()["pins"] == [])
    assert served.http.get("/cache").json()["sizes"]["pinned"]["pages"] == 0
    assert served.http.delete(f"/cache/pin/{pinned['id']}").json()["error"]["code"] == "pin_not_found"


def test_a_leased_conversation_is_listed_until_its_key_is_ended(served: Served) -> None:
    cached_of(served.client, served.model, system("leases"), prompt_cache_key="ada")
    cached_of(served.client, served.model, system("leases"), cache_lease={"ttl_s": 60, "key": "run"})

    def keys() -> list[str]:
        return sorted(lease["key"] for lease in served.http.get("/cache").json()["leases"])

    eventually(lambda: keys() == ["ada", "run"])
    assert served.http.get("/cache").json()["sizes"]["leased"]["pages"] > 0
    assert 'arbora_leases{kind="session"} 1.0' in served.http.get("/metrics").text
    assert served.http.delete("/cache/lease/run").status_code == 202
    eventually(lambda: keys() == ["ada"])
    served.http.delete("/cache/lease/ada")
    eventually(lambda: keys() == [])
    assert cached_of(served.client, served.model, system("leases")) > 0


def test_a_request_that_opts_out_neither_finds_nor_leaves_anything(served: Served) -> None:
    served.http.delete("/cache")
    assert cached_of(served.client, served.model, system("secrets"), cache_prompt=False) == 0
    assert served.http.get("/cache").json()["namespaces"] == []
    assert cached_of(served.client, served.model, system("secrets")) == 0
    assert cached_of(served.client, served.model, system("secrets"), cache_prompt=False) == 0


def test_the_most_used_prefix_is_shown_with_its_text(served: Served) -> None:
    served.http.delete("/cache")
    for _ in range(3):
        cached_of(served.client, served.model, system("fame"), cache_salt="famous")
    (namespace,) = served.http.get("/cache").json()["namespaces"]
    shown = served.http.get("/cache", params={"cache_salt": "famous"}).json()
    assert namespace["size"]["tokens"] == shown["namespaces"][0]["size"]["tokens"]
    assert shown["prefixes"][0]["hits"] == 2
    assert "Talk of fame" in shown["prefixes"][0]["text"]
    assert served.http.get("/cache").json()["prefixes"][0]["text"] is None


def test_isolated_keys_find_and_drop_only_their_own_prefixes(tenants: Served) -> None:
    with openai.OpenAI(base_url=f"{tenants.url}/v1", api_key="two", max_retries=0) as two:
        assert cached_of(tenants.client, tenants.model, system("tenants")) == 0
        assert cached_of(two, tenants.model, system("tenants")) == 0
        tenants.http.delete("/cache", headers={"authorization": "Bearer two"})
        assert cached_of(two, tenants.model, system("tenants")) == 0
        assert cached_of(tenants.client, tenants.model, system("tenants")) > 0
        assert cached_of(tenants.client, tenants.model, system("tenants"), cache_salt="x") == 0


def test_an_isolated_key_is_not_shown_the_hits_of_others(tenants: Served, served: Served) -> None:
    rates = {"hit_rate", "recent_hit_rate"}
    assert rates <= served.http.get("/cache").json().keys()
    headers = {"authorization": "Bearer one"}
    assert not rates & tenants.http.get("/cache", headers=headers).json().keys()


def test_an_empty_salt_is_none_to_look_at(served: Served) -> None:
    answer = served.http.get("/cache", params={"cache_salt": ""})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")


def test_a_key_that_pinned_its_share_leaves_the_other_its_own(tenants: Served) -> None:
    def pinned(key: str, topic: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        body = {"ttl_s": 60, "prompt": f"{topic} {LONG}"[:80]}
        return tenants.http.post("/cache/pin", json=body, headers=headers)

    answers = [pinned("one", topic) for topic in "abcdefghijklmnop"]
    assert (answers[0].status_code, answers[-1].status_code) == (200, 409)
    assert "may be pinned with your API key" in answers[-1].json()["error"]["message"]
    assert pinned("two", "a").status_code == 200


def test_more_than_the_share_is_not_pinned(tenants: Served) -> None:
    headers = {"authorization": "Bearer two"}
    answer = tenants.http.post("/cache/pin", json={"ttl_s": 60, "prompt": LONG * 8}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "pin_quota_exceeded")
    pinnable = tenants.http.get("/cache", headers=headers).json()["sizes"]["pinnable"]
    assert 0 < pinnable["bytes"] <= 20_000
    left = f"{pinnable['pages']:,} pages ({pinnable['tokens']:,} tokens) may be pinned with your API key"
    assert left in answer.json()["error"]["message"]
