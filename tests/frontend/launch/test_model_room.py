"""Which models are unloaded, so that another one has the memory that it needs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import cast

import pytest
from arbora.frontend.launch import model_room
from arbora.frontend.launch.errors import ServerError
from arbora.frontend.launch.model_room import ModelRoom
from arbora.frontend.launch.served_model import HostedModel, ServedModel
from hypothesis import given
from hypothesis import strategies as st

MACHINE = 1000
"""bytes of memory"""


class Model:
    """A model that is unloaded as soon as it is evicted, unless requests use it."""

    def __init__(self, name: str, memory: int, last_used: float = 0.0, *, loads: bool = True) -> None:
        self.name = name
        self.hosted = HostedModel(Path(name), name, memory=memory)
        self.last_used = last_used
        self.users: set[int] = set()
        self.starts_server = False
        self.is_unloaded = asyncio.Event()
        if not loads:
            self.is_unloaded.set()

    @property
    def is_idle(self) -> bool:
        return not self.is_unloaded.is_set() and not self.users

    def evict(self) -> None:
        assert not self.users, "no model in use is evicted"
        self.is_unloaded.set()


class Machine:
    """Models that are loaded, and how much memory they leave free. `taken`: by other programs."""

    def __init__(self, *models: Model, taken: int = 0) -> None:
        self.models = models
        self.taken = taken

    def find_free(self) -> int:
        return MACHINE - self.taken - sum(each.hosted.memory for each in self.models if self._has(each))

    def _has(self, model: Model) -> bool:
        return not model.is_unloaded.is_set()

    @property
    def names_of_loaded(self) -> list[str]:
        return [each.name for each in self.models if self._has(each)]

    async def load(self, model: Model, room: ModelRoom | None = None) -> None:
        room = room or ModelRoom(self.find_free, seconds=0.0)
        models = cast("list[ServedModel]", [*self.models, model])
        async with room.make(cast(ServedModel, model), models):
            pass


async def test_the_least_recently_used_models_are_unloaded_until_the_model_fits() -> None:
    machine = Machine(Model("a", 300, 3.0), Model("b", 300, 1.0), Model("c", 300, 2.0))
    await machine.load(Model("d", 700, loads=False))
    assert machine.names_of_loaded == ["a"]


async def test_a_model_that_fits_unloads_none() -> None:
    machine = Machine(Model("a", 300), Model("b", 300))
    await machine.load(Model("c", 400, loads=False))
    assert machine.names_of_loaded == ["a", "b"]


async def test_a_model_too_large_for_the_machine_is_refused_with_numbers_and_unloads_none() -> None:
    machine = Machine(Model("a", 300), Model("b", 300), taken=100)
    with pytest.raises(ServerError) as refused:
        await machine.load(Model("c", 901, loads=False))
    assert str(refused.value) == (
        "c needs about 901B, but only 900B are free when all other models are unloaded. Use a smaller model "
        "or quantization, or lower --kv-memory."
    )
    assert machine.names_of_loaded == ["a", "b"]


async def test_a_model_that_leaves_less_than_it_was_said_to_take_ends_in_the_same_refusal() -> None:
    models = (Model("a", 300), Model("b", 300))
    machine = Machine(*models, taken=500)
    with pytest.raises(ServerError, match="only 500B are free when all other"):
        await machine.load(Model("c", 600, loads=False), ModelRoom(lambda: 500, seconds=0.0))
    assert machine.names_of_loaded == []


async def test_the_load_that_starts_the_server_is_tried_in_any_case() -> None:
    first = Model("first", 2 * MACHINE, loads=False)
    first.starts_server = True
    await Machine().load(first)


async def test_a_slow_question_for_the_free_memory_stops_no_other_work() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    def ask_driver() -> int:
        time.sleep(0.3)
        return MACHINE

    counting = asyncio.create_task(count_turns())
    await Machine().load(Model("a", 100, loads=False), ModelRoom(ask_driver))
    counting.cancel()
    assert turns > 3


@given(
    others=st.lists(st.tuples(st.integers(1, 400), st.booleans()), max_size=6),
    needed=st.integers(1, MACHINE),
    taken=st.integers(0, 300),
)
def test_only_as_many_unused_models_as_needed_are_unloaded_in_the_order_of_their_use(
    others: list[tuple[int, bool]], needed: int, taken: int
) -> None:
    asyncio.run(_check_order(others, needed, taken))


async def _check_order(others: list[tuple[int, bool]], needed: int, taken: int) -> None:
    models = [Model(str(number), memory, number) for number, (memory, _) in enumerate(others)]
    for model, (_, is_used) in zip(models, others, strict=True):
        model.users = {0} if is_used else set()
    machine = Machine(*reversed(models), taken=taken)
    total = machine.find_free() + sum(model.hosted.memory for model in models)
    unused = [model for model in models if not model.users]
    expected, free = set(machine.names_of_loaded), machine.find_free()
    if needed <= total:
        for model in unused:
            if needed <= free:
                break
            free += model.hosted.memory
            expected.discard(model.name)
    try:
        await machine.load(Model("new", needed, loads=False))
    except ServerError as error:
        assert needed > free
        assert ("all other models are unloaded" in str(error)) == (
            needed > total or not machine.names_of_loaded
        )
    else:
        assert needed <= free
    assert set(machine.names_of_loaded) == expected


async def test_models_are_loaded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_room, "POLL_SECONDS", 0.0)
    room, loading, most = ModelRoom(lambda: MACHINE), 0, 0

    async def load(model: Model) -> None:
        nonlocal loading, most
        async with room.make(cast(ServedModel, model), []):
            loading, most = loading + 1, max(most, loading + 1)
            await asyncio.sleep(0.01)
            loading -= 1

    await asyncio.gather(*(load(Model(str(number), 10, loads=False)) for number in range(4)))
    assert most == 1
