"""The model process: receive → start a step → finish the previous step → send."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn

import torch
import zmq

from ..config import ServeConfig, load_config
from ..errors import ConfigError
from ..logs import write_log
from ..messages import (
    DropAdapter,
    DropGrammar,
    Failed,
    FlushPages,
    ForgetReplies,
    LoadGrammar,
    ModelInbox,
    PagesFlushed,
    PageStoreInbox,
    ReadAdapter,
    StepMasks,
    StepPlan,
    ToPageStore,
)
from ..processes.child import ChildArguments, child_arguments
from ..processes.garbage import leave_out_existing_objects
from ..processes.heartbeat import Heartbeat
from ..processes.sockets import (
    Inbox,
    NoOutbox,
    Outbox,
    supervisor_address,
)
from ..processes.time_slices import short_slices
from ..vocabulary import load_vocabulary
from .capture import CaptureError
from .compiling import announce_compilation
from .devices import choose_device, use_all_cores
from .loading import LoadedModel, load_model
from .ranks import Rank, find_rank, open_ranks
from .runner import Runner
from .running_step import RunningStep
from .tiers import PageMover, PageStore, PrefillPeers, PrefillServer

MASKS_DEADLINE = 10.0
"""seconds that a step waits for its masks"""
POLL_S = 50e-6
"""seconds between two looks at the inbox and the device, while the device computes"""
SWITCH_S = 100e-6
"""seconds that a thread may keep Python's interpreter lock while another waits: the page store's thread must
soon give it to the thread that launches kernels"""
WITHOUT_GRAPHS = "ARBORA_WITHOUT_GRAPHS"
"""environment variable that tells a restarted process to do without CUDA graphs"""
log = logging.getLogger(__name__)

Work = StepPlan | ForgetReplies | LoadGrammar | DropGrammar | ReadAdapter | DropAdapter | ToPageStore
_AFTER_STEPS = (LoadGrammar, ReadAdapter, DropAdapter, FlushPages)
"""Messages that are handled after the running step's result is sent, whose tokens would otherwise wait until
a grammar or an adapter is loaded or pages are written. A running step may read an adapter's memory."""


class StepQueue:
    """Messages in their order, except masks, which are kept for their step."""

    def __init__(self, inbox: Inbox[ModelInbox], heartbeat: Heartbeat) -> None:
        self._inbox = inbox
        self._heartbeat = heartbeat
        self._queue: deque[Work] = deque()
        self._masks: dict[int, StepMasks] = {}

    def next(self) -> Work:
        while not self._queue:
            self._receive(None)
        return self._queue.popleft()

    def next_unless(self, ready: Callable[[], bool]) -> Work | None:
        """The next message; None if `ready()` comes true before it arrives.

        While it waits, it reports neither rest nor progress to the heartbeat, so the supervisor notices a
        device that never becomes ready.
        """
        while not self._queue:
            message = self._inbox.receive(0)
            if message is not None:
                self._heartbeat.working()
                self._take(message)
            elif ready():
                return None
            else:
                time.sleep(POLL_S)
        return self._queue.popleft()

    def masks(self, step: int, deadline: float = MASKS_DEADLINE) -> StepMasks | None:
        """The masks of `step`; None if they do not come within `deadline` seconds."""
        end = time.monotonic() + deadline
        while step not in self._masks and time.monotonic() < end:
            self._receive(max(1, round((end - time.monotonic()) * 1000)))
        for past in [number for number in self._masks if number < step]:
            del self._masks[past]
        return self._masks.pop(step, None)

    def _receive(self, timeout_ms: int | None) -> None:
        self._heartbeat.resting()
        message = self._inbox.receive(timeout_ms)
        self._heartbeat.working()
        self._take(message)

    def _take(self, message: ModelInbox | None) -> None:
        if isinstance(message, StepMasks):
            self._masks[message.step] = message
        elif message is not None:
            self._queue.append(message)


def serve(runner: Runner, queue: StepQueue, scheduler: Outbox | NoOutbox) -> None:
    """Runs steps in order. A step that comes while a GPU computes is launched at once, so that the GPU does
    not wait for it, unless steps start alone. Pages are saved beside a step. They are
    published with the next step, or when the GPU is idle."""
    running: RunningStep | None = None
    mover = runner.mover
    while True:
        work = _next(mover, running, queue)
        if work is None and running is None and mover is not None:
            mover.publish_saves()
        elif work is None or isinstance(work, _AFTER_STEPS):
            _finish(runner, running, scheduler)
            running = None
        match work:
            case StepPlan() as plan:
                if runner.starts_alone:
                    _finish(runner, running, scheduler)
                    running = None
                step = runner.start(plan)
                _finish(runner, running, scheduler)
                runner.sample(step, partial(queue.masks, plan.step))
                running = step
                if step.ready():
                    _finish(runner, step, scheduler)
                    running = None
            case ForgetReplies() as order:
                runner.forget_replies(order)
            case LoadGrammar() as grammar:
                runner.load_grammar(grammar)
            case DropGrammar() as grammar:
                runner.drop_grammar(grammar)
            case ReadAdapter() as adapter:
                scheduler.send(runner.read_adapter(adapter))
            case DropAdapter() as adapter:
                runner.drop_adapter(adapter)
            case None:
                pass
            case message:
                assert mover is not None, "the process has no page store"
                mover.handle(message)
                if isinstance(message, FlushPages):
                    runner.wait_for_ranks()
                    scheduler.send(PagesFlushed())


def _next(mover: PageMover | None, running: RunningStep | None, queue: StepQueue) -> Work | None:
    """The next message; None if the running step ends first, or if no step runs and the saves end first."""
    if running is not None:
        return queue.next_unless(running.ready)
    return queue.next() if mover is None or not mover.is_saving else queue.next_unless(mover.saves_copied)


def _finish(runner: Runner, step: RunningStep | None, scheduler: Outbox | NoOutbox) -> None:
    """Waits for the step's result and sends it."""
    if step is not None:
        scheduler.send(runner.finish(step))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arguments = child_arguments()
    config = load_config(arguments.directory)
    if WITHOUT_GRAPHS in os.environ:
        config = replace(config, enforce_eager=True)
    rank = find_rank(config.tp)
    is_first = rank.number == 0
    write_log(config.log_level if is_first else "warning")
    heartbeat = Heartbeat()
    heartbeat.start(arguments)
    notice = announce_compilation(config.device)
    use_all_cores()
    if config.device == "cuda":
        sys.setswitchinterval(SWITCH_S)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    model = _load_or_exit(config, arguments, context, rank)
    notice.loaded()
    address = arguments.replica.model(rank.number)
    with short_slices():  # applies to ZeroMQ's I/O thread, which the first socket starts
        inbox: Inbox[ModelInbox] = Inbox(context, address, ModelInbox, arguments.epoch)
        scheduler = Outbox(context, arguments.replica.scheduler, arguments.epoch)
    queue = StepQueue(inbox, heartbeat)
    model.runner.after_each_layer(heartbeat.progress)
    if model.page_store is not None:
        try:
            _start(model.page_store, config, arguments, model.ready.page_model, rank.number)
        except ConfigError as error:
            _fail(error, arguments, context)
    scheduler.send(model.ready)
    leave_out_existing_objects()
    serve(model.runner, queue, scheduler if is_first else NoOutbox())


def _start(
    store: PageStore, config: ServeConfig, arguments: ChildArguments, page_model: bytes, rank: int
) -> None:
    """Starts the page store's thread with its own sockets, because threads must not share one.

    Raises ConfigError for an address that can't be used.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    replica = arguments.replica
    address = replica.page_store(rank)
    inbox: Inbox[PageStoreInbox] = Inbox(context, address, PageStoreInbox, replica.epoch)
    peers, server = None, None
    if config.prefill_from:
        peers = PrefillPeers(context, config.prefill_from, page_model, store.pool)
    if config.prefill_at:
        server = PrefillServer(context, config.prefill_at, page_model, store.pool)
    scheduler = Outbox(context, replica.scheduler, replica.epoch)
    store.start(inbox, scheduler, peers, server, reports=rank == 0)


def _load_or_exit(
    config: ServeConfig, arguments: ChildArguments, context: zmq.Context[zmq.Socket[bytes]], rank: Rank
) -> LoadedModel:
    try:
        ranks = open_ranks(rank, choose_device(config))
        return load_model(config, lambda: load_vocabulary(arguments.directory), ranks)
    except CaptureError as error:
        if rank.total == 1:
            _start_again_without_graphs(error)
        # The other ranks have captured theirs, and all must run the same graphs.
        advice = f"{str(error).rstrip('.')}. Give --debug eager to do without graphs."
        _fail(ConfigError(advice), arguments, context)
    except (ConfigError, torch.OutOfMemoryError, MemoryError) as error:
        _fail(error, arguments, context)


def _fail(error: Exception, arguments: ChildArguments, context: zmq.Context[zmq.Socket[bytes]]) -> NoReturn:
    """Tells the supervisor why this process can't serve, and ends it."""
    supervisor = Outbox(context, supervisor_address(arguments.directory), arguments.epoch)
    supervisor.send(Failed(role="model", message=str(error)))
    supervisor.close()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends by itself, without further messages
    context.destroy(linger=500)
    sys.exit(1)


def _start_again_without_graphs(error: CaptureError) -> NoReturn:
    """Replaces the program in this process, so that nothing of the failed capture remains."""
    log.warning(
        "%s The model is loaded again without them: its kernels are launched one by one, which is slower. "
        "--debug eager asks for that from the start.",
        error,
    )
    os.environ[WITHOUT_GRAPHS] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    main()
