"""The failure domains of a server: processes that start and die together."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import zmq

from ...runtime.messages import ModelReady, PeerDown, PeerUp
from ...runtime.processes import sockets
from .child_process import ChildProcess, Place
from .watchdog import Restarts


class Domain:
    """Processes that start and die together: a replica, or one tokenizer process."""

    def __init__(self) -> None:
        self.restarts = Restarts()
        self.ready_at: float | None = None
        self.was_ready = asyncio.Event()

    def mark_ready(self) -> None:
        self.ready_at = time.monotonic()
        self.was_ready.set()


class ReplicaDomain(Domain):
    """A scheduler and its model processes, which are ranks.

    `model` is None while the replica does not serve, and `has_drained` is set once its cache is saved.
    """

    def __init__(self, directory: Path, number: int, place: Place) -> None:
        super().__init__()
        self.number = number
        self.place = place
        self.running = sockets.Replica(directory, sockets.ANY_EPOCH, number, len(place.ranks))
        self.rank_file: IO[bytes] | None = None
        """by which the ranks find each other, new for each start; None: there is one rank"""
        self.children: list[ChildProcess] = []
        self.model: ModelReady | None = None
        self.responds = True
        self.has_drained = asyncio.Event()
        self.to_scheduler: sockets.Outbox | None = None

    def begin(self, context: zmq.Context[zmq.Socket[bytes]], epoch: int) -> None:
        """Begins a start in a new epoch, before its processes start."""
        self.running = self.running._replace(epoch=epoch)
        self.ready_at = None
        self.to_scheduler = sockets.Outbox(context, self.running.scheduler, sockets.ANY_EPOCH)
        if self.running.ranks > 1:
            self.rank_file = _open_file()

    def end(self) -> None:
        """Removes what belonged to a start whose processes have ended."""
        self.close()
        self.children = []
        self.running.remove_files()

    def close(self) -> None:
        if self.to_scheduler is not None:
            self.to_scheduler.close(linger_ms=0)
            self.to_scheduler = None
        if self.rank_file is not None:
            self.rank_file.close()
            self.rank_file = None

    def describe(self) -> PeerUp | PeerDown:
        """The message that tells a tokenizer process whether the replica serves."""
        if self.model is None:
            return PeerDown("replica", replica=self.number)
        return PeerUp(self.running.epoch, self.model, self.number)


def _open_file() -> IO[bytes]:
    """A file without a name: in memory, or elsewhere than on Linux in the directory for temporary files."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("arbora-ranks"), "r+b")
    return TemporaryFile()


async def all_within(seconds: float, *events: asyncio.Event) -> bool:
    """Waits at most `seconds` for the events. Returns whether all have happened."""
    try:
        async with asyncio.timeout(seconds):
            for event in events:
                await event.wait()
    except TimeoutError:
        return False
    return True
