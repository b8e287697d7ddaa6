"""The slower tiers of the cache: host memory, disk, and a remote store."""

from .opening import host_bytes, open_page_store, page_model
from .page_store import PageStore
from .restores import Restore
from .transfers import Transfers

__all__ = ["PageStore", "Restore", "Transfers", "host_bytes", "open_page_store", "page_model"]
