"""The prefix cache: a radix tree over token sequences whose nodes own pages of KV cache."""

from .eviction import EvictionPolicy, LeastRecentlyUsed
from .lease import Copy, Lease
from .packed import common_tokens
from .prefix_cache import CacheStats, PrefixCache
from .reuse_rate import ReuseRate

__all__ = [
    "CacheStats",
    "Copy",
    "EvictionPolicy",
    "Lease",
    "LeastRecentlyUsed",
    "PrefixCache",
    "ReuseRate",
    "common_tokens",
]
