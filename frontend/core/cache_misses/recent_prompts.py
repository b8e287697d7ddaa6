"""The prompts of recent requests, to compare later ones with."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from ....runtime.messages import Tokens
from ..text.tokenized_text import common_length
from .outline import Part

MAX_BYTES = 16 << 20
# Approximate bytes of Python's objects, besides the tokens:
PROMPT_BYTES = 480
PART_BYTES = 200  # bytes of a prompt's part and its entry in the index
PLACE_BYTES = 360
OWNER_BYTES = 320
MAX_PLACES = 16  # namespaces of one owner in which a prompt is looked up
_tokens = attrgetter("tokens")


class Place(NamedTuple):
    """An owner (a hash of the API key, or empty) and a namespace. Only prompts of one place are compared."""

    owner: str
    namespace: str


@dataclass(eq=False, slots=True)
class Seen:
    """An earlier prompt, followed by the tokens of its reply once that has ended.

    `prompt_tokens` is the length of the prompt alone, in tokens.
    """

    place: Place
    tokens: Tokens
    prompt_tokens: int
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return PROMPT_BYTES + len(self.tokens) + PART_BYTES * len(self.parts)


class Nearest(NamedTuple):
    """The earlier prompt that is most like a prompt, with its tokens at that time. The first `shared` tokens
    of both are equal."""

    seen: Seen
    tokens: Tokens
    shared: int

    @property
    def length(self) -> int:
        return len(self.tokens) // 4


@dataclass(slots=True)
class _Prompts:
    """The prompts of one place, in the order of their tokens, and the latest one that has each part."""

    ordered: list[Seen] = field(default_factory=list)
    with_part: dict[int, Seen] = field(default_factory=dict)


class RecentPrompts:
    """Holds about `max_bytes` of prompts, and evicts the oldest first.

    In the order of tokens, the longest common beginning is found at one of the two neighbours.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.bytes_used = 0
        self._max_bytes = max_bytes
        self._of_owner: dict[str, OrderedDict[str, _Prompts]] = {}  # by owner, then namespace
        self._by_age: OrderedDict[Seen, None] = OrderedDict()

    def nearest(self, place: Place, tokens: Tokens, parts: tuple[Part, ...]) -> Nearest | None:
        """The prompt that shares most characters in whole parts; among equals, the longest common prefix."""
        prompts = self._prompts(place)
        if prompts is None:
            return None
        closest = max(_neighbours(prompts, tokens), key=lambda near: near.shared, default=None)
        alike = _with_most_parts(prompts, parts)
        if alike is None or (closest is not None and closest.seen is alike):
            return closest
        shared = _near(alike, tokens)
        if closest is None or _weight(closest.seen, parts) < _weight(alike, parts):
            return shared
        return max(shared, closest, key=lambda near: near.shared)

    def elsewhere(self, place: Place, tokens: Tokens) -> int:
        """The longest beginning that the same owner sent in another namespace, in tokens.

        An owner without an API key may be anyone: then only the namespace that is open to all is looked up.
        """
        places: OrderedDict[str, _Prompts] = self._of_owner.get(place.owner, OrderedDict())
        names = islice(reversed(places), MAX_PLACES) if place.owner else [""]
        others = [places[name] for name in names if name != place.namespace and name in places]
        return max((near.shared for other in others for near in _neighbours(other, tokens)), default=0)

    def add(self, place: Place, tokens: Tokens, parts: tuple[Part, ...]) -> Seen:
        """Adds a computed prompt. It replaces earlier prompts that it begins with."""
        seen = Seen(place, tokens, len(tokens) // 4, parts)
        prompts = self._prompts(place)
        for near in list(_neighbours(prompts, tokens)) if prompts is not None else ():
            if near.shared == len(near.seen.tokens) // 4:
                self._remove(near.seen)
        self._insert(seen)
        return seen

    def extend(self, seen: Seen, reply: Tokens) -> None:
        """Appends the tokens of the finished reply to its prompt."""
        if seen in self._by_age:
            self._remove(seen)
            seen.tokens += reply
            self._insert(seen)

    def drop(self, concerned: Callable[[str], bool]) -> None:
        """Forgets the prompts in the namespaces for which `concerned` is true."""
        for seen in list(self._by_age):
            if concerned(seen.place.namespace):
                self._remove(seen)

    def _prompts(self, place: Place) -> _Prompts | None:
        places = self._of_owner.get(place.owner)
        return None if places is None else places.get(place.namespace)

    def _open(self, place: Place) -> _Prompts:
        if place.owner not in self._of_owner:
            self._of_owner[place.owner] = OrderedDict()
            self.bytes_used += OWNER_BYTES
        prompts = self._of_owner[place.owner][place.namespace] = _Prompts()
        self.bytes_used += PLACE_BYTES
        return prompts

    def _insert(self, seen: Seen) -> None:
        prompts = self._prompts(seen.place) or self._open(seen.place)
        self._of_owner[seen.place.owner].move_to_end(seen.place.namespace)
        insort(prompts.ordered, seen, key=_tokens)
        prompts.with_part.update((part.digest, seen) for part in seen.parts)
        self._by_age[seen] = None
        self.bytes_used += seen.size
        while self.bytes_used > self._max_bytes:
            self._remove(next(iter(self._by_age)))

    def _remove(self, seen: Seen) -> None:
        places = self._of_owner[seen.place.owner]
        prompts = places[seen.place.namespace]
        _remove_from(prompts, seen)
        for part in seen.parts:
            if prompts.with_part.get(part.digest) is seen:
                del prompts.with_part[part.digest]
        del self._by_age[seen]
        self.bytes_used -= seen.size
        if not prompts.ordered:
            del places[seen.place.namespace]
            self.bytes_used -= PLACE_BYTES
        if not places:
            del self._of_owner[seen.place.owner]
            self.bytes_used -= OWNER_BYTES


def _remove_from(prompts: _Prompts, seen: Seen) -> None:
    at = bisect_left(prompts.ordered, seen.tokens, key=_tokens)
    while prompts.ordered[at] is not seen:
        at += 1
    del prompts.ordered[at]


def _neighbours(prompts: _Prompts, tokens: Tokens) -> Iterator[Nearest]:
    at = bisect_left(prompts.ordered, tokens, key=_tokens)
    for seen in prompts.ordered[max(0, at - 1) : at + 1]:
        yield _near(seen, tokens)


def _near(seen: Seen, tokens: Tokens) -> Nearest:
    return Nearest(seen, seen.tokens, count_common_tokens(tokens, seen.tokens))


def _with_most_parts(prompts: _Prompts, parts: tuple[Part, ...]) -> Seen | None:
    """Returns the prompt with the most votes. Each part votes for the latest prompt that has it, with as many
    votes as it has characters."""
    votes: Counter[Seen] = Counter()
    for part in parts:
        seen = prompts.with_part.get(part.digest)
        if seen is not None:
            votes[seen] += part.characters + 1
    return max(votes, key=votes.__getitem__, default=None)


def _weight(seen: Seen, parts: tuple[Part, ...]) -> int:
    """The number of characters in the parts that the prompt has too."""
    known = {part.digest for part in seen.parts}
    return sum(part.characters + 1 for part in parts if part.digest in known)


def count_common_tokens(left: Tokens, right: Tokens) -> int:
    """The number of leading tokens that two prompts share."""
    return common_length(left, right) // 4
