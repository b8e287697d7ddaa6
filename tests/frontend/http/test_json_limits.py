"""The values and levels of a JSON text, counted without decoding it."""

from __future__ import annotations

import json
from typing import Any

from arbora.frontend.http.json_limits import JsonShape, ShapeReader
from hypothesis import given
from hypothesis import strategies as st

texts = st.text(st.sampled_from('ab"\\,[]{}é\n'), max_size=8)
values = st.recursive(
    st.none() | st.integers(-99, 99) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=30,
)


def depth(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0) if isinstance(value, dict | list) else 0


def strings(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(strings, value.values()))
    return sum(map(strings, value)) if isinstance(value, list) else isinstance(value, str)


def containers(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + sum(map(containers, inner)) if isinstance(value, dict | list) else 0


def read(text: bytes, chunk: int) -> JsonShape:
    reader = ShapeReader()
    for start in range(0, len(text), chunk):
        reader.read(text[start : start + chunk])
    return reader.shape


@given(value=values, chunk=st.integers(1, 9), ensure_ascii=st.booleans())
def test_the_shape_is_that_of_the_decoded_value_however_it_is_cut(
    value: Any, chunk: int, ensure_ascii: bool
) -> None:
    shape = read(json.dumps(value, ensure_ascii=ensure_ascii).encode(), chunk)
    assert (shape.depth, shape.containers) == (depth(value), containers(value))
    assert shape.strings == strings(value)


@given(fields=st.dictionaries(texts, values, max_size=6))
def test_fields_are_those_of_the_outermost_object(fields: dict[str, Any]) -> None:
    assert read(json.dumps(fields).encode(), 1 << 20).fields == max(len(fields) - 1, 0)


@given(st.lists(st.integers(0, 9), min_size=1))
def test_every_element_of_a_list_counts_as_a_value(elements: list[int]) -> None:
    assert read(json.dumps(elements).encode(), 7).values == len(elements)
