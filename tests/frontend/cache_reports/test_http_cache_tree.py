"""GET /cache/tree over HTTP with a scripted scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from arbora.frontend.core.prepare import cache_namespace
from arbora.frontend.http.tenants import shown_namespace
from arbora.runtime.messages import (
    CacheAnswer,
    CacheControl,
    CacheNode,
    CacheRoot,
    NodeTokens,
    PagesInTiers,
    QueryCache,
    QueryNode,
)
from cache_answers import report
from fake_scheduler import packed
from http_world import HttpWorld, http_world

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "the cat sat on the mat"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world() as world:
        yield world


def node(**fields: object) -> CacheNode:
    numbers = {"tokens": 6, "pages": 1, "hits": 2, "idle": 3}
    users = {"requests": 1, "waiting": 2, "pins": 0, "leases": 0}
    rest = {"id": 7, "parent": 0, "tokens_below": 0, "folded": 0, "text": None, "stored": None}
    return CacheNode(**{**numbers, **users, **rest, **fields})  # type: ignore[arg-type]


def tree_of(world: HttpWorld, namespace: str) -> None:
    """The scheduler has a tree of `namespace` and of another one, with one node each."""
    head, lead = packed(world.ids(TEXT)), packed(world.ids("<|im_start|>user\n"))
    roots = [CacheRoot(0, namespace, True), CacheRoot(1, "other", False)]
    nodes = [
        (node(id=None, parent=None, tokens=0), b"", b""),
        (node(id=None, parent=None, tokens=0), b"", b""),
        (node(parent=0), lead, head),
        (node(parent=1, id=9), b"", b""),
    ]

    def answer(message: CacheControl) -> CacheAnswer:
        if isinstance(message, QueryNode):
            is_known = (message.own, message.page) == (namespace, 7)
            return NodeTokens(message.query, head if is_known else None)
        assert isinstance(message, QueryCache) and message.nodes
        return report(message.query, roots=roots, nodes=nodes, is_complete=False)

    world.running.cache = answer


async def test_the_tree_is_shown_with_the_texts_of_the_caller_s_namespace(world: HttpWorld) -> None:
    own = cache_namespace("", "mine")
    tree_of(world, own)
    answer = await world.http.get("/cache/tree", params={"cache_salt": "mine"})
    tree = answer.json()
    assert (tree["page_tokens"], tree["is_complete"]) == (16, False)
    assert tree["roots"] == [
        {"node": 0, "namespace": shown_namespace(own), "own": True},
        {"node": 1, "namespace": shown_namespace("other"), "own": False},
    ]
    assert [(each["parent"], each["text"]) for each in tree["nodes"][2:]] == [(0, TEXT), (1, None)]
    assert [(each["role"], each["label"]) for each in tree["nodes"][2:]] == [("user", TEXT), (None, None)]
    assert tree["nodes"][2]["id"] == 7
    assert "mine" not in answer.text


async def test_the_text_of_a_node_is_found_by_its_id(world: HttpWorld) -> None:
    tree_of(world, "")
    assert (await world.http.get("/cache/tree/7")).json() == {
        "id": 7,
        "tokens": len(world.ids(TEXT)),
        "text": TEXT,
    }


async def test_an_evicted_node_says_in_which_tiers_its_pages_are(world: HttpWorld) -> None:
    nodes = [
        (node(id=None, parent=None, tokens=0), b"", b""),
        (node(id=None, pages=0, stored=PagesInTiers(6, 3, 2)), b"", b""),
        (node(id=None, pages=0), b"", b""),
    ]
    world.running.cache = lambda message: report(message.query, nodes=nodes)
    tree = (await world.http.get("/cache/tree")).json()
    assert [each["stored"] for each in tree["nodes"]] == [None, {"pages": 6, "host": 3, "disk": 2}, None]


@pytest.mark.parametrize("id", ["9", "8", "x", "-1", "9" * 30, "²"])
async def test_a_node_of_another_namespace_or_none_is_not_found(world: HttpWorld, id: str) -> None:
    tree_of(world, "")
    answer = await world.http.get(f"/cache/tree/{id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "node_not_found")


async def test_an_unknown_parameter_is_refused(world: HttpWorld) -> None:
    answer = await world.http.get("/cache/tree", params={"salt": "mine"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "salt")


async def test_keys_that_share_a_namespace_see_no_texts() -> None:
    async with http_world(api_keys=("first", "second")) as world:
        tree_of(world, "")
        headers = {"Authorization": "Bearer first"}
        tree = (await world.http.get("/cache/tree", headers=headers)).json()
        assert [each["text"] for each in tree["nodes"]] == [None] * 4
        assert (await world.http.get("/cache/tree/7", headers=headers)).status_code == 404
        assert (await world.http.get("/cache/tree")).status_code == 401


async def test_an_isolated_key_asks_for_its_own_namespaces() -> None:
    async with http_world(api_keys=("first", "second"), isolate_keys=True) as world:
        tree_of(world, "")
        await world.http.get("/cache/tree", headers={"Authorization": "Bearer first"})
        [asked] = world.running.of_kind(QueryCache)
        assert len(asked.scope) > 60 and asked.own.startswith(asked.scope)
