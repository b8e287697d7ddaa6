"""Tokenizer ↔ scheduler: questions about the cache, pins and drops. Each `query` gets one answer.

A scope is a prefix of namespace names: the namespaces that one client may see. The structs that are no
messages are the JSON values of HTTP answers. The scheduler gives full names of namespaces and no texts; the
tokenizer process replaces these names, and adds the texts and the bytes of a pin.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from .base import Message, StoreCounts, Tokens


class QueryCache(Message):
    """Report on the namespaces in `scope`. Only tokens of the namespace `own` are shown."""

    client: int
    query: int
    scope: str
    own: str
    tenant: str | None = None  # tenant whose leases are listed; None: leases of all tenants
    nodes: bool = False  # report the nodes of the tree, not the top prefixes


class DropCache(Message):
    """Evict the unlocked pages of `namespace`, or of all namespaces in `scope`, from all tiers."""

    client: int
    query: int
    scope: str
    namespace: str | None


class CheckPin(Message):
    """Ask whether the full pages of `tokens` could be pinned once they are cached, as far as is known now."""

    client: int
    query: int
    scope: str
    namespace: str
    tokens: Tokens


class PinPrefix(Message):
    """Pin the full pages of `tokens`, which are cached."""

    client: int
    query: int
    pin: str  # a new name for the pin; a prefix that is pinned already keeps its name
    scope: str  # scope whose pins share a quota
    namespace: str
    tokens: Tokens
    ttl_s: float


class UnpinPrefix(Message):
    client: int
    query: int
    pin: str
    scope: str


class ExplainPrompt(Message):
    """Report how much of `tokens` is cached, and what the cache has instead of the rest.

    With `ends`, ascending numbers of tokens, also report the nodes that the prompt goes through, and for each
    end the number of other branches that have the prompt's tokens up to it.
    """

    client: int
    query: int
    namespace: str
    tokens: Tokens
    ends: list[int] = []


class QueryNode(Message):
    """Read the tokens of one node in the namespace `own`."""

    client: int
    query: int
    scope: str
    own: str
    page: int  # id of the node's first page, which names the node


class TopPrefix(Struct):
    """`idle`: tokens that the cache has served or stored since the prefix's last hit. `text` is the
    beginning of the prefix, `end` its end."""

    namespace: str
    tokens: int
    hits: int
    idle: int
    text: str | None
    end: str | None


class Pin(Struct):
    """`expires_at` is in seconds since 1970."""

    id: str
    namespace: str
    tokens: int
    pages: int
    expires_at: float
    bytes: int


class ShownLease(Struct):
    """`ends_at` is in seconds since 1970; under memory pressure the lease ends earlier."""

    kind: str
    key: str
    namespace: str
    tokens: int
    pages: int
    ends_at: float


class HitRate(Struct, kw_only=True):
    """Cached tokens of all tokens looked up; `rate` is null before the first prompt."""

    rate: float | None
    prompt_tokens: int
    cached_tokens: int
    requests: int | UnsetType = UNSET


class PagesInTiers(Struct):
    """In which tiers an evicted node's pages are. `pages` were looked up: `host` of them are in host memory,
    and `disk` of the others are on disk."""

    pages: int
    host: int
    disk: int


class CacheNode(Struct):
    """A root (without `parent` and tokens), a node with `pages`, or an evicted node (neither root nor pages).

    `id` names a node with pages. `parent` is an index in the list of nodes. `idle` is the number of tokens
    that the cache has served or stored since its last use. `requests` (running ones), `pins` and `leases` use
    the node or one below it. `waiting` counts the waiting requests that would use it now; at most 256 are
    looked up. `folded` is the number of nodes below it that the list leaves out. `text` is the node's
    beginning, null for a node of another client. `label` are the first words of the message in which it
    begins, or those around its beginning if that is far away, and `role` is the message's, null if it is not
    known. `stored` says where an evicted node's pages are. It is null
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
    stored: PagesInTiers | None
    role: str | None = None
    label: str | None = None


class PathNode(Struct):
    """A node that a prompt goes through: its id in `GET /cache/tree`, null if it is evicted, and all its
    tokens. The prompt may end in the last one."""

    id: int | None
    tokens: int


class CacheRoot(Struct):
    """The root of a namespace: its index in the list of nodes."""

    node: int
    namespace: str
    own: bool


class CacheReport(Message):
    """Used, cached and free pages add up to the total. Hits count only requests that read the cache."""

    query: int
    pages_total: int
    pages_free: int
    pages_used: int
    pages_cached: int
    pages_pinned: int  # pinned pages of the scope; they also count as used
    pages_pinnable: int  # quota of the scope in pages
    pages_leased: int  # pages that the scope's tenants lease
    hits: HitRate  # hit rate since the start
    recent_hits: HitRate
    evicted_pages: int
    store: StoreCounts
    namespaces: dict[str, int]  # pages of the largest namespaces by name
    prefixes: list[tuple[TopPrefix, Tokens, Tokens]]
    """each prefix with its first and last tokens, which are empty unless the namespace is the client's own"""
    pins: list[Pin]
    leases: list[ShownLease]  # the leases that end last, without pins
    roots: list[CacheRoot] = []
    nodes: list[tuple[CacheNode, Tokens, Tokens]] = []
    """parents before their children, each with the last tokens before it and its first ones, which are empty
    in the same cases
    """
    is_complete: bool = True  # False: the tree has more nodes than a report may visit


class NodeTokens(Message):
    query: int
    tokens: Tokens | None  # first tokens of the node; None: there is no such node in the client's namespace


class CacheDropped(Message):
    query: int
    pages: int  # pages dropped from the KV cache
    tokens: int  # tokens dropped from the KV cache
    host_pages: int = 0
    disk_pages: int | None = 0  # pages dropped from disk; None: the disk failed
    remote_pages: int | None = 0  # pages dropped from the remote store; None: it failed and keeps its pages


class PromptExplained(Message):
    query: int
    matched: int  # leading tokens from which a request could start
    remembered: int  # leading tokens in the KV cache, or evicted from it recently
    behind: Tokens  # some tokens that follow the `paged` ones in the cache
    paged: int = 0  # leading tokens in the KV cache; more than `matched` if no checkpoint is there
    nodes: list[PathNode] = []
    shared_by: list[int] = []  # for each of the `ends`, other branches that have the same tokens up to it


class PinFits(Message):
    query: int


class PrefixPinned(Message):
    """The pin that was made, renewed or ended."""

    query: int
    pin: Pin


class QueryRefused(Message):
    query: int
    status: int  # HTTP status
    message: str
    param: str | None  # the request's field at fault
    code: str
