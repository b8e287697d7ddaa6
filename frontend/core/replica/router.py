"""Chooses the replica of a request: the one with most of its prompt among those that would begin it soon."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from msgspec.structs import replace

from ....runtime.messages import TOKEN_BYTES, Generate, Load, ReplicaReport, Tokens, TreeChange
from .tree_mirror import TreeMirror

MAX_LATER_S = 1.0
"""A match counts only at a replica that would begin the reply at most so much later than the earliest."""
WAIT_FOR_MATCH = 6
"""The same as a multiple of the time that the match saves: a short match is worth only a short wait."""
NEW_SHARE = 0.1
"""A prompt is new if less of it matches: many prompts begin with the same few tokens."""
SIMILAR_S = 0.1
"""Replicas that would begin within so much time of each other get new prompts in turn."""
EXPECTED_S = 2.0
"""seconds for which a prompt counts as its replica's before the replica reports its pages"""
FIRST_TOKEN_S = 0.001
"""seconds for a token of a prompt before any replica has computed one"""
MAX_SILENCE_S = 2.0
"""seconds after which a replica is asked again for its whole tree"""


ROW = np.dtype([("backlog_s", float), ("token_s", float), ("uncounted", int), ("last_new", int)])
"""A row of the table of replicas: the last load (`token_s` NaN: the replica has computed no prompt), the
tokens to compute that no report counts yet, and the number of the last request that brought a new prompt."""
UNKNOWN = np.array((0.0, np.nan, 0, 0), ROW)


@dataclass(slots=True)
class _Replica:
    """The last load of a replica, and the state of its reports."""

    load: Load
    asked_at: float  # when its whole tree was requested
    sequence: int | None = None  # None: the whole tree has not come


@dataclass(slots=True)
class _Sent:
    """A choice whose prompt is not computed. `tokens`: how many of it are to be computed, 0 once the replica
    counts them."""

    request: Generate
    replica: int
    tokens: int


class Router:
    """Knows which prefixes each replica has, and in how many seconds it would begin a new prompt.

    A request goes to the replica with the longest match among those that would begin its reply soon: later
    than the earliest by at most `MAX_LATER_S`, and by at most `WAIT_FOR_MATCH` times what the match saves. A
    new prompt goes to the earliest, or, of similar ones, to the one that has gone longest without a new
    prompt. A key with limits has one replica, whose scheduler knows all that the key has used.
    """

    def __init__(self, page_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._page_size = page_size
        self._clock = clock
        self._mirror = TreeMirror(page_size)
        self._replicas: dict[int, _Replica] = {}
        self._sent: dict[str, _Sent] = {}  # by the choice's id
        self._table = np.zeros(0, ROW)  # by replica
        self._expiring: deque[tuple[float, str]] = deque()  # when a choice's prompt is expected anew
        self._routed = 0

    def open(self, replica: int) -> None:
        """Begins with a replica that is up now. The caller has it send reports."""
        self._replicas[replica] = _Replica(Load(), self._clock())
        if (missing := replica + 1 - len(self._table)) > 0:
            self._table = np.append(self._table, np.full(missing, UNKNOWN))

    def close(self, replica: int) -> None:
        """Forgets a replica that is down."""
        del self._replicas[replica]
        self._mirror.clear(replica)
        for choice in [choice for choice, sent in self._sent.items() if sent.replica == replica]:
            self.note_end(choice)
        self._table[replica] = UNKNOWN

    def take(self, replica: int, report: ReplicaReport) -> bool:
        """Takes a replica's report. Returns False if one before it is missing: then the caller requests the
        whole tree."""
        known = self._replicas[replica]
        known.load = load = report.load
        self._table["backlog_s"][replica] = load.backlog_s
        self._table["token_s"][replica] = np.nan if load.token_s is None else load.token_s
        if report.is_whole:
            self._mirror.clear(replica)
        elif known.sequence is None:
            return self._clock() - known.asked_at < MAX_SILENCE_S or self._ask(known)
        elif report.sequence != known.sequence + 1:
            return self._ask(known)
        known.sequence = report.sequence
        return all(self._change(replica, change) for change in report.changes) or self._ask(known)

    def _ask(self, known: _Replica) -> bool:
        """Notes that the whole tree is requested. Returns False, the answer of `take` then."""
        known.sequence, known.asked_at = None, self._clock()
        return False

    @property
    def num_nodes(self) -> int:
        """The size of its copy of the trees."""
        return sum(1 for _ in self._mirror.list_nodes())

    def measure_backlog(self, replica: int) -> float:
        """Seconds until the replica would begin a prompt that comes now."""
        return float(self._measure_waits()[replica]) if replica in self._replicas else 0.0

    def measure_load(self, replica: int) -> Load:
        """The last load that a replica reported, with what is on its way to it."""
        known = self._replicas.get(replica)
        if known is None:
            return Load()
        return replace(known.load, backlog_s=self.measure_backlog(replica))

    def choose(self, requests: Sequence[Generate], replicas: Collection[int]) -> int:
        """The replica for the choices of a request."""
        first = requests[0]
        if first.quota is not None:
            return max(replicas, key=lambda replica: _rank(first.quota.key, replica))  # type: ignore[union-attr]
        candidates = np.fromiter(replicas, int, len(replicas))
        total = sum(len(prompt) // TOKEN_BYTES for prompt in {request.prompt for request in requests})
        matched, token_s = self._match(first)[candidates], self._estimate_token_s()[candidates]
        waits = self._measure_waits()[candidates] + np.maximum(1, total - matched) * token_s
        earliest = waits.min()
        near = waits - earliest <= np.minimum(MAX_LATER_S, WAIT_FOR_MATCH * matched * token_s)
        longest = matched[near].max()
        if not _is_new(first, longest):
            best = np.where(near & (matched == longest), waits, np.inf).argmin()
        else:
            similar = waits <= earliest + SIMILAR_S
            best = np.where(similar, self._table["last_new"][candidates], self._routed + 1).argmin()
        return int(candidates[best])

    def find(self, request: Generate, replicas: Collection[int]) -> int:
        """The replica that has most of a prompt."""
        matched = self._match(request)
        return max(replicas, key=lambda replica: matched[replica])

    def send(self, requests: Sequence[Generate], replica: int) -> None:
        """Notes that the choices are sent to the replica, and writes into them how much it will compute."""
        self._routed += 1
        until = self._clock() + EXPECTED_S
        seen: set[Tokens] = set()
        for request in requests:
            request.uncached = 0
            if request.prompt not in seen:
                seen.add(request.prompt)
                matched = self._count_matched(request, replica)
                request.uncached = len(request.prompt) // TOKEN_BYTES - matched
                if _is_new(request, matched):
                    self._table["last_new"][replica] = self._routed
                self._expect(request, replica, until)
            self._sent[request.request] = _Sent(request, replica, request.uncached)
            self._table["uncounted"][replica] += request.uncached

    def note_accepted(self, choice: str) -> None:
        """Notes that the replica counts a choice's prompt in its reports."""
        if (sent := self._sent.get(choice)) is not None:
            self._table["uncounted"][sent.replica] -= sent.tokens
            sent.tokens = 0

    def note_end(self, choice: str) -> None:
        """Notes that the prompt of a choice is computed, or that the choice has ended."""
        self.note_accepted(choice)
        self._sent.pop(choice, None)

    def _estimate_token_s(self) -> np.ndarray:
        """Seconds for each token of a prompt, by replica. A replica that has computed none counts as fast as
        the fastest other: with a slower guess it would get no new prompt while the others rest."""
        told = self._table["token_s"]
        fastest = np.fmin.reduce(told, initial=np.inf)
        return np.where(np.isnan(told), FIRST_TOKEN_S if np.isinf(fastest) else fastest, told)

    def _measure_waits(self) -> np.ndarray:
        """Seconds until each replica would begin a prompt that comes now."""
        waits: np.ndarray = self._table["backlog_s"] + self._table["uncounted"] * self._estimate_token_s()
        return waits

    def _match(self, request: Generate) -> np.ndarray:
        """How many of a prompt's first tokens each replica has or expects."""
        matched = np.zeros(len(self._table), int)
        if request.namespace is not None:
            self._expire()
            found = self._mirror.match(request.namespace, request.prompt)
            replicas = np.fromiter(found, int, len(found))
            matched[replicas] = np.fromiter(found.values(), int, len(found)) * self._page_size
        return matched

    def _count_matched(self, request: Generate, replica: int) -> int:
        """How many of a prompt's first tokens one replica has or expects."""
        if request.namespace is None:
            return 0
        self._expire()
        return self._mirror.count(replica, request.namespace, request.prompt) * self._page_size

    def _expect(self, request: Generate, replica: int, until: float) -> None:
        if request.namespace is not None:
            self._mirror.expect(replica, request.namespace, request.prompt, until)
            self._expiring.append((until, request.request))

    def _expire(self) -> None:
        """Ends what was expected long enough, but for prompts of this process that still wait."""
        now = self._clock()
        while self._expiring and self._expiring[0][0] <= now:
            _, choice = self._expiring.popleft()
            if (sent := self._sent.get(choice)) is not None:
                self._expect(sent.request, sent.replica, now + EXPECTED_S)
        self._mirror.expire(now)

    def _change(self, replica: int, change: TreeChange) -> bool:
        pages = array("i", change.pages)
        if not change.tokens:
            return self._mirror.remove(replica, pages)
        return self._mirror.store(replica, change.namespace, change.after, change.tokens, pages)


def _is_new(request: Generate, matched: int) -> bool:
    """Whether a replica that has the first tokens of a prompt would compute most of it."""
    return matched * TOKEN_BYTES <= NEW_SHARE * len(request.prompt)


def _rank(key: str, replica: int) -> bytes:
    """A number by which each key has its own order of the replicas, which no death of others changes."""
    return blake2b(f"{replica} {key}".encode(), digest_size=8).digest()
