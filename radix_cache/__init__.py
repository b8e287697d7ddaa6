"""The prefix cache: a radix tree over token sequences whose nodes own pages of KV cache."""

from .cache_reports import Divergence
from .eviction import EvictionPolicy, LeastRecentlyUsed
from .gittins import GittinsPolicy
from .leases import Lease, Leases
from .lock import Copy, Lock
from .outline import Outline, OutlinedNode
from .packed import KEY_BYTES, common_tokens, split_keys
from .page_keys import KeyedPages, Missing
from .prefix_cache import CacheStats, Dropped, PrefixCache, PrefixMatch
from .top_prefixes import Prefix

__all__ = [
    "KEY_BYTES",
    "CacheStats",
    "Copy",
    "Divergence",
    "Dropped",
    "EvictionPolicy",
    "GittinsPolicy",
    "KeyedPages",
    "Lease",
    "Leases",
    "LeastRecentlyUsed",
    "Lock",
    "Missing",
    "Outline",
    "OutlinedNode",
    "Prefix",
    "PrefixCache",
    "PrefixMatch",
    "common_tokens",
    "split_keys",
]
