"""The interface of drafters, which guess the tokens that follow those of slots."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ....kernels.common.drafts import Drafts
from ...messages import SlotEnd, SlotSetup


class Drafter(Protocol):
    """Between two steps, in this order: `add`, `end`, `set_up`, `propose`."""

    def set_up(self, setup: SlotSetup) -> None:
        """Notes the tokens of a slot's request, up to those that it samples."""
        ...

    def add(self, slots: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        """Appends each of the sampled tokens [n] to the text of its slot [n]; a slot may get several."""
        ...

    def end(self, end: SlotEnd) -> None:
        """Notes that a slot's reply is complete, so that others may draft from it."""
        ...

    def forget(self, scope: str, namespace: str | None) -> None:
        """Forgets the replies of `namespace`, or of all namespaces in `scope`."""
        ...

    def propose(self, slots: NDArray[np.int32], most: NDArray[np.int32]) -> Drafts:
        """The drafts of distinct slots [n], at most `most` [n] of each."""
        ...
