"""A page's key depends on its model, namespace and all its tokens, and not on the nodes of the tree."""

from __future__ import annotations

from array import array

from arbora.radix_cache import KEY_BYTES, NeededKeys, PrefixCache, TreeKeys
from arbora.radix_cache.page_keys import PageKeys
from hypothesis import given, settings
from hypothesis import strategies as st

PAGE = 2
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)


def pack(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def keys_alone(namespace: str, tokens: list[int], model: bytes = b"model") -> bytes:
    keys = PageKeys(model, PAGE * 4)
    return keys.follow(keys.start(namespace), pack(tokens))


def keys_in(cache: PrefixCache) -> TreeKeys:
    assert cache.keys is not None
    return cache.keys


def serve(cache: PrefixCache, namespace: str, tokens: list[int]) -> dict[int, list[int]]:
    """Serves a sequence; returns for each full page the tokens up to its end."""
    lock = cache.acquire(cache.match(namespace, pack(tokens), len(tokens)))
    if lock.copy is not None:
        cache.end_copy(lock)
    assert cache.extend(lock, len(tokens))
    cache.release(lock, pack(tokens))
    return {
        page: tokens[: (at + 1) * PAGE]
        for at, page in enumerate(lock.pages)
        if (at + 1) * PAGE <= len(tokens)
    }


@given(sequences=SEQUENCES, pages=st.integers(6, 20))
@settings(deadline=None)
def test_every_evicted_page_has_the_key_of_its_tokens(sequences: list[list[int]], pages: int) -> None:
    cache = PrefixCache(pages, PAGE, check_invariants=True, model=b"model")
    contents: dict[int, list[int]] = {}
    for tokens in sequences:
        served = serve(cache, "a", tokens)
        for evicted in keys_in(cache).take_evicted():
            for at, page in enumerate(evicted.pages):
                tokens_then = contents[page]
                key = evicted.keys[at * KEY_BYTES : (at + 1) * KEY_BYTES]
                assert key == keys_alone("a", tokens_then)[-KEY_BYTES:]
        contents |= served
    for kept in keys_in(cache).list_pages():
        keys = [kept.keys[at : at + KEY_BYTES] for at in range(0, len(kept.keys), KEY_BYTES)]
        assert keys == [keys_alone("a", contents[page])[-KEY_BYTES:] for page in kept.pages]


@given(sequences=SEQUENCES, pages=st.integers(6, 20))
@settings(deadline=None)
def test_every_evicted_node_keeps_the_keys_of_its_pages(sequences: list[list[int]], pages: int) -> None:
    cache = PrefixCache(pages, PAGE, check_invariants=True, model=b"model")
    for tokens in sequences:
        serve(cache, "a", tokens)
    nodes = cache.reports.walk(["a"]).list_largest(1000, 100)
    before: list[list[int]] = []  # all tokens up to each node's end
    for node in nodes:
        own = array("i", node.head).tolist()
        before.append(own if node.parent is None else before[node.parent] + own)
        if node.parent is not None and not node.pages:
            assert node.keys == keys_alone("a", before[-1])[-len(node.keys) :]
            assert len(node.keys) == node.tokens // PAGE * KEY_BYTES
        else:
            assert node.keys == b""


@given(sequences=SEQUENCES, wanted=st.lists(st.integers(0, 2), max_size=12))
@settings(deadline=None)
def test_the_missing_pages_of_a_sequence_have_their_keys(
    sequences: list[list[int]], wanted: list[int]
) -> None:
    cache = PrefixCache(100, PAGE, check_invariants=True, model=b"model")
    for tokens in sequences:
        serve(cache, "a", tokens)
    missing = keys_in(cache).find_missing("a", pack(wanted))
    assert missing.first == len(cache.whole_pages("a", pack(wanted)))
    assert missing.keys == keys_alone("a", wanted)[missing.first * KEY_BYTES :]
    with_states = PrefixCache(100, PAGE, check_invariants=True, model=b"model", states=8, slots=2)
    for tokens in sequences:
        serve(with_states, "a", tokens)
    for start in range(missing.first * PAGE + 1):
        found = keys_in(with_states).find_missing("a", pack(wanted), start)
        after = keys_alone("a", wanted)[start // PAGE * KEY_BYTES :]
        [names] = keys_in(with_states).name_others(after)
        states = NeededKeys(names, [1] * (len(after) // KEY_BYTES))
        assert found == missing._replace(start=start, others=[states] if after else ())


@given(sequences=SEQUENCES)
@settings(deadline=None)
def test_everything_lists_parents_before_their_children(sequences: list[list[int]]) -> None:
    cache = PrefixCache(100, PAGE, check_invariants=True, model=b"model")
    contents: dict[int, list[int]] = {}
    for tokens in sequences:
        contents |= serve(cache, "a", tokens)
    told: list[list[int]] = [[]]
    for kept in keys_in(cache).list_pages():
        for page in kept.pages:
            assert contents[page][:-PAGE] in told
            told.append(contents[page])
    assert len(told) == len({tuple(tokens) for tokens in told})


def test_models_and_namespaces_have_keys_of_their_own() -> None:
    tokens = [1, 2, 3, 4]
    keys = {
        keys_alone("a", tokens),
        keys_alone("b", tokens),
        keys_alone("", tokens),
        keys_alone("a", tokens, b"other"),
    }
    assert len({key[:KEY_BYTES] for key in keys}) == 4


def test_a_cache_without_a_model_has_no_keys() -> None:
    cache = PrefixCache(4, PAGE)
    serve(cache, "a", [1, 2, 3, 4])
    serve(cache, "a", [5, 6, 7, 8, 9, 10])
    assert cache.keys is None
