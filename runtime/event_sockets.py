"""Where schedulers publish the changes of their prefix caches: the value of the option `--kv-events`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .zmq_address import MAX_PORT, Address, read_address

FORM = "ADDRESS[,replay=ADDRESS][,topic=TEXT][,secret=FILE,clients=DIRECTORY]"


@dataclass(frozen=True, slots=True)
class EventSockets:
    """Addresses and CURVE keys of the sockets for events."""

    address: Address
    replay: Address | None = None
    """where subscribers ask for events that they have missed"""
    topic: str = ""
    """empty: `kv@HOST:PORT@MODEL`, with the address and the model's name in the HTTP API"""
    secret: Path | None = None
    """the server's certificate with its secret key"""
    clients: Path | None = None
    """the directory with the certificates of those who may subscribe"""

    def list_addresses(self, replicas: int) -> list[str]:
        """All addresses of a server with this number of replicas."""
        bases = [self.address, *([self.replay] if self.replay else [])]
        return [base.of_replica(number) for base in bases for number in range(replicas)]

    def find_problem(self, replicas: int) -> str | None:
        """Returns why a server with this number of replicas can't use the addresses; None if it can."""
        addresses = self.list_addresses(replicas)
        if twice := [address for address in addresses if addresses.count(address) > 1]:
            return (
                f"{twice[0]} is used twice, because each of {replicas} replicas has its own addresses for "
                "events and for replay. Choose ports that are further apart."
            )
        ports = [base.port + replicas - 1 for base in (self.address, self.replay) if base is not None]
        if max(ports) > MAX_PORT:
            return f"replica {replicas - 1} would need port {max(ports)}, above {MAX_PORT}. Lower the port."
        return None


def read_event_sockets(text: str) -> EventSockets:
    """Reads an address and, behind commas, what else the sockets need."""
    first, *rest = text.split(",")
    given = {name.strip(): value.strip() for name, _, value in (each.partition("=") for each in rest)}
    if unknown := [name for name, value in given.items() if name not in _FIELDS or not value]:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(_FIELDS)} with a value. Expected {FORM}.")
    if ("secret" in given) != ("clients" in given):
        there, missing = ("secret", "clients") if "secret" in given else ("clients", "secret")
        raise ValueError(
            f"{there}= needs {missing}= too: the server's key, and the keys of who may subscribe."
        )
    address, secret = read_address(first), None
    replay = read_address(given["replay"]) if "replay" in given else None
    if "secret" in given:
        secret = _read_secret(given["secret"])
    elif outside := [each for each in (address, replay) if each is not None and not each.is_local]:
        raise ValueError(
            f"events contain the tokens of prompts, and other machines can reach {outside[0].of_replica(0)}. "
            "Use a loopback address such as tcp://127.0.0.1:5557, or ipc://PATH, or give CURVE keys with "
            "secret=FILE,clients=DIRECTORY."
        )
    clients = _read_clients(given["clients"]) if "clients" in given else None
    return EventSockets(address, replay, given.get("topic", ""), secret, clients)


_FIELDS = ("replay", "topic", "secret", "clients")


def _read_secret(text: str) -> Path:
    from zmq.auth import load_certificate

    path = Path(text).expanduser().absolute()
    try:
        _, key = load_certificate(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"secret={path} can't be read ({error}). {_CERTIFICATES}") from None
    if key is None:
        raise ValueError(f"secret={path} has no secret key. {_CERTIFICATES}")
    return path


def _read_clients(text: str) -> Path:
    path = Path(text).expanduser().absolute()
    if not any(path.glob("*.key")):
        raise ValueError(f"clients={path} has no certificates (*.key). {_CERTIFICATES}")
    return path


_CERTIFICATES = "Make them with pyzmq's zmq.auth.create_certificates(DIRECTORY, NAME)."
