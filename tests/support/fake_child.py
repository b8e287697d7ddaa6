"""A child of the supervisor that speaks the protocol and behaves as the test asks.

    python fake_child.py ROLE BEHAVIOUR DIRECTORY EPOCH NUMBER SUPERVISOR_PID

Roles: scheduler, model, tokenizer. Each writes its pid to DIRECTORY/ROLE.pid, or ROLE1.pid if its
number is 1. A tokenizer appends to DIRECTORY/events what it is told, a scheduler likewise.

Behaviours: work; refuse (Failed, then exits); crash (exits with 3 after some words on stderr);
crash-later (the same, once it has been ready); mute (a model that is never ready); stores (a model with
a page store); deaf (ignores SIGTERM and Drain); unaware (a tokenizer that never knows the replica);
chatty (a tokenizer that writes 4 MB to stderr before it ends).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Literal, cast

import msgspec
import zmq
from arbora.runtime import messages
from arbora.runtime.processes import sockets
from arbora.runtime.processes.child import ChildArguments, child_arguments

Role = Literal["tokenizer", "scheduler", "model"]
Context = zmq.Context[zmq.Socket[bytes]]
READY = messages.ModelReady(
    [messages.CacheGroup(2, None, 100, 1024)],
    page_size=16,
    max_model_len=512,
    slots=8,
    vocab_size=256,
    device="cpu",
)


def main() -> None:
    role, behaviour = cast(Role, sys.argv.pop(1)), sys.argv.pop(1)
    arguments = child_arguments()
    (arguments.directory / f"{role}{arguments.number or ''}.pid").write_text(str(os.getpid()))
    context: Context = zmq.Context()
    supervisor = sockets.Outbox(context, sockets.supervisor_address(arguments.directory), arguments.epoch)
    if behaviour == "refuse":
        supervisor.send(messages.Failed(role, "the model has a field that no one can read", arguments.number))
        supervisor.close()
        sys.exit(1)
    if behaviour == "crash":
        print("line one\nthe sky fell", file=sys.stderr)
        sys.exit(3)
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    WORK[role](context, supervisor, arguments, behaviour)


def model(context: Context, supervisor: sockets.Outbox, arguments: ChildArguments, behaviour: str) -> None:
    scheduler = sockets.Outbox(context, arguments.replica.scheduler, arguments.epoch)
    if behaviour != "mute":
        page_model = b"fake" if behaviour == "stores" else b""
        scheduler.send(msgspec.structs.replace(READY, page_model=page_model))
    signal.pause()


def scheduler(
    context: Context, supervisor: sockets.Outbox, arguments: ChildArguments, behaviour: str
) -> None:
    inbox: sockets.Inbox[messages.SchedulerInbox] = sockets.Inbox(
        context,
        arguments.replica.scheduler,
        messages.SchedulerInbox,
        arguments.epoch,
    )
    while True:
        message = inbox.receive()
        if isinstance(message, messages.ModelReady):
            supervisor.send(messages.Ready("scheduler", model=message))
            if behaviour == "crash-later":
                supervisor.close()
                sys.exit(3)
        elif message is not None:
            note(arguments, f"scheduler {message}")


def tokenizer(
    context: Context, supervisor: sockets.Outbox, arguments: ChildArguments, behaviour: str
) -> None:
    inbox: sockets.Inbox[messages.TokenizerInbox] = sockets.Inbox(
        context,
        sockets.tokenizer_address(arguments.directory, arguments.number),
        messages.TokenizerInbox,
        sockets.ANY_EPOCH,
    )
    listener = socket.socket(fileno=int(os.environ["ARBORA_LISTEN_FD"]))
    note(arguments, f"tokenizer listens on {listener.getsockname()}")
    supervisor.send(messages.Ready("tokenizer", arguments.number))
    while True:
        message = inbox.receive()
        note(arguments, f"tokenizer {type(message).__name__} {getattr(message, 'epoch', '')}".rstrip())
        if isinstance(message, messages.PeerUp) and behaviour != "unaware":
            supervisor.send(messages.KnowsReplica(arguments.number))
        if isinstance(message, messages.Drain) and behaviour == "chatty":
            sys.stderr.write(40_000 * f"{99 * 'x'}\n")
        if isinstance(message, messages.Drain) and behaviour != "deaf":
            supervisor.send(messages.Drained("tokenizer", arguments.number))
            supervisor.close()
            return


def note(arguments: ChildArguments, line: str) -> None:
    with (arguments.directory / "events").open("a") as events:
        events.write(line + "\n")


WORK = {"model": model, "scheduler": scheduler, "tokenizer": tokenizer}

if __name__ == "__main__":
    main()
