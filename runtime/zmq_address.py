"""Addresses of ZeroMQ sockets that options name."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

MAX_PORT = 65535


class Address(NamedTuple):
    """A ZeroMQ address. Replica N has the port after N others, or a file whose name ends with `_dpN`."""

    scheme: str
    place: str
    """the host, or the file's path"""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """Whether other machines can't reach it."""
        host = self.place.strip("[]")
        if self.scheme == "ipc" or host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False

    def of_replica(self, number: int) -> str:
        if self.scheme == "ipc":
            return f"ipc://{self.place}" + (f"_dp{number}" if number else "")
        return f"tcp://{self.place}:{self.port + number}"


def read_address(text: str) -> Address:
    """Reads an address. Raises ValueError."""
    scheme, separator, place = text.strip().partition("://")
    if separator and scheme == "ipc" and place.startswith("/"):
        return Address(scheme, place)
    host, colon, port = place.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and 1 <= int(port) <= MAX_PORT
    if not (separator and scheme == "tcp" and colon and host and is_number):
        raise ValueError(
            f"{text!r} is no address. Expected tcp://HOST:PORT with a port from 1 to {MAX_PORT}, such as "
            "tcp://127.0.0.1:5557, or ipc:///ABSOLUTE/PATH."
        )
    return Address(scheme, host, int(port))


def read_local_address(text: str) -> str:
    """Reads an address that only this machine can reach. Raises ValueError."""
    address = read_address(text)
    if not address.is_local:
        raise ValueError(
            "prompts travel there unencrypted, so it must be an address of this machine, such as "
            "tcp://127.0.0.1:7000. Reach another machine through a tunnel, such as `ssh -L`."
        )
    return address.of_replica(0)
