"""One model of a server: its replicas run while requests need it, and end when none has for a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import zmq

from ...runtime.messages import (
    Drain,
    LoadState,
    Message,
    ModelReady,
    ModelState,
    PeerDown,
    PeerResponds,
    Ready,
)
from ...runtime.processes import sockets
from ...runtime.processes.child import RANK_FILE_VARIABLE
from .child_process import WHOLE_MACHINE, ChildProcess, Command, Commands, Place, describe_exit
from .children import Children
from .domains import ReplicaDomain, all_within
from .errors import CannotStartError, ServerError
from .watchdog import WINDOW_SECONDS

FAILED_GRACE_SECONDS = 1.0
SAVING_SECONDS = 60.0
logger = logging.getLogger(__name__)


class HostedModel(NamedTuple):
    """A model as its server was told of it. `directory` has its config.json and its sockets."""

    directory: Path
    name: str = ""
    replicas: tuple[Place, ...] = WHOLE_MACHINE
    keep_alive: float | None = None
    """seconds without a request after which the model is unloaded; None: never"""
    memory: int = 0
    """about how many bytes it takes, of a GPU's memory or the machine's"""


class Surroundings(NamedTuple):
    """What the models of a server share. `listen` is called when a replica has a new epoch. `make_room`
    gives a model the memory that it needs, for the time in which it is loaded."""

    commands: Commands
    children: Children
    context: zmq.Context[zmq.Socket[bytes]]
    epochs: Iterator[int]
    listen: Callable[[], None]
    make_room: Callable[[ServedModel], AbstractAsyncContextManager[None]]


class ServedModel:
    """Loads the model when it is needed, keeps its replicas alive, and unloads it.

    The first model of a server (`number` 0) is needed from the start; if it can't be loaded then, the server
    ends, and so it does if its only model dies again and again. `users` are the tokenizer processes that have
    requests for the model: it is never unloaded while there is one. Tokenizer processes learn its state only
    if it may be unloaded.
    """

    def __init__(self, hosted: HostedModel, number: int, is_only: bool, around: Surroundings) -> None:
        self.hosted = hosted
        self.name = hosted.name
        self.state: LoadState = "unloaded"
        self.users: set[int] = set()
        self.last_used = 0.0  # by the event loop's clock, as `_expires_at`
        self.known: ModelReady | None = None  # the last description, also of a dead replica
        self.was_ready = asyncio.Event()
        self.is_unloaded = asyncio.Event()  # whether it takes no memory
        self.is_unloaded.set()
        self.replicas = [ReplicaDomain(hosted.directory, *each) for each in enumerate(hosted.replicas)]
        self._number = number
        self._is_only = is_only
        self._around = around
        self._to_tokenizers: dict[int, sockets.Outbox] = {}
        self._is_needed = asyncio.Event()
        self._is_up = asyncio.Event()  # whether it has served since it began to load
        self._changed = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._expires_at: float | None = None
        self._error = ""  # why it could not be loaded
        self._is_evicted = False
        self._saving = False
        if number == 0:
            self._is_needed.set()

    @property
    def starts_server(self) -> bool:
        """Whether this is the load without which the server can't start."""
        return self._number == 0 and not self.was_ready.is_set()

    @property
    def is_idle(self) -> bool:
        """Whether it is loaded and no request needs it."""
        return self.state == "loaded" and not self.users

    def use(self, client: int) -> None:
        """Notes that a tokenizer process has requests for the model, and loads it."""
        self.users.add(client)
        self._expires_at = None
        self._is_needed.set()
        self._changed.set()

    def leave(self, client: int, keep_alive: float | None) -> None:
        """Notes that a tokenizer process has no requests for the model any more. `keep_alive`: the seconds
        until it may be unloaded, None for ever."""
        self.users.discard(client)
        self.last_used = time.monotonic()
        if not self.users:
            self._expire_after(keep_alive)

    def evict(self) -> None:
        """Unloads the model unless a request needs it."""
        self._is_evicted = True
        self._changed.set()

    async def run(self) -> None:
        """Loads and unloads the model until cancelled. Raises ServerError if the server can't go on."""
        while True:
            await self._is_needed.wait()
            is_start = self.starts_server
            error = await self._load_and_serve(is_start)
            if error is not None and (is_start or (self._is_only and self._is_up.is_set())):
                raise error
            await self._unload(error)

    def connect(self, client: int, *first: Message) -> None:
        """Connects to a tokenizer process, which starts, and sends it the `first` messages and the state."""
        address = sockets.tokenizer_address(self.hosted.directory, client)
        outbox = sockets.Outbox(self._around.context, address, sockets.ANY_EPOCH)
        for message in first:
            outbox.send(message)
        if self._may_unload:
            outbox.send(self._describe())  # without an error, of which it had no part
        for replica in sorted(self.replicas, key=lambda each: each.model is None):  # serving ones first
            outbox.send(replica.describe())
            if not replica.responds:
                outbox.send(PeerResponds(False, replica.number))
        self._to_tokenizers[client] = outbox

    def disconnect(self, client: int) -> None:
        """Forgets a tokenizer process that has ended."""
        for replica in self.replicas:
            if replica.to_scheduler is not None:
                replica.to_scheduler.send(PeerDown("tokenizer", client))
        self._to_tokenizers.pop(client).close(linger_ms=0)
        if client in self.users:
            self.leave(client, self.hosted.keep_alive)
        sockets.remove_ipc_file(sockets.tokenizer_address(self.hosted.directory, client))

    def tell(self, message: Message) -> None:
        """Sends a message to all tokenizer processes."""
        for outbox in self._to_tokenizers.values():
            outbox.send(message)

    def hear_ready(self, message: Ready, epoch: int) -> None:
        """Notes that the replica of an epoch serves, unless the model is being unloaded."""
        if self.state == "unloaded":
            return
        assert message.model is not None, "a scheduler is ready when its model is"
        replica = self._find(epoch)
        if replica.was_ready.is_set() and self._is_up.is_set():
            logger.info("%s serves again", self._name_part(replica, "the model"))
        replica.model = self.known = message.model
        replica.mark_ready()
        self.tell(replica.describe())
        if not self._is_up.is_set():
            self._is_up.set()
            self.state, self._error = "loaded", ""
            self._expire_after(None if self.users else self.hosted.keep_alive)
        if all(each.was_ready.is_set() for each in self.replicas):
            self.was_ready.set()

    def hear_failed(self, role: str, text: str, epoch: int) -> None:
        """Notes that a process of the replica of an epoch can't start."""
        if self._find(epoch).was_ready.is_set() and self._is_up.is_set():
            logger.error("the %s process could not start again: %s", role, text)
        elif not self._failure.done():
            self._failure.set_exception(CannotStartError(text))

    def hear_drained(self, epoch: int) -> None:
        self._find(epoch).has_drained.set()

    def has_epoch(self, epoch: int) -> bool:
        return any(each.running.epoch == epoch for each in self.replicas)

    def note_silent(self, silent: set[ChildProcess]) -> None:
        """Tells the tokenizer processes which replicas respond, if that has changed."""
        for replica in self.replicas:
            responds = silent.isdisjoint(replica.children)
            if responds != replica.responds:
                replica.responds = responds
                self.tell(PeerResponds(responds, replica.number))

    async def save(self, clients: Sequence[int], seconds: float) -> None:
        """Lets the replicas save their pages for the next start, and then end. Open requests of `clients` are
        given up."""
        saving = [each for each in self.replicas if each.model is not None and each.model.page_model]
        self._saving = bool(saving)
        for replica in saving:
            assert replica.to_scheduler is not None, "a replica that serves has an outbox"
            for client in clients:
                replica.to_scheduler.send(PeerDown("tokenizer", client))
            replica.to_scheduler.send(Drain())
        if not await all_within(seconds, *(replica.has_drained for replica in saving)):
            logger.warning("not all of the cache could be saved within %.0f s", seconds)

    def close(self) -> None:
        for outbox in self._to_tokenizers.values():
            outbox.close(linger_ms=0)
        for replica in self.replicas:
            replica.close()

    @property
    def _may_unload(self) -> bool:
        return self.hosted.keep_alive is not None or not self._is_only

    async def _load_and_serve(self, is_start: bool) -> ServerError | None:
        """Serves from the load until the model is no longer needed. Returns the error that ended that."""
        self._is_up.clear()
        self._is_evicted = self._saving = False
        for replica in self.replicas:
            replica.has_drained.clear()
        self._failure = asyncio.get_running_loop().create_future()
        self._set_state("loading")
        tasks: list[asyncio.Task[None]] = []
        try:
            async with self._around.make_room(self):
                self.is_unloaded.clear()
                if not is_start:
                    logger.info("loading %s", self.name)
                tasks += [asyncio.create_task(self._keep(each, is_start)) for each in self.replicas]
                for task in tasks:
                    task.add_done_callback(self._keeping_ended)
                await self._unless_failed(self._is_up.wait())
            if not is_start:
                logger.info("%s is loaded", self.name)
            await self._unless_failed(self._until_unneeded())
            await self._retire()
        except ServerError as error:
            return error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return None

    async def _unless_failed(self, work: Awaitable[object]) -> None:
        """Awaits the work. Raises the ServerError of a replica that fails meanwhile."""
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait((working, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
        finally:
            working.cancel()

    def _keeping_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _until_unneeded(self) -> None:
        """Waits until no request needs the model and its time is over, or it is evicted."""
        while self.users or not self._is_evicted:
            self._changed.clear()
            seconds = None if self._expires_at is None else self._expires_at - time.monotonic()
            if seconds is not None and seconds <= 0 and not self.users:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            self._is_evicted = self._is_evicted and not self.users

    async def _retire(self) -> None:
        """Takes the model from the tokenizer processes, and lets the replicas save their pages."""
        self._set_state("unloaded")
        serving = [each for each in self.replicas if each.model is not None]
        for replica in serving:
            self.tell(PeerDown("replica", replica=replica.number))
        await self.save(list(self._to_tokenizers), SAVING_SECONDS)

    async def _unload(self, error: ServerError | None) -> None:
        """Ends the replicas. Requests that wait for the model get the `error`, if there is one."""
        for replica in self.replicas:
            if replica.model is not None:
                replica.model = None
                self.tell(replica.describe())
        if error is not None:
            logger.error("%s: %s", self.name, error)
            self._is_needed.clear()
            self._set_state("unloaded", str(error))
        children = [child for replica in self.replicas for child in replica.children]
        await asyncio.gather(*(child.stop() for child in children))
        for child in children:
            self._around.children.forget(child)
        for replica in self.replicas:
            replica.end()
        if self._is_up.is_set():
            logger.info("%s is unloaded", self.name)
        if not self.users:
            self._is_needed.clear()
        self.is_unloaded.set()

    async def _keep(self, replica: ReplicaDomain, is_start: bool) -> None:
        while True:
            await self._start(replica)
            dead = await _first_exit(replica.children)
            replica.model = None
            self.tell(replica.describe())
            await asyncio.gather(*(child.kill() for child in replica.children))
            for child in replica.children:
                self._around.children.forget(child)
            replica.end()
            if self._saving:
                if not replica.has_drained.is_set():
                    logger.warning("the %s process died while it saved its cache", dead.role)
                replica.has_drained.set()
                return
            await self._pause_after(replica, dead, is_start)

    async def _start(self, replica: ReplicaDomain) -> None:
        replica.begin(self._around.context, next(self._around.epochs))
        self._around.listen()
        commands, place, file = self._around.commands, replica.place, replica.rank_file
        descriptors, shared = list[int](), dict[str, str]()
        if file is not None:
            descriptors, shared = [file.fileno()], {RANK_FILE_VARIABLE: str(file.fileno())}
        await self._start_child(replica, commands.scheduler, place.environment)
        for rank in place.ranks:
            environment = {**place.environment, **rank, **shared}
            await self._start_child(replica, commands.model, environment, descriptors)

    async def _start_child(
        self,
        replica: ReplicaDomain,
        command: Command,
        environment: Mapping[str, str],
        descriptors: Sequence[int] = (),
    ) -> None:
        directory, epoch = self.hosted.directory, replica.running.epoch
        child = await self._around.children.start(
            command, directory, epoch, replica.number, environment, descriptors
        )
        replica.children.append(child)

    async def _pause_after(self, replica: ReplicaDomain, dead: ChildProcess, is_start: bool) -> None:
        returncode = await dead.exited()
        if not self._is_up.is_set() or not replica.was_ready.is_set():
            await asyncio.sleep(FAILED_GRACE_SECONDS)  # its last message may explain the death
        how = f"the {dead.role} process (pid {dead.pid}) {describe_exit(returncode)}"
        if not is_start and not self._is_up.is_set():
            raise ServerError(f"{how} while it loaded. Its last lines:\n{dead.last_lines()}")
        delay = replica.restarts.delay_after(time.monotonic(), replica.ready_at, returncode)
        if delay is None and any(each.model for each in self.replicas):
            logger.error(
                "%s, again and again; the other replicas serve. Its last lines:\n%s", how, dead.last_lines()
            )
            delay = WINDOW_SECONDS
        if delay is None:
            raise ServerError(f"{how}, again and again. Its last lines:\n{dead.last_lines()}")
        logger.warning("%s; starting it again", how)
        await asyncio.sleep(delay)

    def _find(self, epoch: int) -> ReplicaDomain:
        return next(each for each in self.replicas if each.running.epoch == epoch)

    def _name_part(self, replica: ReplicaDomain, part: str) -> str:
        """The name of a replica's part for the log, with the replica's number if there are several."""
        return part if len(self.replicas) == 1 else f"{part} of replica {replica.number}"

    def _expire_after(self, seconds: float | None) -> None:
        """Lets the model be unloaded after the seconds, None for never, unless a request needs it."""
        self._expires_at = None if seconds is None else time.monotonic() + seconds
        self._changed.set()
        self._tell_state()

    def _set_state(self, state: LoadState, error: str = "") -> None:
        """Notes the state, and tells it the tokenizer processes."""
        self.state, self._error = state, error
        self._tell_state()

    def _tell_state(self) -> None:
        if self._may_unload:
            self.tell(self._describe(self._error))

    def _describe(self, error: str = "") -> ModelState:
        at = self._expires_at
        return ModelState(self.state, None if at is None else time.time() + at - time.monotonic(), error)


async def _first_exit(children: list[ChildProcess]) -> ChildProcess:
    exits = {asyncio.ensure_future(child.exited()): child for child in children}
    done, _ = await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
    for exit in exits:
        exit.cancel()
    return exits[done.pop()]
