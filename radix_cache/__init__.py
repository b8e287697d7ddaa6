"""The prefix cache: a radix tree over token sequences whose nodes own pages of KV cache."""

from .cache_reports import CachedPrefix, Divergence, TreeNode, TreeWalk
from .eviction import EvictionPolicy
from .gittins import GittinsPolicy
from .leases import Lease, Leases
from .lock import Copy, Lock, PrefixMatch
from .packed import KEY_BYTES, common_tokens, split_keys
from .page_keys import KeyedPages, KeyedState, Missing, TreeKeys
from .path_windows import PathWindows
from .prefix_cache import CacheStats, Dropped, FullWindow, PrefixCache
from .windows import Reach, WindowGroup

__all__ = [
    "KEY_BYTES",
    "CacheStats",
    "CachedPrefix",
    "Copy",
    "Divergence",
    "Dropped",
    "EvictionPolicy",
    "FullWindow",
    "GittinsPolicy",
    "KeyedPages",
    "KeyedState",
    "Lease",
    "Leases",
    "Lock",
    "Missing",
    "PathWindows",
    "PrefixCache",
    "PrefixMatch",
    "Reach",
    "TreeKeys",
    "TreeNode",
    "TreeWalk",
    "WindowGroup",
    "common_tokens",
    "split_keys",
]
