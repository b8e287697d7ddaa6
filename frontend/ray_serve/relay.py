"""ZeroMQ between machines: sockets with the fleet's keys, and relays to the sockets of an engine."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import ray
import zmq


class FleetKeys(NamedTuple):
    """The CURVE key pair that all processes of an application have, and nobody else: it lets them connect to
    each other, and encrypts what they send."""

    public: bytes
    secret: bytes

    @classmethod
    def generate(cls) -> FleetKeys:
        return cls(*zmq.curve_keypair())

    def bind(self, socket: zmq.Socket[Any]) -> str:
        """Binds a socket to a free port, for processes that have the keys. Returns its address."""
        socket.curve_secretkey, socket.curve_publickey = self.secret, self.public
        socket.curve_server = True
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        socket.bind(f"tcp://{host}:*")
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def connect(self, socket: zmq.Socket[Any], address: str) -> None:
        socket.curve_secretkey, socket.curve_publickey = self.secret, self.public
        socket.curve_serverkey = self.public
        socket.connect(address)


class Relay:
    """Passes messages on between machines, in a thread that needs no interpreter lock. They wait without
    limit until the other side reads them, as in an `Outbox`."""

    def __init__(self, name: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pull, self._push = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
        for socket in (self._pull, self._push):
            socket.set_hwm(0)
            socket.linger = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @classmethod
    def receive(cls, keys: FleetKeys, target: str) -> tuple[Relay, str]:
        """A relay from a new address, which it returns too, to the local one `target`."""
        relay = cls(f"relay to {target}")
        relay._push.connect(target)
        address = keys.bind(relay._pull)
        relay._thread.start()
        return relay, address

    @classmethod
    def send(cls, keys: FleetKeys, source: str, address: str) -> Relay:
        """A relay from the local address `source` to one that `receive` returned."""
        relay = cls(f"relay from {source}")
        keys.connect(relay._push, address)
        relay._pull.bind(source)
        relay._thread.start()
        return relay

    def close(self) -> None:
        """Ends the relay. Messages that it has not sent are lost."""
        self._context.term()  # ends `zmq.proxy`
        self._thread.join()

    def _run(self) -> None:
        try:
            zmq.proxy(self._pull, self._push)
        except zmq.ContextTerminated:
            pass
        finally:
            self._pull.close()
            self._push.close()
