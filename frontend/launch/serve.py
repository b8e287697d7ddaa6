"""Runs a server in the foreground: it prints a line when it is ready, and ends cleanly on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from ...runtime.config import BUILTIN_MODEL, ServeConfig
from ...runtime.logs import ProgressLine, write_in_background
from ...runtime.messages import ModelReady
from ..http.key_file import check_beside, read_key_file
from .child_process import Commands
from .directory import PrivateDirectory, RunningServer
from .errors import CannotStartError, ServerError
from .listening import Listening
from .model_room import ModelRoom
from .placement import find_free_memory, host_models
from .program_name import program_name
from .supervisor import Supervisor
from .watchdog import TIMEOUTS, Timeouts

DRAIN_SECONDS = 30.0
logger = logging.getLogger(__name__)


def serve(config: ServeConfig, commands: Commands, timeouts: Timeouts = TIMEOUTS) -> int:
    """Serves until a signal or a failure, and returns the process's exit code. Raises ConfigError."""
    with (
        contextlib.closing(Listening.open(config)) as listening,
        contextlib.closing(PrivateDirectory.with_config(config)) as directory,
    ):
        return asyncio.run(_serve(config, commands, directory, listening, timeouts))


async def _serve(
    config: ServeConfig,
    commands: Commands,
    directory: PrivateDirectory,
    listening: Listening,
    timeouts: Timeouts,
) -> int:
    server = RunningServer(config.served_model_name, listening.url, os.getpid(), time.time())
    directory.describe(server)
    output = write_in_background()
    began = time.monotonic()
    supervisor = Supervisor(
        directory.path,
        commands,
        listening.socket,
        timeouts,
        output.write,
        host_models(config, directory.path, commands.replicas),
        ModelRoom(find_free_memory(config, commands.replicas)),
    )
    signals = _Signals(supervisor, config)
    logger.info("starting %s (%s)", config.served_model_name, _model_in_words(config))
    try:
        ready = await supervisor.start()
        directory.describe(replace(server, is_ready=True))
        output.drain()
        ProgressLine().end()
        logger.info("ready after %.1f s", time.monotonic() - began)
        # One write: between two the log could clear the terminal's line.
        sys.stdout.write(f"{ready_line(config, ready, listening.url)}\n")
        sys.stdout.flush()
        logger.info("%s", next_step(config, ready, listening.url))
        await supervisor.wait()
    except ServerError as error:
        if signals.received:
            return signals.exit_code
        output.drain()
        print(f"arbora: error: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, CannotStartError) else 1
    finally:
        await supervisor.close()
        if signals.received:
            logger.info("stopped")
    return signals.exit_code


def _model_in_words(config: ServeConfig) -> str:
    if config.model == BUILTIN_MODEL:
        return "the built-in model, which needs no MODEL"
    files = sorted(config.model.glob("*.gguf"))
    return str(files[0].resolve() if files and files[0].is_symlink() else config.model)


def ready_line(config: ServeConfig, ready: ModelReady, url: str) -> str:
    """The line for people and programs. A model that computes each input whole has no KV cache."""
    serves = f"Arbora serves {config.served_model_name} at {url} on {ready.device}"
    if ready.pooling is not None and ready.pooling.takes_whole:
        return f"{serves} (inputs of up to {ready.max_model_len:,} tokens)"
    cache = f"KV cache {ready.num_pages * ready.page_size:,} tokens"
    if config.replicas > 1:
        each = f"each with context {ready.max_model_len:,} tokens, {cache}"
        return f"{serves} ({config.replicas} replicas, {each})"
    return f"{serves} (context {ready.max_model_len:,} tokens, {cache})"


def next_step(config: ServeConfig, ready: ModelReady, url: str) -> str:
    """The first commands that a new user can try on the ready server."""
    if config.uds is not None:
        return f"ask it with `curl --unix-socket {shlex.quote(str(config.uds))} http://localhost/v1/models`"
    if ready.pooling is not None:
        path = "/v1/rerank" if len(ready.pooling.labels) == 1 else "/v1/classify"
        return f"its API is {url}/v1; this model serves {path if ready.pooling.labels else '/v1/embeddings'}"
    key = " --api-key KEY" if config.api_keys else ""
    return (
        f"open {url} in a browser, or talk to it in another terminal with "
        f"`{program_name()} chat --url {url}{key}`; its API is {url}/v1"
    )


class _Signals:
    """The first signal drains the server, a second one ends it at once. SIGHUP reads the key file, if there
    is one."""

    def __init__(self, supervisor: Supervisor, config: ServeConfig) -> None:
        self.received = 0
        self.exit_code = 0
        self._supervisor = supervisor
        self._key_file = config.api_key_file
        self._fixed_keys = config.fixed_keys
        self._drain: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            is_nohup = number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
            if not is_nohup or self._key_file is not None:
                loop.add_signal_handler(number, self._handle, number)

    def _handle(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP and self._key_file is not None:
            self._read_keys(self._key_file)
            return
        self.received += 1
        if self.received == 1:
            self._drain = asyncio.ensure_future(self._supervisor.drain(DRAIN_SECONDS))
        else:
            self.exit_code = 128 + number
            self._supervisor.end(at_once=True)

    def _read_keys(self, path: Path) -> None:
        """Reads the key file and sets its keys. A wrong file changes nothing."""
        try:
            keys = read_key_file(path)
            check_beside(self._fixed_keys, keys)
        except ValueError as error:
            logger.error("%s: %s The keys stay as they were.", path, error)
            return
        self._supervisor.set_keys((*self._fixed_keys, *keys))
        logger.info("read %s: %d keys", path, len(keys))
