"""The scheduler process: the sockets and clocks of a `Scheduler`."""

from __future__ import annotations

import logging
import math
import signal
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from ...grammars import (
    ForcedTextTokenizer,
    GrammarCompiler,
    GrammarFiles,
    default_directory,
    load_forced_text_tokenizer,
)
from ...radix_cache import PrefixCache, Reach
from ..byte_sizes import in_units
from ..config import ServeConfig, load_config
from ..logs import write_log
from ..messages import PREFILL_CLIENT, Drained, EndFetch, ModelReady, PeerDown, Ready, SchedulerInbox
from ..processes.child import ChildArguments, child_arguments
from ..processes.garbage import leave_out_existing_objects
from ..processes.heartbeat import Heartbeat
from ..processes.sockets import (
    Inbox,
    Outbox,
    supervisor_address,
    tokenizer_address,
)
from ..processes.time_slices import short_slices, use_short_slices
from ..system_cores import count_usable_cores
from ..vocabulary import FILE_NAME, TOKENIZER_NAME, Vocabulary, load_vocabulary
from .adapters import AdapterRegistry
from .block_events import BlockEvents
from .budget import StepBudget
from .grammar_loader import GrammarLoader
from .rank_answers import RankAnswers
from .refusals import Limits
from .scheduler import Now, Outgoing, Scheduler
from .step_records import StepRecorder, StepsHeader

if TYPE_CHECKING:
    from .event_publisher import EventPublisher

VOCABULARY_DEADLINE_S = 60.0
CORES_TO_LOAD = 2  # cores that load the model and the tokenizer, which grammar workers would delay
PIN_DIVISOR = 4  # one part in this many of all pages may be pinned by default

log = logging.getLogger("arbora.scheduler")


class Loop:
    """Receives messages, gives them to the scheduler, and sends the messages that it returns."""

    def __init__(self, arguments: ChildArguments, config: ServeConfig, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._directory = arguments.directory
        self._replica = arguments.replica
        self._config = config
        self._context = zmq.Context()
        self._inbox: Inbox[SchedulerInbox] = Inbox(
            self._context,
            self._replica.scheduler,
            SchedulerInbox,
            self._replica.epoch,
        )
        self._supervisor = self._outbox(supervisor_address(arguments.directory))
        self._model = self._outbox(*map(self._replica.model, range(config.tp)))
        self._answers = RankAnswers(config.tp, lambda fetch: self._page_store.send(EndFetch(fetch)))
        self._clients: dict[int, Outbox] = {}  # client -> outbox, connected with its first message

    def run(self) -> None:
        """Serves until all requests are drained, then waits for the signal that ends it."""
        vocabulary = _wait_for_vocabulary(self._directory)
        compiler = _build_compiler(vocabulary, self._inbox.wake)
        starts_early = count_usable_cores() > CORES_TO_LOAD
        if starts_early:
            compiler.start()
        tokenizer = _load_tokenizer(self._directory, vocabulary)
        ready = self._wait_for_model()
        cache = _build_cache(ready, self._config)
        adapters = AdapterRegistry(ready.adapters, ready.adapter_places)
        scheduler = _build_scheduler(ready, self._config, compiler, vocabulary, tokenizer, cache, adapters)
        events = self._publish_events(ready, cache, adapters)
        self._supervisor.send(Ready("scheduler", model=ready))
        if not starts_early and ready.pooling is None:
            compiler.start()
        recorder = self._record_steps(ready)
        leave_out_existing_objects()
        while not scheduler.is_drained:
            max_wait_s = scheduler.max_wait_s(time.time())
            if events is not None and (event_wait_s := events.max_wait_s(time.monotonic())) is not None:
                max_wait_s = event_wait_s if max_wait_s is None else min(max_wait_s, event_wait_s)
            messages = self._receive(max_wait_s)
            outgoing = scheduler.turn(messages, Now(time.monotonic(), time.time()))
            self._send(outgoing)
            if recorder is not None:
                recorder.record(messages, outgoing.to_model)
            if events is not None:  # after the messages, so that the model does not wait for it
                events.turn(time.monotonic(), self._inbox.watched_input)
        self._heartbeat.resting()
        self._supervisor.send(Drained("scheduler"))
        signal.pause()

    def _record_steps(self, ready: ModelReady) -> StepRecorder | None:
        """Begins to record steps, if that is asked for."""
        path = self._config.record_steps
        if path is None:
            return None
        return StepRecorder(path, StepsHeader(self._config.served_model_name, ready.model))

    def _publish_events(
        self, ready: ModelReady, cache: PrefixCache, adapters: AdapterRegistry
    ) -> EventPublisher | None:
        """Begins to publish the cache's changes, if that is asked for."""
        config, sockets = self._config, self._config.kv_events
        if sockets is None:
            return None
        from .event_publisher import EventPublisher  # imports asyncio

        name = config.served_model_name
        topic = sockets.topic or f"kv@{config.uds or f'{config.host}:{config.port}'}@{name}"
        events = BlockEvents(name, ready.num_pages, ready.page_size, adapters.find_adapter_name)
        publisher = EventPublisher(self._context, sockets, topic, self._replica.number, cache, events)
        self._inbox.watch(publisher.sockets)
        return publisher

    def _wait_for_model(self) -> ModelReady:
        """Waits until all ranks of the model are ready. They have agreed on what the message says."""
        ready = list[ModelReady]()
        while len(ready) < self._config.tp:
            message = self._inbox.receive()
            if isinstance(message, ModelReady):
                ready.append(message)
        return ready[0]

    def _receive(self, max_wait_s: float | None) -> list[SchedulerInbox]:
        """Waits at most `max_wait_s` for a message or a compiled grammar. Returns all messages that came."""
        self._heartbeat.resting()
        first = self._inbox.receive(None if max_wait_s is None else math.ceil(max_wait_s * 1000))
        self._heartbeat.working()
        messages = self._answers.merge([*([] if first is None else [first]), *self._inbox.waiting()])
        for message in messages:
            if isinstance(message, PeerDown) and message.client in self._clients:
                # Drops messages that the dead client did not read.
                self._clients.pop(message.client).close(linger_ms=0)
        return messages

    def _send(self, outgoing: Outgoing) -> None:
        for message in outgoing.to_model:
            self._model.send(message)
        for question in outgoing.to_store:
            self._page_store.send(question)
        for client, answers in outgoing.to_clients.items():
            # The model process gets them after the pages that it saves for the same requests.
            outbox = self._model if client == PREFILL_CLIENT else self._client(client)
            for answer in answers:
                outbox.send(answer)

    def _client(self, client: int) -> Outbox:
        if client not in self._clients:
            self._clients[client] = self._outbox(tokenizer_address(self._directory, client))
        return self._clients[client]

    @cached_property
    def _page_store(self) -> Outbox:
        """The outbox to the page stores of all ranks, connected at first use: without a page store it is
        never used, and ZeroMQ would try to connect again and again."""
        return self._outbox(*map(self._replica.page_store, range(self._config.tp)))

    def _outbox(self, *addresses: str) -> Outbox:
        return Outbox(self._context, addresses[0], self._replica.epoch, *addresses[1:])


def _wait_for_vocabulary(directory: Path) -> Vocabulary:
    """Waits for the vocabulary file, which the tokenizer process writes while the model loads."""
    deadline = time.monotonic() + VOCABULARY_DEADLINE_S
    while not (directory / FILE_NAME).exists():
        if time.monotonic() > deadline:
            sys.exit(f"the tokenizer process wrote no {FILE_NAME} within {VOCABULARY_DEADLINE_S:.0f} s")
        time.sleep(0.02)
    return load_vocabulary(directory)


def _build_compiler(vocabulary: Vocabulary, on_finished: Callable[[], None]) -> GrammarCompiler:
    return GrammarCompiler(
        vocabulary,
        vocabulary.size,
        files=GrammarFiles(default_directory(), f"{vocabulary.hash} {vocabulary.size}"),
        on_finished=on_finished,
    )


def _load_tokenizer(directory: Path, vocabulary: Vocabulary) -> ForcedTextTokenizer:
    for_automata = vocabulary.for_automata()
    spelled = [for_automata.token_bytes(token) for token in range(vocabulary.size)]
    special = vocabulary.special.nonzero()[0].tolist()
    return load_forced_text_tokenizer(directory / TOKENIZER_NAME, spelled, special, vocabulary.eos)


def _build_cache(ready: ModelReady, config: ServeConfig) -> PrefixCache:
    return PrefixCache(
        ready.num_pages,
        ready.page_size,
        enabled=config.prefix_cache,
        check_invariants=config.check_invariants,
        model=ready.page_model,
        states=ready.states,
        slots=ready.slots,
        windows=[
            (Reach(group.reach, group.in_chunks), group.num_pages)
            for group in ready.groups
            if group.reach is not None
        ],
    )


def _build_scheduler(
    ready: ModelReady,
    config: ServeConfig,
    compiler: GrammarCompiler,
    vocabulary: Vocabulary,
    tokenizer: ForcedTextTokenizer,
    cache: PrefixCache,
    adapters: AdapterRegistry,
) -> Scheduler:
    limits = Limits(
        max_model_len=ready.max_model_len,
        slots=ready.slots,
        max_sampled=ready.max_sampled,
        max_waiting=config.max_waiting,
        max_pinned=_max_pinned(ready, config),
        keys=len({key.sha256 for key in config.api_keys}),
        bounded_priorities=bool(config.api_keys)
        and all(key.best_priority is not None for key in config.api_keys),
        state_tokens=ready.state_bytes * ready.page_size // max(1, ready.page_bytes),
        group_cost=ready.group_cost,
        pooling=ready.pooling,
    )
    return Scheduler(
        limits,
        cache,
        StepBudget(config.step_ms),
        GrammarLoader(compiler, isolated=config.isolate_keys),
        ready.vocab_size,
        vocabulary.eos,
        tokenizer,
        host_pages=ready.host_pages,
        write_through=config.write_policy == "write_through",
        asks_prefill=bool(config.prefill_from),
        adapters=adapters,
    )


def _max_pinned(ready: ModelReady, config: ServeConfig) -> int:
    """Pages that a scope may pin: isolated keys have equal shares, other clients share one limit."""
    sharers = len({key.sha256 for key in config.api_keys}) if config.isolate_keys else 1
    return _pinnable(ready, config.pin_memory) // sharers


def _pinnable(ready: ModelReady, pin_memory: int | None) -> int:
    if pin_memory is None:
        return ready.num_pages // PIN_DIVISOR
    whole = ready.num_pages * ready.page_bytes
    if pin_memory > whole:
        log.warning(
            "--pin-memory %s: the KV cache has only %s, and all of it may be pinned",
            in_units(pin_memory),
            in_units(whole),
        )
    return min(pin_memory // ready.page_bytes, ready.num_pages)


def main() -> None:
    arguments = child_arguments()
    config = load_config(arguments.directory)
    write_log(config.log_level)
    heartbeat = Heartbeat()
    heartbeat.start(arguments)
    with short_slices():  # applies to ZeroMQ's I/O thread, which the first socket starts
        loop = Loop(arguments, config, heartbeat)
    use_short_slices()
    loop.run()


if __name__ == "__main__":
    main()
