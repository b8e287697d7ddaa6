"""A request for stored objects, and the pages, answers and routes of all endpoints that have them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..core.work.caller import Caller
from ..http.apis import json_response
from ..http.body_kind import BodyKind, T
from ..http.http_service import HttpService
from ..http.operation import DescribedRoute, Operation
from ..http.tenants import caller_of, owner_of
from .records.paging import Page, PageQuery, make_page, parse_page_query


class HasHttp(Protocol):
    @property
    def http(self) -> HttpService: ...


MAX_METADATA = 16
"""Maximum pairs of the metadata of an object."""
S = TypeVar("S", bound=HasHttp)
U = TypeVar("U")


@dataclass(frozen=True)
class StoredRequest(Generic[S]):
    """A request for objects that are stored for its `owner`. `service` has their store."""

    service: S
    http_request: Request

    @property
    def owner(self) -> str:
        """The hash of the API key, empty without keys."""
        return owner_of(self.http_request.scope)

    @property
    def id(self) -> str:
        """The id in the path."""
        return str(self.http_request.path_params["id"])

    @property
    def caller(self) -> Caller:
        return caller_of(self.http_request, self.service.http.service.config)

    async def read_body(self, kind: BodyKind[T]) -> T:
        """Reads the request's body. Raises `RequestError` for a body that can't be served."""
        return await self.service.http.bodies.read(self.http_request, self.caller, kind)

    async def list_page(
        self,
        sizes: tuple[int, int],
        item: type[U],
        list_rows: Callable[[PageQuery], Awaitable[Sequence[tuple[str, bytes]]]],
    ) -> Page[U]:
        """The page that the query asks for. `sizes`: the usual number of items on a page, and the limit."""
        page = parse_page_query(self.http_request.query_params, *sizes)
        return make_page(await list_rows(page), page.limit, item)


class Deleted(Struct, kw_only=True):
    """The answer to the deletion of an object."""

    id: str
    object: Literal["response", "conversation.deleted", "file"]
    deleted: Literal[True] = True


Handler: TypeAlias = Callable[[StoredRequest[S]], Awaitable[Response | Struct | bytes]]
"""A function that answers a request with a struct, its JSON, or a response that is not JSON."""
HandlerRow: TypeAlias = tuple[str, str, Handler[S], Operation]
"""An HTTP method, a path, and the handler and description of its endpoint."""


def make_routes(service: S, handlers: Sequence[HandlerRow[S]]) -> list[Route]:
    return [
        DescribedRoute(method, path, _make_endpoint(service, handler), operation)
        for method, path, handler, operation in handlers
    ]


def _make_endpoint(service: S, handler: Handler[S]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        found = await handler(StoredRequest(service, request))
        return found if isinstance(found, Response) else json_response(found)

    return answer
