"""Chooses the replica of a request: one that has its prefix, unless others would begin much sooner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from ....runtime.messages import TOKEN_BYTES, Generate, Tokens

KEY_BYTES = 8
MAX_KEYS = 1 << 16
"""Keys of prefixes that are remembered for each replica, about 10 MB."""
FIRST_TOKENS = 16
"""A prefix is remembered at each multiple of this many tokens, and a longer one at about every eighth of its
length."""
MAX_WAIT_TOKENS = {"cpu": 2048, "cuda": 16384}
"""by device: how many more tokens a replica with the prefix may have to compute first: about a second"""
WAIT_FOR_MATCH = 3
"""The same, as a multiple of the tokens that it has: a short prefix is worth only a short wait."""
REPLY_TOKENS = 32
"""An open reply delays others by as much as this many tokens of prompts."""

PrefixKey: TypeAlias = bytes


class Prefix(NamedTuple):
    """The first `tokens` of a prompt, whose key depends on all of them and on the namespace."""

    tokens: int
    key: PrefixKey


class _Load(NamedTuple):
    """A choice that a replica has not answered, with the tokens of its prompt that are to be computed."""

    replica: int
    tokens: int


class Router:
    """Remembers which prefixes were sent to which replica, and counts the work that each has open.

    A request goes to the replica with the longest match among those that would begin it soon enough; a key
    with limits has one replica, whose scheduler knows all that the key has used.
    """

    def __init__(self, device: str) -> None:
        self._max_wait = MAX_WAIT_TOKENS["cpu" if device == "cpu" else "cuda"]
        self._known: dict[int, dict[PrefixKey, None]] = {}  # by replica, the least recently sent first
        self._loads: dict[str, _Load] = {}  # by the choice's id
        self._backlog: Counter[int] = Counter()  # by replica: tokens of prompts that are still to be computed
        self._open: Counter[int] = Counter()  # by replica: open choices
        self._turn: Counter[int] = Counter()  # by replica: number of its last request
        self._turns = 0

    def choose(self, requests: Sequence[Generate], replicas: Collection[int]) -> int:
        """The replica for the choices of a request."""
        first = requests[0]
        if first.quota is not None:
            return max(replicas, key=lambda replica: _rank(first.quota.key, replica))  # type: ignore[union-attr]
        total = sum(len(prompt) // TOKEN_BYTES for prompt in _list_prompts(requests))
        found = self._match(first, replicas)
        waits = {each: self.wait(each) + total - found[each] for each in replicas}
        earliest = min(waits.values())
        soon = [
            each
            for each in replicas
            if waits[each] - earliest <= min(self._max_wait, WAIT_FOR_MATCH * found[each])
        ]
        return min(soon, key=lambda each: (-found[each], waits[each], self._turn[each]))

    def find(self, request: Generate, replicas: Collection[int]) -> int:
        """The replica that has most of a prompt."""
        found = self._match(request, replicas)
        return max(replicas, key=lambda replica: found[replica])

    def wait(self, replica: int) -> int:
        """The open work of a replica, in tokens of prompts."""
        return self._backlog[replica] + REPLY_TOKENS * self._open[replica]

    def send(self, requests: Sequence[Generate], replica: int) -> list[PrefixKey]:
        """Notes that the choices are sent to the replica. Returns the keys of their prefixes."""
        self._turns += 1
        self._turn[replica] = self._turns
        keys: list[PrefixKey] = []
        seen: set[Tokens] = set()
        for request in requests:
            uncached = 0
            if request.prompt not in seen:
                seen.add(request.prompt)
                prefixes = list(cut_prefixes(request))
                uncached = len(request.prompt) // TOKEN_BYTES - self._measure(prefixes, replica)
                keys += [prefix.key for prefix in prefixes]
            self._loads[request.request] = _Load(replica, uncached)
            self._backlog[replica] += uncached
            self._open[replica] += 1
        self.remember(keys, replica)
        return keys

    def remember(self, keys: Sequence[PrefixKey], replica: int) -> None:
        """Remembers that prefixes of a prompt, the shortest first, were sent to a replica, maybe by another
        tokenizer process. Long prefixes are forgotten first, because fewer prompts begin with them."""
        known = self._known.setdefault(replica, {})
        for key in reversed(keys):
            known.pop(key, None)
            known[key] = None
        while len(known) > MAX_KEYS:
            del known[next(iter(known))]

    def note_computed(self, choice: str) -> None:
        """Notes that the prompt of a choice is computed."""
        if (load := self._loads.get(choice)) is not None and load.tokens:
            self._backlog[load.replica] -= load.tokens
            self._loads[choice] = load._replace(tokens=0)

    def note_end(self, choice: str) -> None:
        """Notes that a choice has ended. Ignores unknown ones."""
        self.note_computed(choice)
        if (load := self._loads.pop(choice, None)) is not None:
            self._open[load.replica] -= 1

    def forget(self, replica: int) -> None:
        """Forgets the prefixes and the work of a replica that has died."""
        self._known.pop(replica, None)
        for choice in [choice for choice, load in self._loads.items() if load.replica == replica]:
            self.note_end(choice)

    def _match(self, request: Generate, replicas: Collection[int]) -> dict[int, int]:
        """How many of a prompt's first tokens were sent to each replica."""
        prefixes = list(cut_prefixes(request))
        return {replica: self._measure(prefixes, replica) for replica in replicas}

    def _measure(self, prefixes: Sequence[Prefix], replica: int) -> int:
        known = self._known.get(replica, {})
        return next((prefix.tokens for prefix in reversed(prefixes) if prefix.key in known), 0)


def cut_prefixes(request: Generate) -> Iterator[Prefix]:
    """The remembered prefixes of a prompt, the shortest first; none if the request doesn't use the cache."""
    if request.namespace is None:
        return
    state = blake2b(request.namespace.encode(), digest_size=KEY_BYTES)
    start, end, length = 0, FIRST_TOKENS, len(request.prompt) // TOKEN_BYTES
    while end <= length:
        state.update(request.prompt[start * TOKEN_BYTES : end * TOKEN_BYTES])
        yield Prefix(end, state.copy().digest())
        start, end = end, end + max(FIRST_TOKENS, 1 << (end.bit_length() - 4))


def _list_prompts(requests: Sequence[Generate]) -> set[Tokens]:
    return {request.prompt for request in requests}


def _rank(key: str, replica: int) -> bytes:
    """A number by which each key has its own order of the replicas, which no death of others changes."""
    return blake2b(f"{replica} {key}".encode(), digest_size=KEY_BYTES).digest()
