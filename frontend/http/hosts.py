"""Decides which host names a server without keys answers to, and which web pages may send it requests.

A page can reach a local server in two ways. It can send the requests that browsers allow across origins,
which carry `Origin` or `Sec-Fetch-Site`. Or its own host name can come to resolve to this machine (DNS
rebinding): the browser then takes server and page for one origin, and `Host` has the page's name. A page does
not know a key, so a server with keys needs neither check.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from ...runtime.config import ServeConfig
from ...runtime.errors import RequestError

ANY_HOST = "*"
ANY_ORIGIN = "*"
MAX_SHOWN = 100  # characters of a host name that an error shows
METHODS = "GET, POST, DELETE"
READABLE = "x-request-id, retry-after"
"""Headers of an answer that a page may read, besides those that browsers always allow."""
PREFLIGHT_SECONDS = "600"


class KnownHosts:
    """The names and addresses of this server.

    A server on a loopback address has the loopback's names, the `--host` and the names behind it. On other
    addresses it also has the machine's name, all IP addresses and all names without a dot: a page of the
    internet has a name with a dot.
    """

    def __init__(self, listening: str, allowed: tuple[str, ...]) -> None:
        self._names = {_name(listening), *map(_name, allowed)}
        self._is_local = _is_loopback(_name(listening))
        if not self._is_local:
            self._names.add(_name(socket.gethostname()))

    def has(self, name: str) -> bool:
        if self.has_page(name):
            return True
        return not self._is_local and (_is_address(name) or "." not in name)

    def has_page(self, name: str) -> bool:
        """Whether pages of this host may send requests. Pages of other servers' IP addresses may not."""
        return ANY_HOST in self._names or name in self._names or _is_loopback(name)


def choose_hosts(config: ServeConfig) -> KnownHosts | None:
    """The hosts that requests may name; None, for any, if the server asks for a key and names no hosts."""
    if config.api_keys and not config.allowed_hosts:
        return None
    return KnownHosts(config.host, config.allowed_hosts)


class AllowedOrigins:
    """The origins that `--allowed-origin` names. `*` allows all origins."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)
        self._all = ANY_ORIGIN in self._origins

    def has(self, origin: str) -> bool:
        return bool(origin) and (self._all or origin in self._origins)

    def headers(self, origin: str) -> Mapping[str, str]:
        """The CORS headers of an answer to a page of `origin`, which is empty for other clients.

        Credentials of the browser, such as cookies, are never allowed: a key is sent by the page itself.
        """
        if not self._origins:
            return {}
        vary = {} if self._all else {"vary": "Origin"}
        if not self.has(origin):
            return vary
        allowed = ANY_ORIGIN if self._all else origin
        return {
            "access-control-allow-origin": allowed,
            "access-control-expose-headers": READABLE,
            **vary,
        }


def preflight_headers(sent: Mapping[str, str]) -> dict[str, str]:
    """The headers that allow what a preflight request asks for, with any header: clients send their own."""
    permissions = {"access-control-allow-methods": METHODS, "access-control-max-age": PREFLIGHT_SECONDS}
    if asked := sent.get("access-control-request-headers"):
        permissions["access-control-allow-headers"] = asked
    if sent.get("access-control-request-private-network") == "true":
        permissions["access-control-allow-private-network"] = "true"
    return permissions


def check_page(headers: Mapping[str, str], hosts: KnownHosts, origins: AllowedOrigins) -> RequestError | None:
    """The error for a request to an unknown host, or of a page that may not use the server."""
    host = headers.get("host", "")
    if host and not hosts.has(_host_name(host)):
        shown = _host_name(host)[:MAX_SHOWN]
        return RequestError(
            f"This server does not answer to the host name {shown!r}, which a web page may have made point "
            f"here. If it is a name of this server, start it with '--host ADDRESS,{shown}' or an --api-key.",
            status=403,
            code="host_not_allowed",
        )
    origin = headers.get("origin")
    if origin is None:
        is_foreign = headers.get("sec-fetch-site") == "cross-site"
    elif origins.has(origin):
        is_foreign = False
    else:
        page = _origin_name(origin)
        is_foreign = not page or not (hosts.has_page(page) or page == _host_name(host))
    if is_foreign:
        shown = repr(origin[:MAX_SHOWN]) if origin else "another site"
        return RequestError(
            f"A web page of {shown} may not use this server. If it should, start the server with "
            "'--allowed-origin ORIGIN', where ORIGIN is the page's, such as https://chat.example.com.",
            status=403,
            code="origin_not_allowed",
        )
    return None


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return _name(host[1:].partition("]")[0])
    return _name(host.partition(":")[0])


def _origin_name(origin: str) -> str:
    """The host name of an origin; empty for an opaque origin such as `null`."""
    try:
        return _name(urlsplit(origin).hostname or "")
    except ValueError:
        return ""


def _name(text: str) -> str:
    """The name in the form for comparison: without an IPv6 address's brackets and a full name's last dot."""
    return text.strip().strip("[]").lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    if _is_address(name):
        return ip_address(name).is_loopback
    return name == "localhost" or name.endswith(".localhost")
