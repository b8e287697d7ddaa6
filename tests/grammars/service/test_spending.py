"""The sharing of compile time between tenants, with a clock that the test sets."""

from __future__ import annotations

import threading

from arbora.grammars.service.lanes import Lanes
from arbora.grammars.service.spending import HALF_LIFE_S, HEAVY_S, LONGEST_LEAD_S, Spending


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_tenants_time_counts_half_after_the_half_life() -> None:
    clock = Clock()
    spending = Spending(clock)
    spending.add("a", 8.0)
    clock.now = HALF_LIFE_S
    assert spending.of("a") == 4.0
    spending.add("a", 1.0)
    clock.now = 3 * HALF_LIFE_S
    assert spending.of("a") == 1.25
    assert spending.of("b") == 0.0


def test_a_tenant_is_heavy_after_more_compiling_than_usual_schemas_take_and_only_for_a_while() -> None:
    clock = Clock()
    spending = Spending(clock)
    spending.add("usual", HEAVY_S / 2)
    spending.add("hostile", 4 * HEAVY_S)
    assert (spending.is_heavy("usual"), spending.is_heavy("hostile")) == (False, True)
    clock.now = 3 * HALF_LIFE_S
    assert not spending.is_heavy("hostile")


def test_no_tenant_is_delayed_for_ever() -> None:
    spending = Spending(Clock())
    spending.add("hostile", 1e9)
    assert spending.lead("hostile") == LONGEST_LEAD_S


def test_the_number_of_remembered_tenants_is_bounded() -> None:
    spending = Spending(Clock())
    for number in range(5000):
        spending.add(f"tenant {number}", 1.0 + number)
    assert len(spending._spent) <= 1024
    assert spending.of("tenant 4999") > 0.0


def test_a_tenants_queue_does_not_delay_anothers_grammar() -> None:
    clock = Clock()
    spending = Spending(clock)
    lanes = Lanes("test", 1, 1, clock, spending)
    began: list[str] = []
    release = lanes.submit(0, lambda: spending.add("hostile", 2.0), "hostile")
    release.result()
    hold = _Hold()
    lanes.submit(0, hold, "")
    for number in range(20):
        lanes.submit(0, lambda number=number: began.append(f"hostile {number}"), "hostile")  # type: ignore[misc]
    clock.now = 1.0
    last = lanes.submit(0, lambda: began.append("other"), "other")
    hold.let_go()
    last.result()
    assert began[0] == "other"
    lanes.close()


def test_heavy_tenants_never_take_all_threads() -> None:
    clock = Clock()
    spending = Spending(clock)
    spending.add("hostile", 100.0)
    lanes = Lanes("test", 3, 2, clock, spending)
    holds = [_Hold() for _ in range(3)]
    for hold in holds:
        lanes.submit(0, hold, "hostile")
    assert lanes.submit(0, lambda: "made", "other").result(60.0) == "made"
    for hold in holds:
        hold.let_go()
    lanes.close()


class _Hold:
    """A task that runs until the test ends it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> None:
        assert self._event.wait(60.0)

    def let_go(self) -> None:
        self._event.set()
