"""The slower tiers of the cache: host memory, disk, and a remote store."""

from .copies import Restore
from .opening import host_bytes, open_page_store, page_model
from .page_mover import PageMover, StepMoves
from .page_store import PageStore

__all__ = ["PageMover", "PageStore", "Restore", "StepMoves", "host_bytes", "open_page_store", "page_model"]
