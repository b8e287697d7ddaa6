"""The slower tiers of the cache: host memory, disk, and a remote store."""

from .copies import Restore
from .opening import host_bytes, open_page_store, page_model
from .page_mover import PageMover, StepMoves
from .page_store import PageStore
from .prefill_peers import PrefillPeers
from .prefill_server import PrefillServer

__all__ = [
    "PageMover",
    "PageStore",
    "PrefillPeers",
    "PrefillServer",
    "Restore",
    "StepMoves",
    "host_bytes",
    "open_page_store",
    "page_model",
]
