"""Knows which adapters the model process has, and how many requests use each."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..messages import (
    Adapter,
    AdapterChanged,
    AdapterList,
    AdapterOrder,
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
from .replies import Replies

log = logging.getLogger("arbora.scheduler")


@dataclass(slots=True, eq=False)
class _Loaded:
    adapter: Adapter
    place: int
    users: int = 0  # requests that have arrived and not ended
    is_listed: bool = True  # whether new requests may use it


@dataclass(slots=True, eq=False)
class _Reading:
    """An adapter that the model process reads. `order` is None if an earlier replica had it."""

    adapter: Adapter
    order: LoadAdapter | None = None
    waiting: list[Generate] = field(default_factory=list)


class AdapterRegistry:
    """The adapters by the places that they have in the model process. A request names the digest of its
    adapter, so it never runs with another one of the same name."""

    def __init__(self, adapters: Iterable[Adapter] = (), places: int = 0) -> None:
        """adapters: those that the model process has read at its start, in the first places"""
        self._loaded = {place: _Loaded(adapter, place) for place, adapter in enumerate(adapters)}
        self._reading: dict[int, _Reading] = {}
        self._places = places
        self._free = [place for place in reversed(range(places)) if place not in self._loaded]
        self._watchers: set[int] = set()
        self._is_restored = False
        self._to_model: list[Message] = []

    def take_messages(self) -> list[Message]:
        """Returns the messages for the model process since the last call."""
        messages, self._to_model = self._to_model, []
        return messages

    def handle(self, message: AdapterOrder, replies: Replies) -> None:
        match message:
            case WatchAdapters(client, known):
                self._watchers.add(client)
                if known is not None and not self._is_restored:
                    self._is_restored = True
                    self._restore(known)
                self._tell(replies)
            case LoadAdapter():
                if refused := self._begin(message):
                    replies.add(message.client, refused)
            case UnloadAdapter(client, query, name):
                loaded = self._find_name(name)
                if loaded is None:
                    text = f"The adapter {name!r} is not loaded."
                    refused = QueryRefused(query, 404, text, "lora_name", "adapter_not_found")
                    replies.add(client, refused)
                    return
                self._unlist(loaded)
                self._tell(replies)
                replies.add(client, AdapterChanged(query, loaded.adapter))

    def take_read(self, message: AdapterRead, replies: Replies) -> list[Generate]:
        """Lists an adapter that was read. Returns the requests that have waited for it."""
        reading = self._reading.pop(message.place)
        order, adapter = reading.order, reading.adapter
        if message.error:
            self._free.append(message.place)
        else:
            adapter = Adapter(adapter.name, adapter.path, message.digest)
            if replaced := self._find_name(adapter.name):
                self._unlist(replaced)
            self._loaded[message.place] = _Loaded(adapter, message.place)
        self._tell(replies)
        if order is None and message.error:
            log.warning("the adapter %s can't be loaded again: %s", adapter.name, message.error)
        elif order is not None and message.error:
            refused = QueryRefused(order.query, 400, message.error, "lora_path", "adapter_unusable")
            replies.add(order.client, refused)
        elif order is not None:
            replies.add(order.client, AdapterChanged(order.query, adapter))
        return reading.waiting

    def drop_client(self, client: int) -> None:
        self._watchers.discard(client)
        for reading in self._reading.values():
            reading.waiting = [message for message in reading.waiting if message.client != client]

    @property
    def has_waiting(self) -> bool:
        """Whether a request waits for its adapter to be read again."""
        return any(reading.waiting for reading in self._reading.values())

    def hold_back(self, message: Generate) -> bool:
        """Keeps a request until its adapter is read again, if an earlier replica had it."""
        for reading in self._reading.values():
            if message.adapter and reading.adapter.digest == message.adapter:
                reading.waiting.append(message)
                return True
        return False

    def forget(self, request: str) -> None:
        """Drops a request that waits for its adapter."""
        for reading in self._reading.values():
            reading.waiting = [message for message in reading.waiting if message.request != request]

    def find_refusal(self, message: Generate) -> Refused | None:
        if not message.adapter or self._find_digest(message.adapter) is not None:
            return None
        text = "The adapter of this request was unloaded or changed before the request began: send it again."
        return Refused(message.request, 404, text, "model", "model_not_found")

    def find_adapter_name(self, digest: str) -> str | None:
        """The name of the loaded adapter with this digest, also of one that new requests can't use."""
        loaded = (each.adapter for each in self._loaded.values())
        return next((adapter.name for adapter in loaded if adapter.digest == digest), None)

    def acquire(self, digest: str) -> int | None:
        """The place of a request's adapter, which stays loaded until `release`. None: the base model"""
        if not digest:
            return None
        loaded = self._find_digest(digest)
        assert loaded is not None, "a request without its adapter is refused"
        loaded.users += 1
        return loaded.place

    def release(self, place: int | None) -> None:
        """Gives back the adapter of a request that no step in flight names."""
        if place is not None:
            loaded = self._loaded[place]
            loaded.users -= 1
            self._drop_unused(loaded)

    def _begin(self, order: LoadAdapter) -> QueryRefused | None:
        """Has the model process read an adapter, or returns why not."""
        taken = self._find_name(order.name) is not None and not order.replaces
        is_read = any(reading.adapter.name == order.name for reading in self._reading.values())
        problem = None
        if taken or is_read:
            state = "is already loaded" if taken else "is being loaded"
            problem = f"The adapter {order.name!r} {state}: unload it first, or send load_inplace true."
        elif not self._free:
            problem = (
                f"All {self._places} places for adapters are taken: unload one, or start the server with a "
                "larger --max-loras."
            )
        if problem is not None:
            return QueryRefused(order.query, 400, problem, "lora_name", "invalid_value")
        self._read(_Reading(Adapter(order.name, order.path, ""), order))
        return None

    def _read(self, reading: _Reading) -> None:
        place = self._free.pop()
        self._reading[place] = reading
        self._to_model.append(ReadAdapter(place, reading.adapter.path, reading.adapter.name))

    def _restore(self, known: list[Adapter]) -> None:
        """Makes the adapters those of an earlier replica."""
        digests = {adapter.name: adapter.digest for adapter in known}
        for loaded in list(self._loaded.values()):
            if digests.get(loaded.adapter.name) != loaded.adapter.digest:
                self._unlist(loaded)
        missing = [adapter for adapter in known if self._find_name(adapter.name) is None]
        for adapter in missing[: len(self._free)]:
            self._read(_Reading(adapter))

    def _tell(self, replies: Replies) -> None:
        restored = [each.adapter for each in self._reading.values() if each.order is None]
        listed = [each.adapter for each in self._loaded.values() if each.is_listed]
        for client in self._watchers:
            replies.add(client, AdapterList([*listed, *restored]))

    def _unlist(self, loaded: _Loaded) -> None:
        loaded.is_listed = False
        self._drop_unused(loaded)

    def _drop_unused(self, loaded: _Loaded) -> None:
        if loaded.users == 0 and not loaded.is_listed:
            del self._loaded[loaded.place]
            self._free.append(loaded.place)
            self._to_model.append(DropAdapter(loaded.place))

    def _find_name(self, name: str) -> _Loaded | None:
        return next(
            (each for each in self._loaded.values() if each.is_listed and each.adapter.name == name), None
        )

    def _find_digest(self, digest: str) -> _Loaded | None:
        listed = (each for each in self._loaded.values() if each.is_listed)
        return next((each for each in listed if each.adapter.digest == digest), None)
