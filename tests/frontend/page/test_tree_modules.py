"""The modules of the page that lay out the prefix tree, merge its chains and show a chat's path."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from page_module import PageModule


@pytest.fixture(scope="module")
def icicle() -> PageModule:
    return PageModule("icicle")


@pytest.fixture(scope="module")
def paths() -> PageModule:
    return PageModule("dom", "events", "api", "icicle", "models", "chat_path")


# The layout


def node(parent: int | None, tokens: int, below: int = 0, folded: int = 0, **fields: Any) -> dict[str, Any]:
    number = 0 if parent is None else 1
    usual = {"id": number, "idle": 0, "pages": number, "hits": 0, "requests": 0, "pins": 0, "leases": 0}
    counts = {"tokens": tokens, "tokens_below": below, "folded": folded}
    return {**usual, "stored": None, "parent": parent, **counts, **fields}


TREE = [node(None, 0, 100), node(0, 20, 40, folded=3), node(0, 40), node(1, 30)]


def test_siblings_share_their_parent_s_width_by_their_tokens(icicle: PageModule) -> None:
    found = icicle.run("boxes(nodes, [0])", nodes=TREE)
    places = {(box["node"], box["folded"]): (box["depth"], box["x"], box["width"]) for box in found}
    assert places[0, 0] == (0, 0, 1)
    assert places[1, 0] == (1, 0, pytest.approx(0.6))
    assert places[2, 0] == (1, pytest.approx(0.6), pytest.approx(0.4))
    assert places[3, 0] == (2, 0, pytest.approx(0.45))
    assert places[1, 3] == (2, pytest.approx(0.45), pytest.approx(0.15))


def test_no_two_boxes_of_a_row_overlap(icicle: PageModule) -> None:
    nodes = [node(None, 0), *(node(index // 3, index) for index in range(1, 60))]
    for index in range(59, 0, -1):
        parent = nodes[nodes[index]["parent"]]
        parent["tokens_below"] += nodes[index]["tokens"] + nodes[index]["tokens_below"]
    found = icicle.run("boxes(nodes, [0])", nodes=nodes)
    assert len(found) == 60
    rows: dict[int, list[tuple[float, float]]] = {}
    for box in found:
        rows.setdefault(box["depth"], []).append((box["x"], box["x"] + box["width"]))
    for row in rows.values():
        row.sort()
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(row))
        assert row[-1][1] <= 1 + 1e-9


def test_arrow_keys_lead_to_the_neighbours(icicle: PageModule) -> None:
    moves = [
        (3, "ArrowUp"),
        (1, "ArrowRight"),
        (2, "ArrowLeft"),
        (1, "ArrowDown"),
        (0, "ArrowUp"),
        (2, "ArrowDown"),
    ]
    found = [icicle.run("neighbour(nodes, at, key)", nodes=TREE, at=at, key=key) for at, key in moves]
    assert found == [1, 2, 1, 3, None, None]


@pytest.mark.parametrize(("idle", "expected"), [(0, 0), (5, 1), (50, 2), (500, 3)])
def test_a_node_s_heat_is_how_lately_it_was_used(icicle: PageModule, idle: int, expected: int) -> None:
    assert icicle.run("heat(node, 100)", node=node(0, 1, idle=idle)) == expected


@pytest.mark.parametrize(
    ("host", "disk", "expected"),
    [(6, 0, "host"), (3, 2, "host"), (3, 3, "host"), (2, 3, "disk"), (1, 2, "neither"), (0, 3, "disk")],
)
def test_the_main_tier_of_an_evicted_node_has_most_of_its_pages(
    icicle: PageModule, host: int, disk: int, expected: str
) -> None:
    stored = {"pages": 6, "host": host, "disk": disk}
    assert icicle.run("mainTier({ stored })", stored=stored) == expected


def test_a_node_without_known_tiers_has_no_main_tier(icicle: PageModule) -> None:
    assert icicle.run("mainTier({ stored: null })") is None


def test_the_tiers_of_a_node_are_said_in_words(icicle: PageModule) -> None:
    words = icicle.run("tiersInWords(stored)", stored={"pages": 6, "host": 3, "disk": 2})
    assert words == "3 in host memory, 2 on disk, 1 in neither, of 6 looked up"


def test_a_node_tells_how_many_requests_use_it_and_wait_for_it(icicle: PageModule) -> None:
    found = [
        icicle.run("users(node)", node={"requests": running, "waiting": waiting})
        for running, waiting in ((2, 13), (0, 1), (0, 0))
    ]
    assert found == [["2 running", "13 waiting"], ["1 waiting"], []]


def test_the_labels_of_siblings_are_told_apart_by_their_first_words_that_differ(icicle: PageModule) -> None:
    labels = [None, "What is my name?", "What is my job?", "What is new?", "Where?"]
    nodes = [node(None, 0, label=None, role=None)]
    nodes += [node(0, 9, label=label, role="user") for label in labels]
    nodes.append(node(0, 9, label="What is my name", role="assistant"))
    starts = icicle.run("distinctStarts(nodes)", nodes=nodes)
    shown = [label and label[start:] for label, start in zip(labels, starts[1:], strict=False)]
    assert shown == [None, "name?", "job?", "new?", "Where?"]
    assert starts[-1] == 0


# Chains of nodes


def test_a_chain_is_one_box_with_the_sums_of_its_tokens_and_the_hits_of_its_first_node(
    icicle: PageModule,
) -> None:
    chain = [node(None, 0), node(0, 16, id=1, hits=5), node(1, 8, id=2, hits=3, requests=1), node(2, 4, id=3)]
    ends = [node(3, 2, id=4), node(3, 1, id=5)]
    for index, below in enumerate((31, 15, 7, 3)):
        chain[index]["tokens_below"] = below
    tree = {"nodes": [*chain, *ends], "roots": [{"node": 0, "namespace": ""}], "is_complete": True}
    merged = icicle.run("mergeChains(tree)", tree=tree)
    root, box, *below = merged["nodes"]
    assert (root["ids"], box["ids"], [each["ids"] for each in below]) == ([0], [1, 2, 3], [[4], [5]])
    assert (box["tokens"], box["tokens_below"], box["hits"], box["requests"]) == (28, 3, 5, 0)
    assert [each["parent"] for each in merged["nodes"]] == [None, 0, 1, 1]
    assert merged["is_complete"]
    assert icicle.run("namesOf(mergeChains(tree))", tree=tree) == ["page 0", "page 1", "page 4", "page 5"]
    assert icicle.run("ancestry(nodes, 3)", nodes=merged["nodes"]) == [0, 1, 3]


@pytest.mark.parametrize("below", [{"pins": 0}, {"leases": 1}, {"pages": 0}])
def test_a_chain_ends_where_pins_leases_or_pages_do(icicle: PageModule, below: dict[str, int]) -> None:
    nodes = [node(None, 0), node(0, 16, pins=1, id=1), {**node(1, 8, pins=1, id=2), **below}]
    tree = {"nodes": nodes, "roots": [{"node": 0, "namespace": ""}]}
    assert len(icicle.run("mergeChains(tree).nodes", tree=tree)) == 3


def test_a_chain_ends_where_nodes_are_folded(icicle: PageModule) -> None:
    nodes = [node(None, 0), node(0, 16, folded=3, id=1), node(1, 8, id=2)]
    tree = {"nodes": nodes, "roots": [{"node": 0, "namespace": ""}]}
    assert len(icicle.run("mergeChains(tree).nodes", tree=tree)) == 3


def test_a_chain_of_evicted_nodes_adds_up_their_tiers(icicle: PageModule) -> None:
    stored = {"pages": 2, "host": 1, "disk": 1}
    nodes = [node(None, 0), *(node(at, 8, pages=0, id=None, stored=stored) for at in range(2))]
    tree = {"nodes": nodes, "roots": [{"node": 0, "namespace": ""}]}
    assert icicle.run("mergeChains(tree).nodes[1].stored", tree=tree) == {"pages": 4, "host": 2, "disk": 2}


# The path of a chat


def test_each_part_of_the_prompt_has_a_row_with_the_words_of_its_message(paths: PageModule) -> None:
    counts = {"tokens": 9, "cached_tokens": 4, "evicted_tokens": 2, "shared_by": 3}
    roles = [(None, "template"), (0, "user"), (1, "assistant"), (None, "template")]
    parts = [{"index": index, "role": role, **counts} for index, role in roles]
    call = {"function": {"name": "weather", "arguments": "{}"}}
    sent = [{"content": " Hello\nyou "}, {"content": "", "tool_calls": [call, call]}]
    found = paths.run("pathRows(parts, sent, [null, {place: 1, count: 3}])", parts=parts, sent=sent)
    template = ("Text before the messages", "Beginning of the next reply")
    assert [row["words"] for row in found] == [
        template[0],
        "Hello⏎you",
        "calls weather · calls weather",
        template[1],
    ]
    assert [row["branch"] for row in found] == [None, None, {"place": 1, "count": 3}, None]
    assert [found[1][name] for name in ("tokens", "cached", "evicted", "shared")] == [9, 4, 2, 3]


@pytest.mark.parametrize(
    ("counts", "is_reply_start", "text"),
    [
        ((9, 4, 2, 3), False, "4 of 9 tokens cached · 2 evicted · shared by 3"),
        ((3, 0, 0, 0), False, "0 of 3 tokens cached"),
        ((3, 0, 0, 0), True, "3 tokens, computed with your next message"),
        ((3, 2, 0, 1), True, "2 of 3 tokens cached · shared by 1"),
    ],
)
def test_the_beginning_of_the_next_reply_is_not_said_to_be_missing(
    paths: PageModule, counts: tuple[int, ...], is_reply_start: bool, text: str
) -> None:
    numbers = dict(zip(("tokens", "cached", "evicted", "shared"), counts, strict=True))
    assert paths.run("rowNumbers(row)", row={**numbers, "isReplyStart": is_reply_start}) == text


def test_the_totals_of_a_path_are_said_in_words(paths: PageModule) -> None:
    text = paths.run("totalsText({ prompt_tokens: 1512, matched_tokens: 1480 })")
    start = "1,480 of 1,512 tokens of this chat are in the cache; the next turn computes about 32"
    assert text.startswith(start)


def test_the_tier_of_an_evicted_part_is_that_of_the_only_node_of_its_length(paths: PageModule) -> None:
    def evicted(parent: int, tokens: int, **tiers: int) -> dict[str, Any]:
        stored = {"pages": 2, "host": 0, "disk": 0, **tiers}
        return node(parent, tokens, pages=0, id=None, stored=stored)

    nodes = [node(None, 0, id=None), node(0, 16, id=7), evicted(1, 32, host=2), evicted(1, 48, disk=2)]
    nodes.append(evicted(0, 64, disk=2))
    tier = "evictedTier(nodes, path)"

    def path(*parts: tuple[int | None, int]) -> list[dict[str, Any]]:
        return [{"id": id, "tokens": tokens} for id, tokens in parts]

    assert paths.run(tier, nodes=nodes, path=path((7, 16), (None, 32))) == "host"
    assert paths.run(tier, nodes=nodes, path=path((7, 16), (None, 48))) == "disk"
    assert paths.run(tier, nodes=nodes, path=path((None, 64))) == "disk"
    assert paths.run(tier, nodes=nodes, path=path((7, 16))) is None
    twice = [*nodes, evicted(1, 32, disk=2)]
    assert paths.run(tier, nodes=twice, path=path((7, 16), (None, 32))) is None
