"""The description of an option, and the readers of option values. A reader turns text into a value, or raises
ValueError with the words that complete "--flag text: …"."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import field, fields
from pathlib import Path
from typing import Any, NamedTuple

from .api_keys import find_control
from .sampling_params import MAX_DRAFTS
from .zmq_address import read_local_address

MAX_SIZE = 2**63  # largest size in bytes that an option may have
MIN_BARE_SIZE = 1 << 20
"""smallest size in bytes that needs no unit"""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {unit + "i": 2 ** (10 * power) for power, unit in enumerate("kmgt", start=1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*((?:[kmgt]i?)?)b?", re.IGNORECASE)
_BITS = re.compile(r"[KMGT]i?b")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.IGNORECASE)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_TRUTHS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


class Option(NamedTuple):
    """How the user sets a field of `ServeConfig`: by a flag, a variable or a keyword of `Engine`.

    `read` returns the field's value, or a dict with the values of several fields. A switch has no `metavar`,
    because its flag takes no value.
    """

    help: str
    default: object
    metavar: str
    read: Callable[[str], object]
    name: str = ""
    field: str = ""
    alone: str = ""
    """value of a flag that is given without one; empty if the flag needs a value"""
    is_repeatable: bool = False
    takes_several: bool = False
    """whether several values may follow one flag"""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "ARBORA_" + self.name.upper()

    @property
    def full_help(self) -> str:
        """The help with the default value."""
        tells = not self.metavar or "(default:" in self.help
        return self.help if tells else f"{self.help} (default: {self.default or 'none'})"


def option(
    help: str,
    default: object,
    metavar: str = "",
    read: Callable[[str], object] | None = None,
    **more: Any,
) -> Any:
    """A field of a dataclass that the user can set."""
    described = Option(help, default, metavar, read or read_truth, **more)
    return field(default=default, metadata={Option: described})


def options_of(config: type[Any]) -> tuple[Option, ...]:
    """The options of a dataclass, in the order of its fields. An option without a name has the field's."""
    return tuple(
        described._replace(name=described.name or each.name, field=each.name)
        for each in fields(config)
        if (described := each.metadata.get(Option))
    )


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    expected = f"from {minimum} on" if maximum is None else f"from {minimum} to {maximum}"

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not minimum <= int(text) <= (maximum or int(text)):
            raise ValueError(f"expected a whole number {expected}.")
        return int(text)

    return read


def read_drafts(text: str) -> int | str:
    if text in ("off", "auto"):
        return text
    try:
        return whole_number(1, MAX_DRAFTS)(text)
    except ValueError:
        raise ValueError(
            f"expected auto or a whole number from 1 to {MAX_DRAFTS}; for no drafts, write off."
        ) from None


def read_token_count(text: str) -> int:
    """Reads a whole number. A suffix K multiplies by 1,024 and k by 1,000, as in vLLM."""
    thousands = {"K": 1024, "k": 1000}.get(text[-1:], 1)
    try:
        return whole_number(1)(text if thousands == 1 else text[:-1]) * thousands
    except ValueError:
        raise ValueError("expected a whole number from 1 on, or one such as 8K (8192).") from None


def read_size(text: str) -> int:
    """Reads a size in bytes. GB is 10^9 bytes, GiB is 2^30; gb means GB. Refuses Gb, which may mean bits, and
    small numbers without a unit, because nobody means bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is not None and (unit := _BITS.search(text)):
        raise ValueError(f"{unit[0]} may mean bits. Write {unit[0][:-1]}B for bytes.")
    size = 0.0 if match is None else float(match[1]) * _UNITS[match[2].lower()]
    if not 1 <= size < MAX_SIZE:
        raise ValueError("expected a size such as 4GiB, 500MB or a number of bytes.")
    if match is not None and match[1] == text.strip() and size < MIN_BARE_SIZE:
        meant = f"{match[1]}{'GiB' if size < 1024 else 'MiB'}"
        raise ValueError(f"this is {int(size)} bytes. Did you mean {meant}?")
    return int(size)


def read_size_or_zero(text: str) -> int:
    return 0 if text.strip() == "0" else read_size(text)


_DURATION_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_SECONDS = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
LONGEST_DURATION = 64
"""maximum characters of a duration"""


def find_seconds(text: str) -> float | None:
    """The seconds of a duration as Go writes it, or of a bare number; None for another text."""
    if len(text) > LONGEST_DURATION:
        return None
    if _SECONDS.fullmatch(text):
        return float(text)
    parts = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    found = _DURATION_PART.findall(parts)
    if not found or "".join(number + unit for number, unit in found) != parts:
        return None
    seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in found)
    return -seconds if text.startswith("-") else seconds


def read_keep_alive(text: str) -> float | None:
    """Reads a duration; a negative one means no limit (None)."""
    seconds = find_seconds(text)
    if seconds is None:
        raise ValueError("expected a duration such as 5m, 1h30m or a number of seconds; -1 for no limit.")
    return None if seconds < 0 else seconds


def read_hosted(text: str) -> tuple[tuple[str, str], ...]:
    """Reads NAME=MODEL, or MODEL alone, whose name is empty."""
    name, equals, model = text.partition("=")
    if not equals:
        name, model = "", text
    if not model or (equals and not name):
        raise ValueError("expected MODEL or NAME=MODEL, such as coder=./coder.gguf.")
    if control := find_control(name):
        raise ValueError(f"the name has {control}: leave it out.")
    return ((name, model),)


def number(minimum: float, maximum: float, expected: str = "") -> Callable[[str], float]:
    expected = expected or f"a number from {minimum:g} to {maximum:g}"

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not minimum <= found <= maximum:
            raise ValueError(f"expected {expected}.")
        return found

    return read


def one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected one of {', '.join(words)}.")
        return text

    return read


def read_truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise ValueError("expected 1 or 0.")
    return _TRUTHS[text.lower()]


def read_host(text: str) -> dict[str, Any]:
    """Reads an address or unix:PATH, followed by comma-separated names by which clients call the server."""
    address, *names = map(str.strip, text.split(","))
    fields: dict[str, Any] = {"allowed_hosts": tuple(map(_check_host_name, names))}
    if address.startswith("unix:"):
        return fields | {"uds": read_file(address.removeprefix("unix:"))}
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and (":" not in host or host.endswith("]")):
        name = f"--host {host.strip('[]')} " if host else ""
        raise ValueError(f"expected an address without a port. Write {name}--port {port}.")
    if not address:
        raise ValueError("expected an address such as 127.0.0.1, 0.0.0.0, ::1 or unix:PATH.")
    return fields | {"host": address}


def _check_host_name(name: str) -> str:
    if not name or "/" in name or name.count(":") == 1:
        raise ValueError("expected a host's name alone, such as gpu.example.com, without http:// and port.")
    if "*" in name and name != "*":
        raise ValueError("expected each host's whole name: * stands alone, for all hosts, not within a name.")
    return name


def expand_home(text: str) -> Path:
    """Replaces `~` or `~USER` at the beginning of a path. A path of an unknown user stays as it is."""
    return Path(os.path.expanduser(text))  # `Path.expanduser` raises an error for an unknown user


def read_directory(text: str) -> Path:
    if not text.strip():
        raise ValueError("expected a directory's path.")
    path = expand_home(text).absolute()
    if os.path.exists(path) and not os.path.isdir(path):  # pathlib raises if permissions forbid to look
        raise ValueError("expected a directory, but this is a file.")
    return path


def read_disk_cache(text: str) -> dict[str, Any]:
    """Reads DIRECTORY or DIRECTORY,SIZE."""
    path, size = _split_size(text)
    return {"disk_cache": read_directory(path)} | ({"disk_cache_size": size} if size else {})


def read_data_dir(text: str) -> dict[str, Any]:
    """Reads DIRECTORY, DIRECTORY,SIZE, ",SIZE" for the default directory, or "off"."""
    path, size = _split_size(text)
    if path == "off" and size:
        raise ValueError("a size has no meaning with off: leave one of them out.")
    fields: dict[str, Any] = {"data_size": size} if size else {}
    if path == "off":
        return {"data_dir": None}
    return fields if size and not path else fields | {"data_dir": read_directory(path)}


def read_packed_weights(text: str) -> dict[str, Any]:
    """Reads DIRECTORY, or "off"."""
    return {"packed_weights": None if text == "off" else read_directory(text)}


def _split_size(text: str) -> tuple[str, int | None]:
    """The text before the last comma, and the size after it; None without a comma."""
    if "," not in text:
        return text, None
    path, _, size = text.rpartition(",")
    return path.strip(), read_size(size)


def read_certificate(text: str) -> dict[str, Any]:
    """Reads FILE or FILE,KEYFILE."""
    certificate, comma, key = text.partition(",")
    return {"ssl_certfile": read_file(certificate), "ssl_keyfile": read_file(key) if comma else None}


def read_chat_template(text: str) -> str:
    """Reads a Jinja template: the text itself if it has a brace or a line break, otherwise the file's."""
    if any(character in text for character in "{}\n"):
        return text
    path = read_file(text)
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(
            f"{path} can't be read ({reason}). Expected a Jinja file, or the text of a template."
        ) from None


def read_file(text: str) -> Path:
    if not text.strip():
        raise ValueError("expected a file's path.")
    return expand_home(text).absolute()


def read_file_to_append(text: str) -> Path:
    path = read_file(text)
    try:
        path.open("ab").close()
    except OSError as error:
        raise ValueError(f"the file can't be written ({error.strerror}).") from None
    return path


def read_http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")) or " " in text:
        raise ValueError("expected a URL such as http://localhost:4318/v1/traces.")
    return text


def one_or_off(*words: str) -> Callable[[str], str | None]:
    """A reader of one of some words, or of a switch: on means the first word, off means None."""

    def read(text: str) -> str | None:
        if text.lower() in _TRUTHS:
            return words[0] if _TRUTHS[text.lower()] else None
        return one_of(*words)(text)

    return read


def read_remote_url(text: str) -> str:
    if not text.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("expected a URL such as redis://HOST:6379/0, rediss://HOST or unix://PATH.")
    return text


def read_local_addresses(text: str) -> tuple[str, ...]:
    found = split_keys(text)
    if not found:
        raise ValueError("there is no address in it. Leave it out to compute all prompts here.")
    return tuple(map(read_local_address, found))


def show(text: str) -> str:
    """Quotes a text for an error message, with control characters escaped."""
    return text if text.isprintable() else ascii(text)


def read_key(text: str) -> str:
    if control := find_control(text):
        raise ValueError(f"a key may not have {control}, as no HTTP header may. Remove it.")
    return text


def split_keys(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def read_keys(text: str) -> tuple[str, ...]:
    """Reads API keys. A text that begins with @ names a file of keys."""
    found = (text,) if text.startswith("@") else split_keys(text)
    if not found:
        raise ValueError("there is no key in it. Leave it out for a server that asks for none.")
    return tuple(map(read_key, found))


def read_origins(text: str) -> tuple[str, ...]:
    """Reads origins and writes them as browsers do: in lower case, without their scheme's default port."""
    found = split_keys(text)
    if not found:
        raise ValueError("there is no origin in it. Leave it out to allow none.")
    return tuple(origin if origin == "*" else _origin(origin) for origin in found)


def _origin(text: str) -> str:
    match = _ORIGIN.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text} is no origin. Write a scheme, a host and perhaps a port, such as "
            "https://chat.example.com or http://localhost:3000, without a path or a final slash."
        )
    return text.lower().removesuffix(_DEFAULT_PORTS.get(match[1].lower(), ""))


def some_of(*words: str) -> Callable[[str], tuple[str, ...]]:
    """Makes a reader of a comma-separated list of given words."""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(split_keys(text)))
        if unknown := [word for word in found if word not in words]:
            raise ValueError(f"there is no {unknown[0]}. Choose from {', '.join(words)}.")
        return found

    return read


def flags(**words: tuple[str, bool]) -> Callable[[str], dict[str, bool]]:
    """Makes a reader of a list of words, each of which sets a field to a value."""

    def read(text: str) -> dict[str, bool]:
        return dict(words[word] for word in some_of(*words)(text))

    return read


def assignments(**fields: tuple[str, ...]) -> Callable[[str], dict[str, str]]:
    """Makes a reader of a list such as FIELD=WORD,FIELD=WORD from the allowed words of each field."""

    def read(text: str) -> dict[str, str]:
        found = {}
        for name, equals, word in (each.partition("=") for each in split_keys(text)):
            if name not in fields or not equals:
                raise ValueError(f"expected FIELD=WORD with one of the fields {', '.join(fields)}.")
            if word not in fields[name]:
                raise ValueError(f"expected {name}= one of {', '.join(fields[name])}.")
            found[name] = word
        return found

    return read


def read_model_names(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(split_keys(text)))
    if not found:
        raise ValueError("there is no name in it. Leave it out for MODEL's own name.")
    return found


def read_adapters(text: str) -> tuple[tuple[str, Path], ...]:
    """Reads NAME=DIRECTORY pairs of adapters."""
    found = []
    for name, equals, directory in (each.partition("=") for each in split_keys(text)):
        if not (name and equals and directory):
            raise ValueError("expected NAME=DIRECTORY, such as sql=adapters/sql.")
        found.append((name, read_directory(directory).absolute()))
    return tuple(found)
