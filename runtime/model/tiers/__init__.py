"""The cache's slower tiers: host memory, and disk behind it."""

from .opening import open_page_store, page_model
from .page_store import PageStore
from .transfers import Arrive, Transfers

__all__ = ["Arrive", "PageStore", "Transfers", "open_page_store", "page_model"]
