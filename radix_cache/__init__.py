"""The prefix cache: a radix tree over token sequences whose nodes own pages of KV cache."""

from .eviction import EvictionPolicy, LeastRecentlyUsed
from .lease import Copy, Lease
from .packed import common_tokens
from .popular import Prefix
from .prefix_cache import CacheStats, Dropped, PrefixCache
from .reuse_rate import ReuseRate

__all__ = [
    "CacheStats",
    "Copy",
    "Dropped",
    "EvictionPolicy",
    "Lease",
    "LeastRecentlyUsed",
    "Prefix",
    "PrefixCache",
    "ReuseRate",
    "common_tokens",
]
