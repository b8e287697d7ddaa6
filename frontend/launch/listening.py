"""The listening socket of a server: a TCP port, or a Unix socket at a path."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

import zmq

from ...runtime.config import ServeConfig
from ...runtime.errors import ConfigError

LISTEN_BACKLOG = 2048  # waiting connections until the tokenizer process listens with its own backlog
MAX_PATH_BYTES = 107  # bytes in the path of a Unix socket (unix(7))
_FIXES = {
    errno.EADDRINUSE: "Stop what uses the port or choose another one with --port (make serve: PORT=…).",
    errno.EACCES: "Choose a port from 1024 on with --port.",
}


class Listening:
    """A bound and listening socket, so that a busy address is reported before anything starts.

    `url` is the server's address, for a Unix socket `unix:PATH`.
    """

    def __init__(self, listener: socket.socket, url: str, path: Path | None = None) -> None:
        self.socket = listener
        self.url = url
        self._path = path
        self._file = None if path is None else _identity(path)

    @classmethod
    def open(cls, config: ServeConfig) -> Listening:
        """Binds the address and listens. Raises ConfigError if the server can't listen there."""
        if config.uds is not None:
            return cls(_listen_on_path(config.uds), f"unix:{config.uds}", config.uds)
        listener = _listen_on_port(config.host, config.port)
        host, port = listener.getsockname()[:2]
        scheme = "http" if config.ssl_certfile is None else "https"
        return cls(listener, f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")

    def close(self) -> None:
        """Closes the socket and removes its file, unless another server's socket has replaced it."""
        self.socket.close()
        if self._path is not None and _identity(self._path) == self._file:
            with contextlib.suppress(OSError):
                self._path.unlink()


def check_address(config: ServeConfig) -> None:
    """Raises ConfigError if the server can't listen there, before a model is downloaded for it."""
    Listening.open(config).close()
    if config.kv_events is not None:
        for address in config.kv_events.list_addresses(config.replicas):
            _check_event_address(address)


def _check_event_address(address: str) -> None:
    """Raises ConfigError if a scheduler can't publish events there. A file there is replaced later."""
    if address.startswith("ipc://"):
        path = Path(address.removeprefix("ipc://"))
        problem = None
        if not os.access(path.parent, os.W_OK):
            problem = "no file can be made in its directory. Make the directory, or choose another one."
        elif len(os.fsencode(path)) > MAX_PATH_BYTES:
            problem = f"a socket's path has at most {MAX_PATH_BYTES} bytes. Choose a shorter one."
    else:
        problem = _try_to_bind(address)
    if problem is not None:
        raise ConfigError(f"--kv-events {address}: {problem}")


def _try_to_bind(address: str) -> str | None:
    """Why a ZeroMQ socket can't be bound to the address; None if it can."""
    context = zmq.Context()
    try:
        publisher = context.socket(zmq.PUB)
        publisher.setsockopt(zmq.IPV6, 1)
        publisher.bind(address)
    except zmq.ZMQError as error:
        reason = (error.strerror or str(error)).partition(" (addr")[0]  # the rest repeats the address
        return f"can't publish there ({reason}). Choose another address or port of this machine."
    finally:
        context.destroy(linger=0)
    return None


def _identity(path: Path) -> tuple[int, int] | None:
    """The device and inode of a file; None if it does not exist."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _listen_on_port(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # the rest repeats the address
        raise ConfigError(
            f"--host {host} --port {port}: can't listen there ({reason}). "
            + _FIXES.get(error.errno or 0, "Choose an address of this machine with --host.")
        ) from error


def _listen_on_path(path: Path) -> socket.socket:
    """The file's mode is 0777 without the bits of the process's umask. A client needs write permission."""
    size = len(os.fsencode(path))
    if size > MAX_PATH_BYTES:
        raise ConfigError(
            f"--host unix:{path}: a socket's path has at most {MAX_PATH_BYTES} bytes, this one {size}. "
            "Choose a shorter one."
        )
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_stale(path)
        listener.bind(str(path))
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"--host unix:{path}: can't listen there ({error.strerror}). "
            "Name a file in a directory that exists and that this user may write to."
        ) from error
    except ConfigError:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path) -> None:
    """Removes the socket of a server that was killed. Raises ConfigError if another file has the path."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--host unix:{path}: this file is not a socket. Choose another path or remove it.")
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:  # a live server's queue of connections is full
            pass
    raise ConfigError(f"--host unix:{path}: a server listens there already. Stop it or choose another path.")
