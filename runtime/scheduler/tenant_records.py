"""A bounded number of records, shared fairly between tenants."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TenantRecords(Generic[K, V]):
    """Holds at most `most` records. Beyond that, the tenant with the most records loses its oldest one.

    So a tenant with at most its even share of `most` loses nothing to the others.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, OrderedDict[K, V]] = {}  # by tenant, the oldest record first
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def get(self, tenant: str, key: K) -> V | None:
        records = self._of.get(tenant)
        return None if records is None else records.get(key)

    def put(self, tenant: str, key: K, value: V) -> V | None:
        """Adds or replaces a record, which becomes the tenant's newest; returns the record lost for it."""
        self.pop(tenant, key)
        self._of.setdefault(tenant, OrderedDict())[key] = value
        self._num += 1
        if self._num <= self._most:
            return None
        largest = max(self._of, key=lambda each: len(self._of[each]))
        return self.pop(largest, next(iter(self._of[largest])))

    def pop(self, tenant: str, key: K) -> V | None:
        """Removes and returns a record; None if there is none."""
        records = self._of.get(tenant)
        if records is None or key not in records:
            return None
        value = records.pop(key)
        self._num -= 1
        if not records:
            del self._of[tenant]
        return value
