"""The life of adapters in the scheduler: loaded, used, unloaded, and read again after a restart."""

from __future__ import annotations

from arbora.runtime.messages import (
    Abort,
    Adapter,
    AdapterChanged,
    AdapterList,
    AdapterRead,
    DropAdapter,
    Generate,
    LoadAdapter,
    Message,
    QueryRefused,
    ReadAdapter,
    Refused,
    UnloadAdapter,
    WatchAdapters,
)
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.adapters import AdapterRegistry
from fake_model import long_reply_prompt, pack
from scheduler_bench import SchedulerBench

FIRST, SECOND = Adapter("first", "/first", "1" * 64), Adapter("second", "/second", "2" * 64)


class World:
    """A scheduler with adapters, and what it has sent about them."""

    def __init__(self, *adapters: Adapter, places: int = 2) -> None:
        self.bench = SchedulerBench(adapters=AdapterRegistry(adapters, places))
        self.handle(WatchAdapters(0, None))

    def handle(self, *messages: object) -> None:
        for message in messages:
            self.bench.handle(message)  # type: ignore[arg-type]

    @property
    def answers(self) -> list[Message]:
        """The answers since the last call. The names in lists become `names`."""
        told, self.bench.told = self.bench.told, []
        refused, self.bench.answers = self.bench.answers, []
        self.names = [[each.name for each in one.adapters] for one in told if isinstance(one, AdapterList)]
        return [*(each for each in told if isinstance(each, AdapterChanged)), *refused]

    @property
    def orders(self) -> list[Message]:
        orders, self.bench.model.adapter_orders = self.bench.model.adapter_orders, []
        return orders

    def submit(self, name: str, adapter: Adapter) -> None:
        prompt = pack(long_reply_prompt(6, 8))
        digest = adapter.digest
        params = SamplingParams(max_tokens=8)
        self.handle(Generate(name, 0, prompt, params, namespace=digest, adapter=digest))

    def places(self) -> list[int | None]:
        return [setup.adapter for plan in self.bench.model.plans for setup in plan.setups]


def test_a_loaded_adapter_is_listed_once_it_is_read_and_its_rows_name_its_place() -> None:
    world = World(FIRST)
    world.handle(LoadAdapter(0, 7, "second", "/second", False))
    assert world.orders == [ReadAdapter(1, "/second", "second")] and world.answers == []
    world.handle(AdapterRead(1, SECOND.digest))
    assert world.answers == [AdapterChanged(7, SECOND)] and world.names[-1] == ["first", "second"]
    world.submit("a", SECOND)
    world.submit("b", FIRST)
    world.handle(Generate("c", 0, pack([1, 2]), SamplingParams(max_tokens=1)))
    world.bench.plan()
    assert world.places() == [1, 0, None]
    world.bench.run()
    assert not world.bench.refused and set(world.bench.outputs) == {"a", "b", "c"}


def test_orders_that_can_not_be_carried_out_are_refused() -> None:
    world = World(FIRST, places=2)
    world.handle(
        LoadAdapter(0, 1, "first", "/x", False),
        UnloadAdapter(0, 2, "other"),
        LoadAdapter(0, 3, "second", "/second", False),
        LoadAdapter(0, 4, "second", "/second", True),
        LoadAdapter(0, 5, "third", "/third", False),
        AdapterRead(1, "", "it is broken"),
    )
    refused = {each.query: each for each in world.answers if isinstance(each, QueryRefused)}
    assert {query: each.status for query, each in refused.items()} == {1: 400, 2: 404, 3: 400, 4: 400, 5: 400}
    assert "already loaded" in refused[1].message and "being loaded" in refused[4].message
    assert "2 places" in refused[5].message and refused[3].message == "it is broken"
    empty = World(places=0)
    empty.handle(LoadAdapter(0, 1, "first", "/x", False))
    (answer,) = empty.answers
    assert isinstance(answer, QueryRefused) and "--max-loras" in answer.message


def test_an_unloaded_adapter_stays_until_its_requests_have_ended() -> None:
    world = World(FIRST, places=1)
    world.submit("a", FIRST)
    world.submit("b", FIRST)
    world.bench.plan()
    world.handle(UnloadAdapter(0, 1, "first"))
    assert world.answers == [AdapterChanged(1, FIRST)] and world.names[-1] == []
    world.submit("late", FIRST)
    assert world.bench.refused["late"].status == 404
    world.handle(Abort("b"))
    assert world.orders == []
    world.bench.run()
    assert world.orders == [DropAdapter(0)]
    world.handle(LoadAdapter(0, 2, "second", "/second", False))
    assert world.orders == [ReadAdapter(0, "/second", "second")]


def test_a_replaced_adapter_serves_the_requests_that_have_arrived() -> None:
    world = World(FIRST)
    world.submit("old", FIRST)
    changed = Adapter("first", "/first", "3" * 64)
    world.handle(LoadAdapter(0, 1, "first", "/first", True), AdapterRead(1, changed.digest))
    world.submit("new", changed)
    world.bench.plan()
    assert world.places() == [0, 1] and ReadAdapter(1, "/first", "first") in world.orders
    world.bench.run()
    assert world.orders == [DropAdapter(0)]


def test_after_a_restart_adapters_are_read_again_and_requests_wait_for_theirs() -> None:
    world = World(FIRST)
    world.handle(WatchAdapters(0, [SECOND]), WatchAdapters(1, [SECOND]))
    assert world.orders == [DropAdapter(0), ReadAdapter(0, "/second", "second")]
    assert world.answers == [] and world.names[-1] == ["second"]
    world.submit("a", SECOND)
    world.submit("gone", SECOND)
    world.handle(Abort("gone"))
    assert not world.bench.accepted
    world.handle(AdapterRead(0, SECOND.digest))
    assert world.bench.accepted == {"a"}
    world.bench.run()
    assert set(world.bench.outputs) == {"a"}


def test_a_request_is_refused_if_its_adapter_was_changed_or_lost_in_a_restart() -> None:
    for read in (AdapterRead(1, "4" * 64), AdapterRead(1, "", "the directory is gone")):
        world = World(FIRST)
        world.handle(WatchAdapters(0, [FIRST, SECOND]))
        world.submit("a", SECOND)
        world.handle(read)
        assert isinstance(world.bench.refused["a"], Refused) and not world.bench.accepted


def test_a_retracted_request_keeps_its_adapter() -> None:
    world = World(FIRST, places=1)
    world.bench = SchedulerBench(num_pages=8, adapters=AdapterRegistry([FIRST], 1))
    for name in ("a", "b"):
        prompt = pack(long_reply_prompt(8, 12, salt=ord(name)))
        world.handle(Generate(name, 0, prompt, SamplingParams(max_tokens=12), adapter=FIRST.digest))
    world.bench.plan()
    world.handle(UnloadAdapter(0, 1, "first"))
    world.bench.run()
    assert [len(world.bench.tokens(name)) for name in "ab"] == [12, 12]
    assert world.bench.scheduler.stats().retractions and world.orders == [DropAdapter(0)]
