"""Starts the children of a server, informs them of each other, ends hung ones and replaces dead ones."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

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
    LeaveModel,
    Message,
    ModelReady,
    NewKeys,
    Ready,
    SupervisorInbox,
    UseModel,
)
from ...runtime.processes import sockets
from ...runtime.processes.async_inbox import AsyncInbox
from ...runtime.processes.child import LISTEN_FD_VARIABLE, METRICS_VARIABLE, SIGN_OF_LIFE_S
from .child_process import ChildProcess, Commands, describe_exit
from .children import Children
from .domains import Domain, all_within
from .errors import CannotStartError, ServerError
from .model_room import ModelRoom
from .served_model import FAILED_GRACE_SECONDS, SAVING_SECONDS, HostedModel, ServedModel, Surroundings
from .watchdog import TIMEOUTS, Timeouts

GIVING_UP_SECONDS = 2.0
HEAD_START_SECONDS = 1.0  # maximum seconds that tokenizer processes wait for the replica to begin
logger = logging.getLogger(__name__)


class Supervisor:
    """Owns the children of one server and the inbox for their reports.

    `directory` has config.json already. Tokenizer processes take over the bound socket `listener`; a replica
    whose client is in this process (client 0) has no listener and no tokenizer process. `timeouts` limits how
    long a child may show no sign of life. `pass_on` gets the children's output. Each replica of each model is
    a failure domain of its own; the epoch of a message tells the replica that sent it. `models`: those of the
    server, the first is loaded at the start; without any the one of `directory`. `room` decides which models
    are loaded at a time. Servers that have a client in common have epochs from different `first_epoch` on.
    """

    def __init__(
        self,
        directory: Path,
        commands: Commands,
        listener: socket.socket | None = None,
        timeouts: Timeouts = TIMEOUTS,
        pass_on: Callable[[str], None] | None = None,
        models: Sequence[HostedModel] = (),
        room: ModelRoom | None = None,
        first_epoch: int = sockets.ANY_EPOCH + 1,
    ) -> None:
        self._directory = directory
        self._commands = commands
        self._listener = listener
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbox: AsyncInbox[SupervisorInbox] = AsyncInbox(
            zmq.asyncio.Context(self._context),
            sockets.supervisor_address(directory),
            SupervisorInbox,
            sockets.ANY_EPOCH,
        )
        self._children = Children(timeouts, pass_on)
        room = room or ModelRoom()
        around = Surroundings(
            commands,
            self._children,
            self._context,
            itertools.count(first_epoch),
            self._listen_to_replicas,
            lambda model: room.make(model, self._models),
        )
        hosted = models or (HostedModel(directory, replicas=commands.replicas),)
        self._models = [ServedModel(each, i, len(hosted) == 1, around) for i, each in enumerate(hosted)]
        self._tokenizers = {client: Domain() for client in range(len(commands.tokenizers))}
        self._replica_lives = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._knows_replica = {client: asyncio.Event() for client in self._tokenizers}
        self._drained = {client: asyncio.Event() for client in self._tokenizers}
        self._new_keys: NewKeys | None = None  # None: the keys of the configuration
        self._draining = False
        self._at_once = False
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> ModelReady:
        """Starts all children, and returns when all are ready and requests are answered. Raises
        ServerError."""
        if not self._tokenizers:
            self._connect_tokenizer(0)
        self._run(self._receive())
        self._run(self._watch())
        for model in self._models:
            self._run(model.run())
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
        known = self._models[0].known
        assert known is not None  # the replica may have died again
        return known

    async def _all_ready(self) -> None:
        await self._models[0].was_ready.wait()
        for domain in self._tokenizers.values():
            await domain.was_ready.wait()
        for knows in self._knows_replica.values():
            await knows.wait()

    async def wait(self) -> None:
        """Waits for `drain` or `end`. Raises ServerError if the server can't go on."""
        await asyncio.shield(self._end)

    def set_keys(self, keys: tuple[ApiKey, ...]) -> None:
        """Sets the known API keys of all tokenizer processes, also of later ones."""
        self._new_keys = NewKeys(keys)
        self._models[0].tell(self._new_keys)

    async def drain(self, seconds: float = 0.0, saving_seconds: float = SAVING_SECONDS) -> None:
        """Lets open requests finish, for at most `seconds`, then lets the replicas save their caches, then
        calls `end`."""
        self._draining = True
        were_ready = [self._models[0].was_ready, *(each.was_ready for each in self._tokenizers.values())]
        if all(each.is_set() for each in were_ready):
            if self._listener is not None:
                self._listener.close()
            self._tell_tokenizers(Drain())
            if not await self._drained_within(seconds):
                self._tell_tokenizers(GiveUp())
                await self._drained_within(GIVING_UP_SECONDS)
            open_clients = [client for client, drained in self._drained.items() if not drained.is_set()]
            await asyncio.gather(*(model.save(open_clients, saving_seconds) for model in self._models))
        self.end()

    async def _drained_within(self, seconds: float) -> bool:
        return await all_within(seconds, *self._drained.values())

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
        await self._children.stop_all(at_once=self._at_once)
        self._inbox.close()
        for model in self._models:
            model.close()
        self._context.term()

    async def _receive(self) -> None:
        while True:
            self._handle(await self._inbox.receive())

    def _handle(self, message: SupervisorInbox) -> None:
        match message:
            case Ready(role="scheduler"):
                self._find_sender().hear_ready(message, self._inbox.sender)
            case Ready(client=client):
                self._tokenizers[client].mark_ready()
            case KnowsReplica(client):
                self._knows_replica[client].set()
            case UseModel(client, model):
                self._models[model].use(client)
            case LeaveModel(client, model, keep_alive):
                self._models[model].leave(client, keep_alive)
            case Alive(pid, stalled_s):
                self._replica_lives.set()
                self._children.hear(pid, stalled_s)
            case Drained(role="scheduler"):
                self._find_sender().hear_drained(self._inbox.sender)
            case Drained(client=client):
                self._drained[client].set()
            case Failed(role="tokenizer", message=text, client=client):
                if not self._tokenizers[client].was_ready.is_set():
                    raise CannotStartError(text)
                logger.error("the tokenizer process could not start again: %s", text)
            case Failed(role=role, message=text):
                self._find_sender().hear_failed(role, text, self._inbox.sender)

    def _find_sender(self) -> ServedModel:
        """The model whose replica sent the last message, which the inbox would have dropped if the replica
        were over."""
        return next(each for each in self._models if each.has_epoch(self._inbox.sender))

    def _listen_to_replicas(self) -> None:
        """Receives the messages of the replicas' present epochs."""
        replicas = itertools.chain.from_iterable(each.replicas for each in self._models)
        self._inbox.move_to(*(replica.running.epoch for replica in replicas))

    async def _watch(self) -> None:
        """Ends children that hang. The task that waits for a child's exit then starts another one."""
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_S)
            silent = self._children.find_silent()
            for model in self._models:
                model.note_silent(silent)

    async def _keep_tokenizer(self, client: int) -> None:
        domain = self._tokenizers[client]
        await self._replica_has_begun()
        while not self._draining:
            domain.ready_at = None
            self._connect_tokenizer(client)
            child = await self._start_tokenizer(client)
            await child.exited()
            self._forget_tokenizer(child, client)
            if not self._draining:
                await self._pause_after(domain, child)
        self._drained[client].set()

    async def _replica_has_begun(self) -> None:
        """Waits until the scheduler or the model process shows life, which is after it has imported its
        modules. On two cores a third process would slow them, and the model process takes longest to
        start."""
        await all_within(HEAD_START_SECONDS, self._replica_lives)

    def _forget_tokenizer(self, child: ChildProcess, client: int) -> None:
        self._children.forget(child)
        for model in self._models:
            model.disconnect(client)
        for gauges in (self._directory / "metrics").glob(f"gauge_live*_{child.pid}.db"):
            gauges.unlink(missing_ok=True)

    def _connect_tokenizer(self, client: int) -> None:
        for model in self._models:
            is_first = model is self._models[0]
            model.connect(client, *([self._new_keys] if is_first and self._new_keys is not None else []))

    async def _start_tokenizer(self, client: int) -> ChildProcess:
        descriptors: list[int] = []
        environment: dict[str, str] = {}
        if self._listener is not None:
            descriptors.append(self._listener.fileno())
            environment[LISTEN_FD_VARIABLE] = str(self._listener.fileno())
            if len(self._tokenizers) > 1:
                environment[METRICS_VARIABLE] = str(self._metrics_directory())
        command = self._commands.tokenizers[client]
        return await self._children.start(
            command, self._directory, sockets.ANY_EPOCH, client, environment, descriptors
        )

    def _metrics_directory(self) -> Path:
        directory = self._directory / "metrics"
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory

    async def _pause_after(self, domain: Domain, dead: ChildProcess) -> None:
        """Pauses after the death of a tokenizer process. Raises ServerError after many deaths."""
        returncode = await dead.exited()
        if not domain.was_ready.is_set():
            await asyncio.sleep(FAILED_GRACE_SECONDS)  # its last message may explain the death
        how = f"the {dead.role} process (pid {dead.pid}) {describe_exit(returncode)}"
        delay = domain.restarts.delay_after(time.monotonic(), domain.ready_at, returncode)
        if delay is None:
            raise ServerError(f"{how}, again and again. Its last lines:\n{dead.last_lines()}")
        logger.warning("%s; starting it again", how)
        await asyncio.sleep(delay)

    def _tell_tokenizers(self, message: Message) -> None:
        """Sends a message to all tokenizer processes, for each model: each has its own connection there."""
        for model in self._models:
            model.tell(message)

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._end.done():
            self._end.set_exception(error)
