"""The OpenAPI 3.1 document of a server, made from the declarations beside its routes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from ...http.apis import Api
from ...http.operation import DescribedRoute, Operation
from .schemas import Json, Schemas

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_ABOUT = (
    "Fields that this document does not list are ignored with a warning in the server's log, unless they "
    "look like a misspelt constraint. A null field counts as absent."
)

STATUSES: Mapping[int, str] = {
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
"""The meanings of error statuses."""
_FOR_ALL = (400, 403, 408, 414, 431, 500, 503)
_WITH_BODY = (413, 415)


@dataclass(frozen=True)
class Endpoint:
    """A described route of an API."""

    api: Api
    route: DescribedRoute

    @property
    def operation(self) -> Operation:
        return self.route.operation

    @property
    def method(self) -> str:
        (method,) = (self.route.methods or set()) - {"HEAD"}
        return method.lower()

    @property
    def path(self) -> str:
        """The path as OpenAPI writes it, without the converters of its parameters."""
        return _PARAMETER.sub(r"{\1}", self.route.path)


def document_json(endpoints: Sequence[Endpoint], version: str, open_paths: Collection[str] | None) -> bytes:
    """The document of some endpoints. `open_paths` need no key; None if no path needs one."""
    return msgspec.json.encode(_Document(endpoints, version, open_paths).value())


class _Document:
    """The parts of the document."""

    def __init__(
        self, endpoints: Sequence[Endpoint], version: str, open_paths: Collection[str] | None
    ) -> None:
        self._endpoints = endpoints
        self._version = version
        self._open_paths = open_paths
        operations = [each.operation for each in endpoints]
        bodies = [kind for each in operations for kind in (each.body, *each.other_bodies)]
        replies = [each.reply for each in operations] + [each.api.error for each in endpoints]
        events = [kind for each in operations for kind in each.events]
        self._schemas = Schemas(_without_none(bodies), [*_without_none(replies), *events])

    def value(self) -> Json:
        paths: dict[str, dict[str, list[Endpoint]]] = {}
        for each in self._endpoints:
            paths.setdefault(each.path, {}).setdefault(each.method, []).append(each)
        document: Json = {
            "openapi": "3.1.0",
            "info": {"title": "Arbora", "version": self._version, "description": _ABOUT},
            "servers": [{"url": "/"}],
            "tags": [{"name": name} for name in dict.fromkeys(each.api.name for each in self._endpoints)],
            "paths": {
                path: {method: self._operation(same) for method, same in methods.items()}
                for path, methods in paths.items()
            },
            "components": {"schemas": self._schemas.components},
        }
        if self._open_paths is not None:
            document["components"]["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        return document

    def _operation(self, same: Sequence[Endpoint]) -> Json:
        """The operation of one path and method. Several APIs may share it, told apart by a header."""
        first, operation = same[0], same[0].operation
        needs_key = self._open_paths is not None and first.path not in self._open_paths
        result: Json = {
            "operationId": _operation_id(first),
            "summary": operation.summary,
            "tags": [each.api.name for each in same],
        }
        if parameters := [*self._parameters(same)]:
            result["parameters"] = parameters
        if operation.body is not None:
            body: Json = {"schema": self._any_of([operation.body, *operation.other_bodies])}
            if operation.example:
                body["example"] = operation.example
            result["requestBody"] = {"required": True, "content": {operation.body_type: body}}
        result["responses"] = self._responses(same, needs_key=needs_key)
        if needs_key:
            result["security"] = [{"bearer": []}, {"key": []}]
        return result

    def _parameters(self, same: Sequence[Endpoint]) -> Iterator[Json]:
        for name in _PARAMETER.findall(same[0].route.path):
            yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for each in same:
            for name, kind in each.operation.query.items():
                yield {"name": name, "in": "query", "schema": msgspec.json.schema(kind)}
        for each in same:
            if each.api.shares(each.route.path):
                what = f"gives the reply the form of {each.api.name}'s API"
                name = each.api.header.decode()
                yield {"name": name, "in": "header", "description": what, "schema": {"type": "string"}}

    def _responses(self, same: Sequence[Endpoint], *, needs_key: bool) -> Json:
        operation = same[0].operation
        success: Json = {"description": "The reply, or its events." if operation.events else "The reply."}
        content = self._content(same)
        if content:
            success["content"] = content
        responses: Json = {str(operation.status): success}
        statuses = {
            status
            for each in same
            for status in error_statuses(each.operation, each.path, each.api.statuses, needs_key=needs_key)
        }
        errors = {"application/json": {"schema": self._any_of([each.api.error for each in same])}}
        for status in sorted(statuses):
            responses[str(status)] = {"description": STATUSES[status], "content": errors}
        return responses

    def _content(self, same: Sequence[Endpoint]) -> Json:
        operation = same[0].operation
        content: Json = {}
        replies = _without_none([each.operation.reply for each in same])
        if replies:
            content[operation.reply_type] = {"schema": self._any_of(replies)}
        elif operation.reply_type and not operation.events:
            content[operation.reply_type] = {"schema": {"type": "string"}}
        if operation.events:
            events = self._any_of([*operation.events, same[0].api.error])
            content[operation.events_type] = {"schema": events}
        return content

    def _any_of(self, kinds: Sequence[type[Struct] | None]) -> Json:
        schemas = [self._schemas.of(kind) for kind in dict.fromkeys(_without_none(kinds))]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _without_none(kinds: Sequence[type[Struct] | None]) -> list[type[Struct]]:
    return [kind for kind in kinds if kind is not None]


def _operation_id(endpoint: Endpoint) -> str:
    words = re.findall(r"\w+", endpoint.path)
    return "_".join([endpoint.method, *words])


def error_statuses(
    operation: Operation, path: str, mapped: Mapping[int, int], *, needs_key: bool
) -> list[int]:
    """The statuses of the errors that the endpoint may answer with. `mapped` are those of its API.

    A status stays beside the one that it is mapped to: connections are refused before an API is known.
    """
    found: set[int] = {*_FOR_ALL, *operation.errors}
    if operation.body is not None:
        found.update(_WITH_BODY)
    if "{" in path or (operation.body is not None and "model" in operation.body.__struct_fields__):
        found.add(404)
    if needs_key:
        found.add(401)
    return sorted(found | {mapped[status] for status in found if status in mapped})
