"""The allocation of a request with a slot: pages, locks, and how far its tokens are computed.

The positions of a request's tokens, as half-open ranges:

    | range | its KV |
    |---|---|
    | [0, lock.matched) | was in the tree when the request started |
    | [lock.matched, min(planned, restore_end)) | is restored from the page store by a planned step |
    | [max(lock.matched, restore_end), planned) | is computed by a planned step |
    | [planned, restore_end) | is ready in the page store; a later step restores it |
    | [ready, prefill_end) | belongs to known tokens; later prefill chunks compute it |
    | [prefill_end, length) | belongs to sampled tokens; decode rows compute it one by one |
    | [length, length + sampling) | belongs to tokens that steps in flight may sample |

A planned step is done or in flight. `ready` is max(planned, restore_end), `length` is `Request.length`. While
rows in decode are in flight, `planned` and `sampling` are upper bounds (today exact, see messages/steps.py):
only the model process knows how many tokens a row has sampled, until `settle`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...radix_cache import Lock
from ..messages import NO_STATE
from .rank import InheritedRank


@dataclass(slots=True, eq=False)
class Allocation:
    """Everything that a request gets when it starts and gives back with its slot.

    The fields are grouped by the class that writes them.
    """

    slot: int
    lock: Lock  # its pages, and the matched prefix in the tree

    # StepPlanner writes these, but Results and Lifecycle change them when tokens are forced or a reply ends:
    prefill_end: int  # number of tokens known when the request started, or when tokens were last forced
    planned: int
    restore_end: int = 0
    sampling: int = 0  # tokens that steps after `discard_until_step` in flight sample at most
    last_step: int = 0  # number of the last step that names the request
    copy_step: int | None = None  # number of the step in flight that copies the partly matched page
    sent_pages: list[int] = field(default_factory=list)
    """number of pages of each page table that the model process knows"""
    is_set_up: bool = False  # the model process has the slot's sampling and grammar state
    known: int = 0  # tokens that the model process has for drafts, besides those that it samples
    # If the model has recurrent layers:
    state_at: int = 0  # the live state is the one after this many tokens once the planned steps have run
    load_state: int = NO_STATE  # the place from which the next row loads the live state
    stops: set[int] = field(default_factory=set)  # positions of branches, where chunks end for a checkpoint
    restored_place: int = NO_STATE  # the place of the checkpoint at `restore_end` until a step restores it

    # Results writes these:
    discard_until_step: int = 0  # number of the last step whose sampled token is discarded
    is_stalled: bool = (
        False  # its grammar's process has not answered yet, so no step may sample its next token
    )
    faulty: bool = False  # the request's KV led to NaN and must not be used again

    # PageSaver writes this:
    saved_pages: int = 0  # pages of the page table that were offered to the page store
    saved_state: int = 0  # position of the last checkpoint that was offered to it

    # Admission writes these:
    preempted: int = 0  # how often other prompts were started before the rest of this prompt
    preemptible: bool = True  # whether other prompts may start before the rest of this prompt
    inherited: list[InheritedRank] = field(default_factory=list)  # fewer tokens, better rank

    @property
    def prefilling(self) -> bool:
        return self.planned < self.prefill_end

    @property
    def restoring(self) -> bool:
        """Whether some pages or the state are still to be restored from the page store."""
        return self.planned < self.restore_end or self.restores_only_end

    @property
    def restores_only_end(self) -> bool:
        """Whether the state or windowed pages are still to be restored, without which no request can go on
        before `restore_end`."""
        return self.restored_place != NO_STATE or self.lock.lacks_windows

    @property
    def to_restore(self) -> int:
        """Number of tokens on pages that are still to be restored."""
        return max(0, self.restore_end - self.planned)

    @property
    def ready(self) -> int:
        """Number of leading tokens that no further step needs to compute."""
        return max(self.planned, self.restore_end)

    @property
    def has_forced(self) -> bool:
        """Whether some forced tokens are still to be computed."""
        return self.prefilling and self.discard_until_step > 0

    def take_new_pages(self) -> list[list[int]]:
        """Returns the parts of the page tables that the model process does not know, and counts them as sent:
        first of the layers that see all tokens, then of each windowed group."""
        windows = self.lock.windows
        starts = self.sent_pages or [0] * (1 + len(windows))
        self.sent_pages = [len(self.lock.pages), *(len(table.pages) for table in windows)]
        new_windows = [table.list_ids(start) for table, start in zip(windows, starts[1:], strict=True)]
        return [self.lock.pages[starts[0] :], *new_windows]

    @property
    def chunk_end(self) -> int:
        """Where the next chunk ends at the latest: where prefill ends, or before that for a checkpoint."""
        if self.lock.state is None:
            return self.prefill_end
        stops = (*self.stops, self.last_page_end, self.prefill_end)
        return min((stop for stop in stops if stop > self.planned), default=0)

    @property
    def last_page_end(self) -> int:
        """The last end of a page before the prompt's last token, which is always computed: from a checkpoint
        there the same prompt can start again."""
        return (self.prefill_end - 1) // self.lock.page_size * self.lock.page_size

    def count_left(self, length: int) -> int:
        """How many of a request's `length` tokens the model process has when the request ends. It may lack
        the last forced tokens; 0: no step has named the slot."""
        return length if self.is_set_up else self.known

    def inherit(self, new: InheritedRank) -> None:
        if any(each.rank <= new.rank and each.tokens >= new.tokens for each in self.inherited):
            return
        kept = [each for each in self.inherited if each.rank < new.rank or each.tokens > new.tokens]
        self.inherited = [*kept, new]

    def count_rewound(self) -> int:
        """The tokens that would be computed again if those that are being sampled were replaced."""
        if self.lock.state is None:
            return 0
        return self.planned - self.lock.newest_checkpoint(self.planned)[0]

    def stall(self) -> None:
        """Discards the tokens that are being sampled. No step names the request until `force`."""
        self.is_stalled = True
        self.sampling = 0
        self.discard_until_step = self.last_step

    def settle(self, planned_samples: int, count: int) -> None:
        """Replaces a row's upper bound on its sampled tokens by their number."""
        self.sampling -= planned_samples
        self.planned -= planned_samples - count

    def force(self, start: int, end: int) -> None:
        """Requires that tokens [start, end) be computed, and discards the tokens that are being sampled.

        Steps in flight may have computed KV of other tokens at these positions.
        """
        self.planned = min(self.planned, start)
        self.prefill_end = end
        self.is_stalled = False
        self.sampling = 0
        self.discard_until_step = self.last_step
        self.known = start if self.is_set_up else min(self.known, start)
        self.is_set_up = False
        self.sent_pages = []
