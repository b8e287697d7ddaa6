"""Pauses for tools: which prompts end them, what they cost, and how their limits are shared."""

from __future__ import annotations

from array import array
from collections import Counter

import arbora.runtime.scheduler.tool_pauses as tool_pauses
import pytest
from arbora.runtime.messages import Generate
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.request import Request
from arbora.runtime.scheduler.tool_pauses import MAX_AWAITED, MAX_MEASURED_S, TenantRecords, ToolPauses
from hypothesis import given
from hypothesis import strategies as st

TAIL = [7] * 16  # as of a chat template


def prompt_of(name: str, tokens: list[int], tenant: str = "", namespace: str = "") -> Generate:
    packed = array("i", tokens).tobytes()
    return Generate(name, 0, packed, SamplingParams(max_tokens=1), namespace=namespace, tenant=tenant)


def begin(pauses: ToolPauses, name: str, tokens: list[int], now: float = 0.0, **whose: str) -> None:
    request = Request.from_message(prompt_of(name, tokens, **whose), 0)
    pauses.begin(request, ["search"], now)


@given(
    awaited=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), max_size=12),
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=7),
)
def test_a_prompt_ends_exactly_the_pauses_whose_prompts_it_continues(
    awaited: list[list[int]], prompt: list[int]
) -> None:
    pauses = ToolPauses()
    for number, each in enumerate(awaited):
        begin(pauses, str(number), each)
    continued = {str(n) for n, each in enumerate(awaited) if each == prompt[: len(each)] and each != prompt}
    assert {*pauses.results_come(prompt_of("next", prompt), 1.0)} == continued
    assert pauses.results_come(prompt_of("again", prompt), 2.0) == []


def test_a_prompt_is_hashed_once_for_any_number_of_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = ToolPauses()
    for number in range(200):
        begin(pauses, str(number), [number, *range(1000), *TAIL])
        begin(pauses, f"longer {number}", [number, *range(1000 + number), *TAIL])
    hashed = Counter[str]()

    class Counted:
        def update(self, data: memoryview) -> None:
            hashed["bytes"] += len(data)

        def digest(self) -> bytes:
            return b""

    monkeypatch.setattr(tool_pauses, "sha256", Counted)
    prompt = [300, *range(1000), *TAIL, *TAIL, 5]
    pauses.results_come(prompt_of("next", prompt), 1.0)
    assert 0 < hashed["bytes"] <= 4 * len(prompt)


def test_a_tenant_with_many_pauses_costs_others_none() -> None:
    pauses = ToolPauses()
    begin(pauses, "mine", [1, 2, 3], tenant="modest")
    for number in range(2 * MAX_AWAITED):
        begin(pauses, str(number), [number, 5], now=1.0, tenant="greedy")
    assert pauses.results_come(prompt_of("next", [1, 2, 3, 4], "modest"), 10.0) == ["mine"]
    newest = 2 * MAX_AWAITED - 1
    assert pauses.results_come(prompt_of("more", [newest, 5, 6], "greedy"), 10.0) == [str(newest)]
    assert pauses.results_come(prompt_of("more", [0, 5, 6], "greedy"), 10.0) == []


def test_a_tenant_with_many_tools_costs_others_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = ToolPauses()
    monkeypatch.setattr(pauses, "_seconds", TenantRecords(8))
    begin(pauses, "mine", [1], tenant="modest")
    pauses.results_come(prompt_of("next", [1, 2], "modest"), 30.0)
    for number in range(20):
        request = Request.from_message(prompt_of(str(number), [1], "greedy"), 0)
        pauses.begin(request, [f"tool {number}"], 30.0)
        pauses.results_come(prompt_of("next", [1, 2], "greedy"), 40.0)
    assert pauses.estimate("modest", ["search"]) == 30.0
    assert pauses.estimate("greedy", ["tool 19"]) == 10.0
    assert pauses.estimate("greedy", ["tool 0"]) == tool_pauses.FIRST_GUESS_S


def test_results_that_nobody_awaits_any_more_leave_the_limit_to_others() -> None:
    pauses = ToolPauses()
    for number in range(MAX_AWAITED):
        begin(pauses, str(number), [number], tenant=f"left {number}")
    now = MAX_MEASURED_S + 1.0
    for number in range(20):
        begin(pauses, f"new {number}", [number, 5], now, tenant="new")
    for number in range(20):
        found = pauses.results_come(prompt_of("next", [number, 5, 6], "new"), now)
        assert found == [f"new {number}"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=80),
    st.integers(1, 12),
)
def test_records_are_shared_fairly(puts: list[tuple[str, int]], most: int) -> None:
    """A tenant keeps as many of its newest records as its even share allows."""
    records: TenantRecords[int, int] = TenantRecords(most)
    newest: dict[str, list[int]] = {}
    for tenant, key in puts:
        records.put(tenant, key, key)
        mine = newest.setdefault(tenant, [])
        newest[tenant] = [*[each for each in mine if each != key], key]
    assert len(records) <= most
    share = most // 3
    for tenant, keys in newest.items():
        for key in keys[-share:] if share else ():
            assert records.get(tenant, key) == key
