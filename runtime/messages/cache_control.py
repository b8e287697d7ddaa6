"""Tokenizer ↔ scheduler: questions about the cache, pins and drops. Each `query` gets one answer.

A scope is a prefix of namespace names: the namespaces that one client may see.
"""

from __future__ import annotations

from .base import Message, Part, StoreCounts, Tokens


class QueryCache(Message):
    """Report on the namespaces in `scope`. Tokens are shown of the namespace `own` alone."""

    client: int
    query: int
    scope: str
    own: str
    tenant: str | None = None  # whose leases are listed; None: all tenants'


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
    pin: str  # a new name; a prefix that is pinned already keeps its name
    scope: str  # all its pins share a quota
    namespace: str
    tokens: Tokens
    ttl_s: float


class UnpinPrefix(Message):
    client: int
    query: int
    pin: str
    scope: str


class ExplainPrompt(Message):
    """Report how much of `tokens` is cached, and what the cache has instead of the rest."""

    client: int
    query: int
    namespace: str
    tokens: Tokens


class QueryTree(Message):
    """Report on the largest branches of the namespaces in `scope`, or on the tokens of one node of `own`."""

    client: int
    query: int
    scope: str
    own: str  # tokens are shown of this namespace alone
    page: int | None = None  # the first page of the node; None: all branches


class CachedPrefix(Part):
    namespace: str
    head: Tokens  # first tokens; empty unless the namespace is the client's own
    tail: Tokens  # last tokens, in the same way
    tokens: int
    hits: int  # requests that began with it
    idle: int  # accesses since its last use: tokens matched or computed, and releases


class PinnedPrefix(Part):
    pin: str
    namespace: str
    tokens: int
    pages: int
    expires_at: float  # seconds since 1970


class LeasedPrefix(Part):
    kind: str
    key: str
    namespace: str
    tokens: int
    pages: int
    ends_at: float  # seconds since 1970


class CacheReport(Message):
    """Used, cached and free pages add up to the total. Prompt tokens are of requests that read the cache."""

    query: int
    pages_total: int
    pages_free: int
    pages_used: int
    pages_cached: int
    pages_pinned: int  # of the scope; among the used pages
    pages_pinnable: int  # quota of the scope
    prompt_tokens: int  # since the start
    cached_tokens: int  # those of `prompt_tokens` that were found in the cache
    recent_requests: int
    recent_prompt_tokens: int  # tokens of the `recent_requests`
    recent_cached_tokens: int
    evicted_pages: int
    store: StoreCounts
    namespaces: dict[str, int]  # pages of the largest ones by name
    prefixes: list[CachedPrefix]
    pins: list[PinnedPrefix]
    leases: list[LeasedPrefix] = []  # those that end last, except pins
    pages_leased: int = 0  # pages that the scope's tenants lease


class PagesInTiers(Part):
    """Where the pages of an evicted node are. Pages in neither tier are lost or in the remote tier, which is
    not asked."""

    pages: int  # that were looked up
    host: int
    disk: int  # those that are not in host memory


class TreeNode(Part):
    """A node, a root, or an evicted node. Requests, pins and leases count at every node that they use. A
    waiting request counts at every node that it would use now; if nothing matches, at the root alone."""

    page: int | None  # id of its first page, which names it; None: a root, or evicted
    parent: int | None  # index among the nodes; None: a root
    namespace: str
    head: Tokens  # first tokens; empty unless the namespace is the client's own
    tokens: int
    pages: int
    hits: int  # requests that matched it after the one that created it
    idle: int  # accesses since its last use
    requests: int  # running ones
    waiting: int  # of at most 256 waiting requests
    pins: int
    leases: int
    tokens_below: int  # tokens of its descendants
    folded: int  # descendants that the report leaves out
    stored: PagesInTiers | None = (
        None  # where an evicted node's pages are; None if the page store has not answered in time
    )


class TreeReport(Message):
    query: int
    nodes: list[TreeNode]  # parents before their children
    is_complete: bool = True  # otherwise the tree has more nodes than a report may count
    tokens: Tokens | None = None  # of the node that was asked for; None: it is not in the client's namespace


class CacheDropped(Message):
    query: int
    pages: int  # in the KV cache
    tokens: int  # in the KV cache
    host_pages: int = 0
    disk_pages: int | None = 0  # None: the disk failed
    remote_pages: int | None = 0  # None: the remote store could not be reached and still has its pages


class PromptExplained(Message):
    query: int
    matched: int  # leading tokens in the KV cache
    remembered: int  # leading tokens in the KV cache, or evicted from it lately
    behind: Tokens  # some that follow the matched ones in the cache


class PinFits(Message):
    query: int


class PrefixPinned(Message):
    """The pin that was made, renewed or ended."""

    query: int
    pin: PinnedPrefix


class QueryRefused(Message):
    query: int
    status: int  # HTTP
    message: str
    param: str | None  # the field at fault
    code: str
