"""Readers of option values. Each turns text into a value, or raises ValueError with the words that complete
"--flag text: …"."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from ...runtime.config import LogFormat
from ..core.text.prompt_rules import RULES
from ..http.keys.key_file import KeyFile, read_key_file

MAX_PAGE_SIZE = 256
MAX_SIZE = 2**63  # bytes
MIN_BARE_SIZE = 1 << 20
"""in bytes, of a size without a unit"""
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


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    expected = f"from {least} on" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= (most or int(text)):
            raise ValueError(f"expected a whole number {expected}.")
        return int(text)

    return read


def token_count(text: str) -> int:
    """A whole number, or one in thousands: K is 1,024 and k is 1,000, as in vLLM."""
    thousands = {"K": 1024, "k": 1000}.get(text[-1:], 1)
    try:
        return whole_number(1)(text if thousands == 1 else text[:-1]) * thousands
    except ValueError:
        raise ValueError("expected a whole number from 1 on, or one such as 8K (8192).") from None


def size_in_bytes(text: str) -> int:
    """Bytes. GB is 10^9 bytes, GiB is 2^30. Gb is refused because it may mean bits; gb means GB. So
    is a small number without a unit, because nobody means bytes."""
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


def size_or_nothing(text: str) -> int:
    return 0 if text.strip() == "0" else size_in_bytes(text)


def page_size(text: str) -> int:
    number = whole_number(1, MAX_PAGE_SIZE)(text)
    if number & (number - 1):
        raise ValueError(f"expected a power of two up to {MAX_PAGE_SIZE}.")
    return number


def milliseconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 1.0 <= number <= 60_000.0:
        raise ValueError("expected milliseconds between 1 and 60000.")
    return number


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.001 <= number <= 1_000_000.0:
        raise ValueError("expected seconds between 0.001 and 1000000, such as 300.")
    return number


def one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected one of {', '.join(words)}.")
        return text

    return read


def truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise ValueError("expected 1 or 0.")
    return _TRUTHS[text.lower()]


def host(text: str) -> str:
    if not text.strip():
        raise ValueError("expected an address such as 127.0.0.1, 0.0.0.0 or ::1.")
    return text.strip()


def directory(text: str) -> Path:
    if not text.strip():
        raise ValueError("expected a directory's path.")
    path = Path(text).expanduser().absolute()
    if os.path.exists(path) and not os.path.isdir(path):  # pathlib raises where permissions forbid to look
        raise ValueError("expected a directory, but this is a file.")
    return path


def directory_or_off(text: str) -> Path | Literal["off"]:
    return "off" if text == "off" else directory(text)


def file(text: str) -> Path:
    if not text.strip():
        raise ValueError("expected a file's path.")
    return Path(text).expanduser().absolute()


def http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")) or " " in text:
        raise ValueError("expected a URL such as http://localhost:4318/v1/traces.")
    return text


def log_format(text: str) -> str | None:
    """The words of a switch count too."""
    if text in get_args(LogFormat):
        return text
    if text.lower() not in _TRUTHS:
        raise ValueError(f"expected one of {', '.join(get_args(LogFormat))}.")
    return "text" if _TRUTHS[text.lower()] else None


def remote_url(text: str) -> str:
    if not text.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("expected a URL such as redis://HOST:6379/0, rediss://HOST or unix://PATH.")
    return text


def split_keys(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def keys(text: str) -> tuple[str, ...]:
    found = split_keys(text)
    if not found:
        raise ValueError("there is no key in it. Leave it out for a server that asks for none.")
    return found


def key_file(text: str) -> KeyFile:
    path = Path(text).expanduser().absolute()
    return KeyFile(path, read_key_file(path))


def host_names(text: str) -> tuple[str, ...]:
    found = split_keys(text)
    if not found or any("/" in name or name.count(":") == 1 for name in found):
        raise ValueError("expected a host's name alone, such as gpu.example.com, without http:// and port.")
    if any("*" in name and name != "*" for name in found):
        raise ValueError("expected each host's whole name: * stands alone, for all hosts, not within a name.")
    return found


def origins(text: str) -> tuple[str, ...]:
    """Origins as browsers write them: in lower case, without the default port of their scheme."""
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


def rule_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(split_keys(text)))
    unknown = [name for name in names if name not in RULES]
    if unknown:
        raise ValueError(f"there is no rule {unknown[0]}. The rules are {', '.join(RULES)}.")
    return names


def model_names(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(split_keys(text)))
    if not found:
        raise ValueError("there is no name in it. Leave it out for MODEL's own name.")
    return found
