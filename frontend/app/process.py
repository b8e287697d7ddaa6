"""The tokenizer process: `python -m arbora.frontend.app.process DIRECTORY EPOCH NUMBER SUPERVISOR_PID`.

It serves HTTP on the listening socket that it inherits as the file descriptor ARBORA_LISTEN_FD.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial

import uvloop
import zmq
from starlette.routing import Route

from ...runtime.config import ServeConfig, load_config
from ...runtime.errors import ConfigError
from ...runtime.logs import write_in_background, write_log
from ...runtime.messages import Drained, Failed, KnowsReplica, Message, Ready
from ...runtime.processes.child import LISTEN_FD_VARIABLE, SIGN_OF_LIFE_S, ChildArguments, child_arguments
from ...runtime.processes.garbage import leave_out_existing_objects
from ...runtime.processes.heartbeat import Heartbeat
from ...runtime.processes.sockets import ANY_EPOCH, Outbox, model_directory, supervisor_address
from ...runtime.processes.time_slices import short_slices, use_short_slices
from ..api.native.routes import WEBSOCKETS
from ..core.replica.engine_client import EngineClient
from ..core.replica.model_use import ModelUse
from ..core.service import Service
from ..core.text.tokenizer import Tokenizer
from ..http.access import OPEN_PATHS, render_refusal
from ..http.apis import Api, Apis
from ..http.hosts import AllowedOrigins
from ..http.http_service import HttpService
from ..http.server.connection import ServerSettings
from ..http.server.limits import Limits, choose_limits
from ..http.server.server import HttpServer
from ..http.tls import tls_context
from ..model_files.model_tokenizer import load_tokenizer
from ..stored.batches.routes import UPLOADS
from .apis import APIS
from .application import create_app, server_routes

log = logging.getLogger(__name__)


def main() -> None:
    arguments = child_arguments()
    config = load_config(arguments.directory)
    write_log(config.log_level)
    write_in_background()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    supervisor = Outbox(context, supervisor_address(arguments.directory), ANY_EPOCH)
    try:
        tokenizers = [
            load_tokenizer(each.model, model_directory(arguments.directory, number), each.runner)
            for number, each in enumerate(config.list_models())
        ]
        heartbeat = Heartbeat()
        heartbeat.start(arguments)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(arguments, config, tokenizers, supervisor, heartbeat))
    except ConfigError as error:
        _send_last(context, supervisor, Failed("tokenizer", str(error), arguments.number))
        sys.exit(1)
    _send_last(context, supervisor, Drained("tokenizer", arguments.number))


async def _serve(
    arguments: ChildArguments,
    config: ServeConfig,
    tokenizers: Sequence[Tokenizer],
    supervisor: Outbox,
    heartbeat: Heartbeat,
) -> None:
    """Serves until the supervisor asks to drain and the last answer is out.

    Connections wait in the socket's backlog until it is known whether the replica is up: so a process that
    replaces a dead one refuses no request that the model could answer.
    """
    with short_slices():  # ZeroMQ's I/O thread, started by the first socket, inherits them
        engines = [
            connect(arguments, config, number, supervisor) for number in range(1 + len(config.also_serve))
        ]
    use_short_slices()
    first = Service.load(config, engines[0], tokenizers[0])
    others = zip(config.list_models()[1:], engines[1:], tokenizers[1:], strict=True)
    http = HttpService.build(first, *(Service.load(*each, first.work) for each in others))
    listener = socket.socket(fileno=int(os.environ[LISTEN_FD_VARIABLE]))
    server = http_server(http, progress=heartbeat.progress)
    async with asyncio.TaskGroup() as tasks:
        receiving = [tasks.create_task(engine.run()) for engine in engines]
        living = tasks.create_task(_show_life(heartbeat))
        stopping = tasks.create_task(_stop_when_drained(engines, server))
        telling = tasks.create_task(_report_replica(engines[0], supervisor, arguments.number))
        await engines[0].informed.wait()
        supervisor.send(Ready("tokenizer", arguments.number))
        leave_out_existing_objects()
        await server.serve(listener)
        await http.close()
        for task in (*receiving, living, stopping, telling):
            task.cancel()
    if http.traces is not None:
        await asyncio.to_thread(http.traces.flush)
    for engine in engines:
        engine.close()


def connect(arguments: ChildArguments, config: ServeConfig, model: int, supervisor: Outbox) -> EngineClient:
    """The connections to the replicas of a model, by its number."""
    may_unload = config.keep_alive is not None or config.also_serve
    use = ModelUse(arguments.number, model, config.keep_alive, supervisor.send) if may_unload else None
    directory = model_directory(arguments.directory, model)
    return EngineClient(directory, arguments.number, config.api_workers, config.replicas, use)


def http_server(
    http: HttpService,
    limits: Limits | None = None,
    progress: Callable[[], None] = lambda: None,
    apis: Apis = APIS,
) -> HttpServer:
    """Makes the server. It calls `progress` for input and new requests, as both may take long in a burst."""
    config = http.service.config
    failed = http.metrics.failed
    routes = server_routes(http, apis)

    return HttpServer(
        create_app(http, apis, routes),
        ServerSettings(
            limits=limits or choose_limits(config.api_workers),
            always_served=OPEN_PATHS,
            on_refused=lambda status: failed.labels(status).inc(),
            progress=progress,
            render_error=partial(render_refusal, apis, AllowedOrigins(config.allowed_origins)),
            log_refusal=http.log_refusal,
            uploads=UPLOADS,
            websockets=WEBSOCKETS,
        ),
        None if config.ssl_certfile is None else tls_context(config.ssl_certfile, config.ssl_keyfile),
        partial(work_in_background, http, apis, routes),
    )


async def work_in_background(http: HttpService, apis: Apis, routes: Sequence[tuple[Api, Route]]) -> None:
    """Does the work beside requests, until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(apis.work_in_background(http, routes))
        tasks.create_task(http.history.keep(http.engines))
        for engine in http.engines:
            if http.log is not None and engine.client == 0:
                tasks.create_task(http.log.watch(engine))


async def _show_life(heartbeat: Heartbeat) -> None:
    """Marks progress as long as the event loop runs."""
    while True:
        heartbeat.working()
        await asyncio.sleep(SIGN_OF_LIFE_S)


async def _report_replica(engine: EngineClient, supervisor: Outbox, client: int) -> None:
    """Reports that requests are answered. The server is ready when all processes have said so."""
    await engine.knows_replica.wait()
    supervisor.send(KnowsReplica(client))


async def _stop_when_drained(engines: Sequence[EngineClient], server: HttpServer) -> None:
    """Waits for the supervisor's request to drain, and stops the server once no request is open."""
    for engine in engines:
        await engine.drain_requested.wait()
    if count := sum(engine.open_requests for engine in engines):
        open_requests = f"{count} open request{'s' if count > 1 else ''}"
        log.info("finishing %s; Ctrl-C again ends at once", open_requests)
    for engine in engines:
        await engine.idle.wait()
    server.stop()


def _send_last(context: zmq.Context[zmq.Socket[bytes]], supervisor: Outbox, message: Message) -> None:
    supervisor.send(message)
    supervisor.close()
    context.term()


if __name__ == "__main__":
    main()
