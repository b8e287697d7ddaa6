"""The scheduler process: receive, plan, send, apply."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import assert_never

import zmq

from ...grammars import GrammarCompiler, GrammarFiles, Segmenter, default_directory, load_segmenter
from ...radix_cache import PrefixCache
from ..byte_sizes import in_units
from ..config import ServeConfig, load_config
from ..logs import write_log
from ..messages import (
    Abort,
    AwaitTools,
    CheckPin,
    Drain,
    Drained,
    DropCache,
    EndLease,
    ExplainPrompt,
    Fetched,
    Finish,
    Flushed,
    Forgotten,
    Found,
    Generate,
    Located,
    ModelReady,
    PeerDown,
    PinPrefix,
    QueryCache,
    QueryStats,
    QueryTree,
    Ready,
    Refused,
    SchedulerInbox,
    StepResult,
    StoreReport,
    UnpinPrefix,
)
from ..processes.child import ChildArguments, child_arguments
from ..processes.garbage import leave_out_existing_objects
from ..processes.heartbeat import Heartbeat
from ..processes.sockets import (
    Inbox,
    Outbox,
    model_address,
    page_store_address,
    scheduler_address,
    supervisor_address,
    tokenizer_address,
)
from ..processes.time_slices import short_slices, use_short_slices
from ..vocabulary import FILE_NAME, TOKENIZER_NAME, Vocabulary, load_vocabulary
from .budget import StepBudget
from .clients import Clients
from .grammar_loader import GrammarLoader
from .key_rates import KeyRates
from .refusals import Limits
from .scheduler import Scheduler

VOCABULARY_DEADLINE_S = 60.0
CORES_TO_LOAD = 2  # model and tokenizer load at the same time; with no other core, workers would delay them
ANSWER_POLL_MS = 5  # between two checks for late answers of grammars' processes
PIN_DIVISOR = 4  # of all pages: the part that may be pinned by default

log = logging.getLogger("arbora.scheduler")


class Loop:
    """Connects the state machine to its sockets."""

    def __init__(self, arguments: ChildArguments, config: ServeConfig, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._directory = arguments.directory
        self._epoch = arguments.epoch
        self._config = config
        self._context = zmq.Context()
        self._inbox: Inbox[SchedulerInbox] = Inbox(
            self._context,
            scheduler_address(arguments.directory, arguments.epoch),
            SchedulerInbox,
            self._epoch,
        )
        self._supervisor = self._outbox(supervisor_address(arguments.directory))
        self._model = self._outbox(model_address(arguments.directory, arguments.epoch))
        self._clients = Clients(self._connect_client)
        self._rates = KeyRates()
        self._draining = False
        self._flushed = False

    def run(self) -> None:
        """Serves until all requests are drained, then waits for the signal that ends it."""
        vocabulary = _wait_for_vocabulary(self._directory)
        compiler = _compiler(vocabulary, self._inbox.wake)
        starts_early = _cores() > CORES_TO_LOAD
        if starts_early:
            compiler.start()
        segmenter = _segmenter(self._directory, vocabulary)
        ready = self._wait_for_model()
        self._scheduler = _scheduler(ready, self._config, compiler, vocabulary, segmenter)
        self._supervisor.send(Ready("scheduler", model=ready))
        if not starts_early:
            compiler.start()
        leave_out_existing_objects()
        while not (self._draining and self._scheduler.idle):
            self._receive()
            self._scheduler.begin_turn()
            self._scheduler.expire_leases(time.time())
            self._scheduler.take_grammars()
            self._scheduler.fetch_ahead()
            while self._scheduler.plan(time.monotonic()):
                pass
            self._scheduler.tick(time.monotonic())
            self._send()
        if ready.page_model:
            self._flush()
        self._heartbeat.resting()
        self._supervisor.send(Drained("scheduler"))
        signal.pause()

    def _flush(self) -> None:
        self._scheduler.flush()
        self._send()
        while not self._flushed:
            self._receive()

    def _wait_for_model(self) -> ModelReady:
        while True:
            message = self._inbox.receive()
            if isinstance(message, ModelReady):
                return message

    def _receive(self) -> None:
        """Waits for a message, a grammar or `_timeout_ms`, then handles all messages that have come."""
        self._heartbeat.resting()
        message = self._inbox.receive(self._timeout_ms())
        self._heartbeat.working()
        if message is not None:
            self._handle(message)
        for message in self._inbox.waiting():
            self._handle(message)

    def _timeout_ms(self) -> int | None:
        """Milliseconds until the next lease ends, or until a grammar's process may have answered; None if
        neither is awaited."""
        expiry = self._scheduler.next_expiry
        timeouts = [] if expiry is None else [max(0, math.ceil((expiry - time.time()) * 1000))]
        if self._scheduler.awaits_answers:
            timeouts.append(ANSWER_POLL_MS)
        return min(timeouts, default=None)

    def _handle(self, message: SchedulerInbox) -> None:
        match message:
            case Generate():
                self._submit(message, time.monotonic())
            case StepResult():
                self._scheduler.apply(message)
            case Abort() | Finish():
                self._scheduler.drop(message.request)
                self._rates.end(message.request)
            case AwaitTools() | EndLease():
                self._scheduler.order(message)
            case QueryStats():
                self._scheduler.query(message.client, message.query)
            case (
                QueryCache()
                | DropCache()
                | CheckPin()
                | PinPrefix()
                | UnpinPrefix()
                | ExplainPrompt()
                | QueryTree()
            ):
                self._scheduler.control_cache(message, time.time())
            case PeerDown():
                self._scheduler.drop_client(message.client)
                self._rates.drop_client(message.client)
                self._clients.forget(message.client)
            case Drain():
                self._draining = True
            case Found():
                self._scheduler.found(message)
            case Fetched():
                self._scheduler.fetched(message)
            case Located():
                self._scheduler.located(message)
            case Forgotten():
                self._scheduler.forgotten(message)
            case StoreReport():
                self._scheduler.take_store_report(message)
            case Flushed():
                self._flushed = True
            case ModelReady():
                log.warning("the model process said twice that it is ready")
            case _:
                assert_never(message)

    def _submit(self, message: Generate, now: float) -> None:
        """Submits the request if its key's limits allow it."""
        admitted = self._rates.admit(message, now)
        if isinstance(admitted, Refused):
            self._clients.send({message.client: [admitted]})
        elif admitted:
            self._scheduler.submit(message, now)

    def _send(self) -> None:
        for message in self._scheduler.messages_to_model():
            self._model.send(message)
        for message in self._scheduler.messages_to_store():
            self._page_store.send(message)
        messages = self._scheduler.messages_to_clients()
        for of_client in messages.values():
            for message in of_client:
                self._rates.see(message)
        self._clients.send(messages)

    @cached_property
    def _page_store(self) -> Outbox:
        """Connected when the first message is sent. Without a page store there is no message for it, and
        ZeroMQ would try to connect again and again."""
        return self._outbox(page_store_address(self._directory, self._epoch))

    def _connect_client(self, client: int) -> Outbox:
        return self._outbox(tokenizer_address(self._directory, client))

    def _outbox(self, address: str) -> Outbox:
        return Outbox(self._context, address, self._epoch)


def _wait_for_vocabulary(directory: Path) -> Vocabulary:
    """The tokenizer process writes the file while the model loads."""
    deadline = time.monotonic() + VOCABULARY_DEADLINE_S
    while not (directory / FILE_NAME).exists():
        if time.monotonic() > deadline:
            sys.exit(f"the tokenizer process wrote no {FILE_NAME} within {VOCABULARY_DEADLINE_S:.0f} s")
        time.sleep(0.02)
    return load_vocabulary(directory)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _compiler(vocabulary: Vocabulary, on_finished: Callable[[], None]) -> GrammarCompiler:
    return GrammarCompiler(
        vocabulary,
        vocabulary.size,
        files=GrammarFiles(default_directory(), f"{vocabulary.hash} {vocabulary.size}"),
        on_finished=on_finished,
    )


def _segmenter(directory: Path, vocabulary: Vocabulary) -> Segmenter:
    for_automata = vocabulary.for_automata()
    spelled = [for_automata.token_bytes(token) for token in range(vocabulary.size)]
    special = vocabulary.special.nonzero()[0].tolist()
    return load_segmenter(directory / TOKENIZER_NAME, spelled, special, vocabulary.eos)


def _scheduler(
    ready: ModelReady,
    config: ServeConfig,
    compiler: GrammarCompiler,
    vocabulary: Vocabulary,
    segmenter: Segmenter,
) -> Scheduler:
    cache = PrefixCache(
        ready.num_pages,
        ready.page_size,
        enabled=config.prefix_cache,
        check_invariants=config.check_invariants,
        model=ready.page_model,
    )
    limits = Limits(
        ready.max_model_len,
        ready.num_pages,
        ready.page_size,
        ready.slots,
        config.max_waiting,
        _most_pinned(ready, config),
        len({key.sha256 for key in config.api_keys}),
        bool(config.api_keys) and all(key.best_priority is not None for key in config.api_keys),
        ready.group_cost,
    )
    return Scheduler(
        limits,
        cache,
        StepBudget(config.step_ms),
        GrammarLoader(compiler, isolated=config.isolate_keys),
        ready.vocab_size,
        vocabulary.eos,
        segmenter,
        host_pages=ready.host_pages,
        write_through=config.write_policy == "write_through",
    )


def _most_pinned(ready: ModelReady, config: ServeConfig) -> int:
    """Pages that may be pinned in a scope: isolated keys have equal shares, other clients share one limit."""
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
    with short_slices():  # for ZeroMQ's I/O thread, which the first socket starts
        loop = Loop(arguments, config, heartbeat)
    use_short_slices()
    loop.run()


if __name__ == "__main__":
    main()
