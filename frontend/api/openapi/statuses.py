"""The error statuses of an endpoint, and their meanings."""

from __future__ import annotations

from collections.abc import Mapping

from ...http.operation import Operation

TEXTS: Mapping[int, str] = {
    400: "A field is wrong or can't be served; the error names it.",
    401: "There is no valid API key.",
    403: "The host name or web page is not allowed.",
    404: "The thing that the path or a field names does not exist.",
    408: "The request was not complete in time.",
    409: "The request does not fit the present state of the server.",
    413: "The body is too large.",
    414: "The URL is too long.",
    415: "The body is compressed, or not of the type that the endpoint takes.",
    426: "The path is for WebSockets, and the request does not ask for one.",
    429: "Too many requests wait. The header `Retry-After` says when to try again.",
    431: "The headers are too large.",
    500: "The server has a fault.",
    503: "The server can't take the request now. The header `Retry-After` says when to try again.",
    504: "The reply was not complete within the server's time limit.",
    507: "Files and batches have no space left.",
    529: "The server can't take the request now. The header `Retry-After` says when to try again.",
}
_ALL = (400, 403, 408, 414, 431, 500, 503)
_WITH_BODY = (413, 415)


def error_statuses(
    operation: Operation, path: str, mapped: Mapping[int, int], *, needs_key: bool
) -> list[int]:
    """The statuses of the errors that the endpoint may answer with. `mapped` are those of its API.

    A status stays beside the one that it is mapped to: connections are refused before an API is known.
    """
    found: set[int] = {*_ALL, *operation.errors}
    if operation.body is not None:
        found.update(_WITH_BODY)
    if "{" in path or (operation.body is not None and "model" in operation.body.__struct_fields__):
        found.add(404)
    if needs_key:
        found.add(401)
    return sorted(found | {mapped[status] for status in found if status in mapped})
