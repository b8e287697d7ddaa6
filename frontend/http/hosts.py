"""Decides which host names a server without keys answers to, and which web pages may send it requests.

A page can reach a local server in two ways. It can send the requests that browsers allow across origins,
which carry `Origin` or `Sec-Fetch-Site`. Or its own host name can come to resolve to this machine (DNS
rebinding): the browser then takes server and page for one origin, and `Host` has the page's name. A page does
not know a key, so a server with keys needs neither check.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from ...runtime.config import ServeConfig
from ...runtime.errors import RequestError
from .cors import AllowedOrigins
from .faces import Faces

ANY_HOST = "*"
MOST_SHOWN = 100  # characters of a name


class HostGuard:
    """An ASGI application that calls another one for requests to a known host that no foreign page has
    sent."""

    def __init__(self, app: ASGIApp, faces: Faces, hosts: KnownHosts, origins: AllowedOrigins) -> None:
        self._app = app
        self._faces = faces
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        error = refusal(headers, self._hosts, self._origins)
        answer = self._app if error is None else self._faces.error_response(scope, error)
        await answer(scope, receive, send)


class KnownHosts:
    """The names and addresses of this server.

    On a loopback address they are those of the loopback, the `--host` and the names behind it. On other
    addresses they are also the machine's name, all IP addresses and all names without a dot: a page of the
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
        """Whether pages of this host may send requests. Not every IP address may: some are other servers'."""
        return ANY_HOST in self._names or name in self._names or _is_loopback(name)


def hosts_to_check(config: ServeConfig) -> KnownHosts | None:
    """The hosts to check; None for a server that asks for a key, unless its host names are given."""
    if config.api_keys and not config.allowed_hosts:
        return None
    return KnownHosts(config.host, config.allowed_hosts)


def refusal(headers: dict[str, str], hosts: KnownHosts, origins: AllowedOrigins) -> RequestError | None:
    """The error for a request to an unknown host, or of a page that may not use the server."""
    host = headers.get("host", "")
    if host and not hosts.has(_host_name(host)):
        shown = _host_name(host)[:MOST_SHOWN]
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
        shown = repr(origin[:MOST_SHOWN]) if origin else "another site"
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
