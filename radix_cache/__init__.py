"""The prefix cache: a radix tree over token sequences whose nodes own pages of KV cache."""

from .cache_reports import CachedPrefix, Divergence, TreeNode, TreeWalk
from .eviction import EvictionPolicy
from .gittins import GittinsPolicy
from .leases import Lease, Leases
from .lock import Copy, Lock, PrefixMatch
from .packed import KEY_BYTES, common_tokens, split_keys
from .page_allocator import list_runs
from .page_keys import NO_KEY, KeyedPages, KeyedState, Missing, NeededKeys, PageKeys, TreeKeys
from .path_windows import PathWindows
from .prefix_cache import CacheStats, Dropped, PrefixCache
from .tree_changes import NO_PAGE, ChangeFeed, PagesRemoved, PagesStored, TreeChange
from .windowed_groups import FullWindow
from .windows import Reach, WindowGroup

__all__ = [
    "KEY_BYTES",
    "NO_KEY",
    "NO_PAGE",
    "CacheStats",
    "CachedPrefix",
    "ChangeFeed",
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
    "NeededKeys",
    "PageKeys",
    "PagesRemoved",
    "PagesStored",
    "PathWindows",
    "PrefixCache",
    "PrefixMatch",
    "Reach",
    "TreeChange",
    "TreeKeys",
    "TreeNode",
    "TreeWalk",
    "WindowGroup",
    "common_tokens",
    "list_runs",
    "split_keys",
]
