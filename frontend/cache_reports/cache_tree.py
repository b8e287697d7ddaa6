"""GET /cache/tree and /cache/tree/ID: the largest branches of the prefix tree, and the text of a node."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import RequestError
from ...runtime.messages import PagesInTiers, QueryTree, Tokens, TreeNode, TreeReport
from ..core.prepare import cache_namespace
from ..core.service import Service
from ..core.validation import check_salt
from ..http.http_service import HttpService
from ..http.tenants import cache_scope, caller_of, shown_namespace
from .cache_endpoints import ask_scheduler, read_salt

HEAD_CHARACTERS = 80


class StoredPages(Struct):
    """In which tiers an evicted node's pages are. `pages` were looked up: `host` of them are in host memory,
    and `disk` of the others are on disk."""

    pages: int
    host: int
    disk: int


class ShownNode(Struct):
    """A root (without `parent` and tokens), a node with `pages`, or an evicted node (neither root nor pages).

    `id` names a node with pages. `parent` is an index in the list of nodes. `idle` is the number of tokens
    that the cache has served or stored since its last use. `requests` (running ones), `pins` and `leases` use
    the node or one below it. `waiting` counts the waiting requests that would use it now; at most 256 are
    looked up. `folded` is the number of nodes below it that the list leaves out. `text` is the node's
    beginning, null for a node of another client. `stored` says where an evicted node's pages are. It is null
    for other nodes, without tiers, and if they did not answer within a second.
    """

    id: int | None
    parent: int | None
    tokens: int
    pages: int
    hits: int
    idle: int
    requests: int
    waiting: int
    pins: int
    leases: int
    tokens_below: int
    folded: int
    text: str | None
    stored: StoredPages | None


class ShownRoot(Struct):
    """The root of a namespace: its index in the list of nodes."""

    node: int
    namespace: str
    own: bool


class CacheTree(Struct):
    """`is_complete`: the list or the `folded` of its nodes counts every node of the tree."""

    page_tokens: int
    is_complete: bool
    roots: list[ShownRoot]
    nodes: list[ShownNode]


class NodeText(Struct):
    """The beginning of a node's text, with the number of its tokens."""

    id: int
    tokens: int
    text: str


async def show_tree(http: HttpService, request: Request) -> Response:
    service = http.service
    tree_query = _make_query(service, request)
    page_tokens = service.engine.check_serving().page_size
    report = await ask_scheduler(service, TreeReport, lambda query: replace(tree_query, query=query))
    decode = None if _is_shared(service, tree_query.own) else _make_decoder(service)
    caller = caller_of(request, service.config)
    tree = await service.work.call(caller, _show_tree, report, tree_query.own, page_tokens, decode)
    return _json(tree)


async def show_node(http: HttpService, request: Request) -> Response:
    service = http.service
    tree_query = _make_query(service, request)
    given: str = request.path_params["id"]
    if given.isascii() and given.isdigit() and len(given) < 10 and not _is_shared(service, tree_query.own):
        page = int(given)
        report = await ask_scheduler(
            service, TreeReport, lambda query: replace(tree_query, query=query, page=page)
        )
        if report.tokens is not None:
            caller = caller_of(request, service.config)
            text = await service.work.call(caller, _make_decoder(service), report.tokens)
            return _json(NodeText(page, len(report.tokens) // 4, text))
    raise RequestError(
        f"There is no node {given[:20]} in your namespace: it may have been evicted or split, or several API "
        "keys share the namespace. GET /cache/tree lists the present nodes; both need the same cache_salt.",
        status=404,
        param="id",
        code="node_not_found",
    )


def _make_query(service: Service, request: Request) -> QueryTree:
    service.engine.check_serving()
    salt = read_salt(request)
    check_salt(salt)
    scope = cache_scope(request, service.config)
    return QueryTree(service.engine.client, 0, scope, cache_namespace(scope, salt))


def _is_shared(service: Service, own: str) -> bool:
    """Whether several API keys share the namespace, so that none of them sees its texts."""
    return own == "" and service.config.has_several_keys


def _make_decoder(service: Service) -> Callable[[Tokens], str]:
    return lambda tokens: service.tokenizer.decode(tokens, skip_special_tokens=False)


def _show_tree(
    report: TreeReport, own: str, page_tokens: int, decode: Callable[[Tokens], str] | None
) -> CacheTree:
    roots = [
        ShownRoot(index, shown_namespace(node.namespace), node.namespace == own)
        for index, node in enumerate(report.nodes)
        if node.parent is None
    ]
    nodes = [_show_node(node, own, decode) for node in report.nodes]
    return CacheTree(page_tokens, report.is_complete, roots, nodes)


def _show_node(node: TreeNode, own: str, decode: Callable[[Tokens], str] | None) -> ShownNode:
    is_shown = decode is not None and node.namespace == own and node.parent is not None
    return ShownNode(
        id=node.page,
        parent=node.parent,
        tokens=node.tokens,
        pages=node.pages,
        hits=node.hits,
        idle=node.idle,
        requests=node.requests,
        waiting=node.waiting,
        pins=node.pins,
        leases=node.leases,
        tokens_below=node.tokens_below,
        folded=node.folded,
        text=decode(node.head)[:HEAD_CHARACTERS] if decode is not None and is_shown else None,
        stored=_show_stored(node.stored),
    )


def _show_stored(found: PagesInTiers | None) -> StoredPages | None:
    return None if found is None else StoredPages(found.pages, found.host, found.disk)


def _json(value: Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
