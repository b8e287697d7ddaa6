"""Starts the children of a server, informs them of each other, ends hung ones and replaces dead ones."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import zmq
import zmq.asyncio

from ...runtime.api_keys import ApiKey
from ...runtime.messages import (
    Alive,
    Drain,
    Drained,
    Failed,
    GiveUp,
    KnowsReplica,
    Message,
    ModelReady,
    NewKeys,
    PeerDown,
    PeerResponds,
    Ready,
    SupervisorInbox,
)
from ...runtime.processes import sockets
from ...runtime.processes.async_inbox import AsyncInbox
from ...runtime.processes.awake_clock import AwakeClock
from ...runtime.processes.child import LISTEN_FD_VARIABLE, METRICS_VARIABLE, SIGN_OF_LIFE_S, ChildArguments
from .child_process import ChildProcess, Command, Commands, describe_exit, start_child
from .domains import Domain, ReplicaDomain
from .errors import CannotStartError, ServerError
from .watchdog import TIMEOUTS, WINDOW_SECONDS, Timeouts, Watchdog, read_process

FAILED_GRACE_SECONDS = 1.0
GIVING_UP_SECONDS = 2.0
SAVING_SECONDS = 60.0
HEAD_START_SECONDS = 1.0  # maximum seconds that tokenizer processes wait for the replica to begin
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
logger = logging.getLogger(__name__)


class Supervisor:
    """Owns the children of one server and the inbox for their reports.

    `directory` has config.json already. Tokenizer processes take over the bound socket `listener`; a replica
    whose client is in this process (client 0) has no listener and no tokenizer process. `timeouts` limits how
    long a child may show no sign of life. `pass_on` gets the children's output. Each replica is a failure
    domain of its own; the epoch of a message tells the replica that sent it.
    """

    def __init__(
        self,
        directory: Path,
        commands: Commands,
        listener: socket.socket | None = None,
        timeouts: Timeouts = TIMEOUTS,
        pass_on: Callable[[str], None] | None = None,
    ) -> None:
        self._directory = directory
        self._commands = commands
        self._listener = listener
        self._pass_on = pass_on
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbox: AsyncInbox[SupervisorInbox] = AsyncInbox(
            zmq.asyncio.Context(self._context),
            sockets.supervisor_address(directory),
            SupervisorInbox,
            sockets.ANY_EPOCH,
        )
        self._epochs = itertools.count(sockets.ANY_EPOCH + 1)
        self._replicas = [ReplicaDomain(directory, *each) for each in enumerate(commands.replicas)]
        self._tokenizers = {client: Domain() for client in range(len(commands.tokenizers))}
        self._to_tokenizers: dict[int, sockets.Outbox] = {}
        self._known_model: ModelReady | None = None  # the last description, also of a dead replica
        self._replica_lives = asyncio.Event()
        self._watchdog = Watchdog(timeouts)
        self._awake = AwakeClock(2 * SIGN_OF_LIFE_S, time.monotonic())
        self._children: set[ChildProcess] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._knows_replica = {client: asyncio.Event() for client in self._tokenizers}
        self._drained = {client: asyncio.Event() for client in self._tokenizers}
        self._new_keys: NewKeys | None = None  # None: the keys of the configuration
        self._draining = False
        self._saving = False  # whether the replicas save their pages and then end
        self._at_once = False
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> ModelReady:
        """Starts all children, and returns when all are ready and requests are answered. Raises
        ServerError."""
        if not self._tokenizers:
            self._connect_tokenizer(0)
        self._run(self._receive())
        self._run(self._watch())
        for replica in self._replicas:
            self._run(self._keep_replica(replica))
        for client in self._tokenizers:
            self._run(self._keep_tokenizer(client))
        ready: asyncio.Future[None] = asyncio.ensure_future(self._all_ready())
        try:
            await asyncio.wait([ready, self._end], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._end.done():
            self._end.result()
            raise ServerError("stopped before it was ready")
        assert self._known_model is not None  # the replica may have died again
        return self._known_model

    async def _all_ready(self) -> None:
        for domain in self._domains():
            await domain.was_ready.wait()
        for knows in self._knows_replica.values():
            await knows.wait()

    async def wait(self) -> None:
        """Waits for `drain` or `end`. Raises ServerError if the server can't go on."""
        await asyncio.shield(self._end)

    def set_keys(self, keys: tuple[ApiKey, ...]) -> None:
        """Sets the known API keys of all tokenizer processes, also of later ones."""
        self._new_keys = NewKeys(keys)
        self._tell_tokenizers(self._new_keys)

    async def drain(self, seconds: float = 0.0, saving_seconds: float = SAVING_SECONDS) -> None:
        """Lets open requests finish, for at most `seconds`, then lets the replicas save their caches, then
        calls `end`."""
        self._draining = True
        if all(domain.was_ready.is_set() for domain in self._domains()):
            if self._listener is not None:
                self._listener.close()
            self._tell_tokenizers(Drain())
            if not await self._drained_within(seconds):
                self._tell_tokenizers(GiveUp())
                await self._drained_within(GIVING_UP_SECONDS)
            await self._save(saving_seconds)
        self.end()

    async def _drained_within(self, seconds: float) -> bool:
        return await _all_within(seconds, *self._drained.values())

    async def _save(self, seconds: float) -> None:
        """Lets the replicas save their pages for the next start. Open requests are given up."""
        saving = [
            replica for replica in self._replicas if replica.model is not None and replica.model.page_model
        ]
        self._saving = bool(saving)
        for replica in saving:
            assert replica.to_scheduler is not None, "a replica that serves has an outbox"
            for client, drained in self._drained.items():
                if not drained.is_set():
                    replica.to_scheduler.send(PeerDown("tokenizer", client))
            replica.to_scheduler.send(Drain())
        if not await _all_within(seconds, *(replica.has_drained for replica in saving)):
            logger.warning("not all of the cache could be saved within %.0f s", seconds)

    def end(self, *, at_once: bool = False) -> None:
        """Makes `wait` return. With `at_once`, `close` kills the children instead of asking first."""
        self._at_once = self._at_once or at_once
        if not self._end.done():
            self._end.set_result(None)

    async def close(self) -> None:
        """Stops every child. No process and no socket is left."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        stops = [child.kill() if self._at_once else child.stop() for child in self._children]
        await asyncio.gather(*stops)
        self._inbox.close()
        for outbox in self._to_tokenizers.values():
            outbox.close(linger_ms=0)
        for replica in self._replicas:
            replica.close()
        self._context.term()

    async def _receive(self) -> None:
        while True:
            self._handle(await self._inbox.receive())

    def _handle(self, message: SupervisorInbox) -> None:
        match message:
            case Ready(role="scheduler", model=model):
                assert model is not None, "a scheduler is ready when its model is"
                replica = self._find_sender()
                if replica.was_ready.is_set():
                    logger.info("%s serves again", self._name(replica, "the model"))
                replica.model = self._known_model = model
                replica.mark_ready()
                self._tell_tokenizers(replica.describe())
            case Ready(client=client):
                self._tokenizers[client].mark_ready()
            case KnowsReplica(client):
                self._knows_replica[client].set()
            case Alive(pid, stalled_s):
                self._replica_lives.set()
                self._watchdog.heard(pid, stalled_s, self._awake.tick(time.monotonic()))
            case Drained(role="scheduler"):
                self._find_sender().has_drained.set()
            case Drained(client=client):
                self._drained[client].set()
            case Failed(role=role, message=text, client=client):
                domain = self._tokenizers[client] if role == "tokenizer" else self._find_sender()
                if not domain.was_ready.is_set():
                    raise CannotStartError(text)
                logger.error("the %s process could not start again: %s", role, text)

    def _find_sender(self) -> ReplicaDomain:
        """The replica that sent the last message, which the inbox would have dropped if it were over."""
        return next(each for each in self._replicas if each.running.epoch == self._inbox.sender)

    def _name(self, replica: ReplicaDomain, name: str) -> str:
        """The name of a replica's part for the log, with the replica's number if there are several."""
        return name if len(self._replicas) == 1 else f"{name} of replica {replica.number}"

    async def _watch(self) -> None:
        """Ends children that hang. The task that waits for a child's exit then starts another one."""
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_S)
            now = self._awake.tick(time.monotonic())
            silent = {child for child in list(self._children) if not self._check(child, now)}
            for replica in self._replicas:
                responds = silent.isdisjoint(replica.children)
                if responds != replica.responds:
                    replica.responds = responds
                    self._tell_tokenizers(PeerResponds(responds, replica.number))

    def _check(self, child: ChildProcess, now: float) -> bool:
        """Returns whether a child responds. Ends one that hangs."""
        finding = self._watchdog.look(child.role, child.pid, read_process(child.pid), now)
        if finding.hung:
            logger.error("the %s process (pid %d) %s; ending it", child.role, child.pid, finding.hung)
            child.kill_now()
            self._watchdog.begin(child.pid, now)
        return finding.responds

    async def _keep_replica(self, replica: ReplicaDomain) -> None:
        while True:
            await self._start_replica(replica)
            dead = await _first_exit(replica.children)
            replica.model = None
            self._tell_tokenizers(replica.describe())
            await asyncio.gather(*(child.kill() for child in replica.children))
            for child in replica.children:
                self._forget(child)
            replica.end()
            if self._saving:
                logger.warning("the %s process died while it saved its cache", dead.role)
                replica.has_drained.set()
                return
            await self._pause_after(replica, dead)

    async def _start_replica(self, replica: ReplicaDomain) -> None:
        replica.begin(self._context, next(self._epochs))
        self._inbox.move_to(*(each.running.epoch for each in self._replicas))
        for command in (self._commands.scheduler, self._commands.model):
            child = await self._start(command, replica.running.epoch, replica.number, replica.environment)
            replica.children.append(child)

    async def _keep_tokenizer(self, client: int) -> None:
        domain = self._tokenizers[client]
        await self._replica_has_begun()
        while not self._draining:
            domain.ready_at = None
            self._connect_tokenizer(client)
            child = await self._start(self._commands.tokenizers[client], sockets.ANY_EPOCH, client)
            await child.exited()
            self._forget_tokenizer(child, client)
            if not self._draining:
                await self._pause_after(domain, child)
        self._drained[client].set()

    async def _replica_has_begun(self) -> None:
        """Waits until the scheduler or the model process shows life, which is after it has imported its
        modules. On two cores a third process would slow them, and the model process takes longest to
        start."""
        await _all_within(HEAD_START_SECONDS, self._replica_lives)

    def _forget_tokenizer(self, child: ChildProcess, client: int) -> None:
        for replica in self._replicas:
            if replica.to_scheduler is not None:
                replica.to_scheduler.send(PeerDown("tokenizer", client))
        self._forget(child)
        self._to_tokenizers.pop(client).close(linger_ms=0)
        for gauges in (self._directory / "metrics").glob(f"gauge_live*_{child.pid}.db"):
            gauges.unlink(missing_ok=True)
        sockets.remove_ipc_file(sockets.tokenizer_address(self._directory, client))

    def _forget(self, child: ChildProcess) -> None:
        self._children.remove(child)
        self._watchdog.forget(child.pid)

    def _connect_tokenizer(self, client: int) -> None:
        address = sockets.tokenizer_address(self._directory, client)
        outbox = sockets.Outbox(self._context, address, sockets.ANY_EPOCH)
        if self._new_keys is not None:
            outbox.send(self._new_keys)
        for replica in sorted(self._replicas, key=lambda each: each.model is None):  # serving ones first
            outbox.send(replica.describe())
            if not replica.responds:
                outbox.send(PeerResponds(False, replica.number))
        self._to_tokenizers[client] = outbox

    async def _start(
        self, command: Command, epoch: int, number: int, variables: Mapping[str, str] = NO_VARIABLES
    ) -> ChildProcess:
        descriptors: list[int] = []
        environment = dict(variables)
        if command.role == "tokenizer" and self._listener is not None:
            descriptors.append(self._listener.fileno())
            environment[LISTEN_FD_VARIABLE] = str(self._listener.fileno())
            if len(self._tokenizers) > 1:
                environment[METRICS_VARIABLE] = str(self._metrics_directory())
        arguments = ChildArguments(self._directory, epoch, number, os.getpid())
        child = await start_child(command, arguments, environment, descriptors, self._pass_on)
        self._children.add(child)
        self._watchdog.begin(child.pid, self._awake.time)
        return child

    def _metrics_directory(self) -> Path:
        directory = self._directory / "metrics"
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory

    async def _pause_after(self, domain: Domain, dead: ChildProcess) -> None:
        returncode = await dead.exited()
        if not domain.was_ready.is_set():
            await asyncio.sleep(FAILED_GRACE_SECONDS)  # its last message may explain the death
        how = f"the {dead.role} process (pid {dead.pid}) {describe_exit(returncode)}"
        delay = domain.restarts.delay_after(time.monotonic(), domain.ready_at, returncode)
        if delay is None and domain in self._replicas and any(each.model for each in self._replicas):
            logger.error(
                "%s, again and again; the other replicas serve. Its last lines:\n%s", how, dead.last_lines()
            )
            delay = WINDOW_SECONDS
        if delay is None:
            raise ServerError(f"{how}, again and again. Its last lines:\n{dead.last_lines()}")
        logger.warning("%s; starting it again", how)
        await asyncio.sleep(delay)

    def _tell_tokenizers(self, message: Message) -> None:
        for outbox in self._to_tokenizers.values():
            outbox.send(message)

    def _domains(self) -> list[Domain]:
        return [*self._replicas, *self._tokenizers.values()]

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._end.done():
            self._end.set_exception(error)


async def _all_within(seconds: float, *events: asyncio.Event) -> bool:
    """Waits at most `seconds` for the events. Returns whether all have happened."""
    try:
        async with asyncio.timeout(seconds):
            for event in events:
                await event.wait()
    except TimeoutError:
        return False
    return True


async def _first_exit(children: list[ChildProcess]) -> ChildProcess:
    exits = {asyncio.ensure_future(child.exited()): child for child in children}
    done, _ = await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
    for exit in exits:
        exit.cancel()
    return exits[done.pop()]
