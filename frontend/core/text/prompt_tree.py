"""Stores texts and their ids in radix trees over text, so that common beginnings are stored once."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from ....runtime.messages import Tokens
from .cut_points import CutPoints
from .tokenized_text import START, Cut, TokenizedText, common_length
from .tokenizer import CONTROL_MARK

_MARK = CONTROL_MARK.encode()
_NODE_BYTES = 700  # bytes of memory of a node, besides its part of a text
_MAX_SHARE = 1 / 8  # the share of the memory that one text's new part may take


class _Node:
    """A part of a text, which follows its parent's and begins at a cut or at the start. `children` are
    found by the hash of their text up to its first cut. `latest` is the child used last."""

    __slots__ = ("children", "latest", "parent", "part")

    def __init__(self, part: TokenizedText, parent: _Node | None) -> None:
        self.part = part
        self.parent = parent
        self.children: dict[int, list[_Node]] = {}
        self.latest: _Node | None = None

    @property
    def cost(self) -> int:
        return self.part.cost + _NODE_BYTES


class _Root(_Node):
    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        super().__init__(TokenizedText(b"", b""), None)
        self.namespace = namespace


class Place(NamedTuple):
    """The end of the known beginning of a text: `end` is its length in bytes, `tokens` are its ids. `nodes`
    lead there from `root`; the place is at `cut` of the last node's part."""

    root: _Root
    nodes: list[_Node]
    cut: Cut
    end: int
    tokens: Tokens


class PromptTree:
    """One tree for each namespace. Together they take about `max_bytes`; the ends of the least recently used
    texts are evicted first, in any namespace. `token_bytes` gives a token's bytes. Not thread-safe."""

    def __init__(self, cuts: CutPoints, token_bytes: Callable[[int], bytes], max_bytes: int) -> None:
        self._cuts = cuts
        self._token_bytes = token_bytes
        self._max_bytes = max_bytes
        self.max_part_bytes = int(max_bytes * _MAX_SHARE)
        self._roots: dict[str, _Root] = {}
        # Using a node marks its descendants first, so the least recently used node is always a leaf.
        self._by_use: OrderedDict[_Node, None] = OrderedDict()
        self.bytes_used = 0

    def find(self, namespace: str, text: bytes) -> Place:
        """Finds the longest known beginning of the text that ends at a cut."""
        root = self._roots.get(namespace) or _Root(namespace)
        nodes: list[_Node] = []
        node: _Node = root
        start = reach = 0
        while start + reach < len(text):
            child, common = self._find_child(node, text, start + reach)
            if child is None:
                break
            nodes.append(child)
            node, start, reach = child, start + reach, common
            if reach < len(node.part.text):
                break
        return self._find_last_place(root, nodes, text, start, reach)

    def insert(self, namespace: str, whole: TokenizedText) -> None:
        """Stores a text from its beginning. The newest ids of a text replace earlier ones."""
        place = self.find(namespace, whole.text)
        self._touch(place.nodes)
        if place.end == len(whole.text) and place.tokens == whole.tokens:
            return
        node, cut, reached = self._fork(place, whole)
        rest = whole.after(reached)
        if rest.cost > self.max_part_bytes:
            return
        if namespace not in self._roots:
            self._roots[namespace] = place.root
            self.bytes_used += place.root.cost
        self._attach(node, cut, rest)
        self._evict()

    def drop(self, concerned: Callable[[str], bool]) -> None:
        """Forgets the namespaces for which `concerned` is true."""
        for namespace in list(filter(concerned, self._roots)):
            nodes: list[_Node] = [self._roots.pop(namespace)]
            for node in nodes:
                nodes += chain.from_iterable(node.children.values())
                self._by_use.pop(node, None)
                self.bytes_used -= node.cost

    def walk_beyond(self, place: Place) -> Iterator[TokenizedText]:
        """Yields the parts after the place, from each node to the child used last."""
        node: _Node = place.root
        if place.nodes:
            node = place.nodes[-1]
            if place.cut < node.part.end:
                yield node.part.after(place.cut)
        while node.latest is not None:
            node = node.latest
            yield node.part

    def _find_child(self, node: _Node, text: bytes, start: int) -> tuple[_Node | None, int]:
        """The child that shares most with the text after `start` (among equals the newest), and the shared
        length."""
        children = node.children.get(hash(text[start : self._cuts.find_after(text, start)]))
        if children is None:
            children = [] if node.latest is None else [node.latest]
        found: tuple[_Node | None, int] = (None, 0)
        for child in children:
            common = common_length(child.part.text, text, start)
            if common and common >= found[1]:
                found = child, common
        return found

    def _find_last_place(self, root: _Root, nodes: list[_Node], text: bytes, start: int, reach: int) -> Place:
        """The last place to cut on the path. `reach` is the shared length of the last part at `start`."""
        while nodes:
            cut = self._find_last_cut(nodes[-1].part, text, start, reach)
            if cut > START:
                tokens = [node.part.tokens for node in nodes]
                tokens[-1] = tokens[-1][: 4 * cut.tokens]
                return Place(root, nodes, cut, start + cut.offset, b"".join(tokens))
            nodes = nodes[:-1]
            reach = len(nodes[-1].part.text) if nodes else 0
            start -= reach
        return Place(root, [], START, 0, b"")

    def _find_last_cut(self, part: TokenizedText, text: bytes, start: int, reach: int) -> Cut:
        cuts = _list_cuts_up_to(part, reach)
        last = next((cut for cut in cuts if self._cuts.is_cut(text, start + cut.offset)), START)
        following = self._cuts.find_after(text, start + last.offset) - start
        inside = self._find_cut_inside_reply(part, last, following) if following <= reach else None
        return last if inside is None else inside

    def _find_cut_inside_reply(self, part: TokenizedText, last: Cut, offset: int) -> Cut | None:
        """The cut at `offset` if a sampled token ends there. Sampled tokens are not tokenized again."""
        if not any(start <= offset <= end for start, end in part.replies):
            return None
        data, index = bytearray(), last.tokens
        expected = part.text[last.offset : offset].replace(_MARK, b"")
        tokens = memoryview(part.tokens).cast("i")
        while len(data) < len(expected) and index < len(tokens):
            data += self._token_bytes(tokens[index])
            index += 1
        return Cut(offset, index) if data == expected else None

    def _fork(self, place: Place, whole: TokenizedText) -> tuple[_Node, Cut, Cut]:
        """Where the new part of a text begins: the node, the cut in its part, and the cut in the text."""
        agreed = common_length(place.tokens, whole.tokens) // 4
        start = Cut(place.end - place.cut.offset, len(place.tokens) // 4 - place.cut.tokens)
        reach = place.cut.offset
        for node in reversed(place.nodes):
            for cut in _list_cuts_up_to(node.part, reach):
                reached = Cut(start.offset + cut.offset, start.tokens + cut.tokens)
                if cut > START and reached.offset < len(whole.text) and reached.tokens <= agreed:
                    return node, cut, reached
            assert node.parent is not None
            reach, tokens = node.parent.part.end
            start = Cut(start.offset - reach, start.tokens - tokens)
        return place.root, START, START

    def _attach(self, node: _Node, cut: Cut, rest: TokenizedText) -> None:
        if node.parent is not None:
            if cut == node.part.end and not node.children:
                self.bytes_used += rest.cost
                node.part += rest
                return
            if cut < node.part.end:
                node = self._split(node, cut)
        new = _Node(rest, node)
        for old in list(node.children.get(self._key(new), ())):
            if old.part.text == rest.text and not old.children:
                self._remove(old)
        self._add(new)

    def _split(self, node: _Node, cut: Cut) -> _Node:
        """Moves the beginning of the part to a node of its own."""
        parent = node.parent
        assert parent is not None
        self._remove(node)
        upper = _Node(node.part.before(cut), parent)
        node.part, node.parent = node.part.after(cut), upper
        self._add(node)
        self._add(upper)
        return upper

    def _add(self, node: _Node) -> None:
        assert node.parent is not None
        node.parent.children.setdefault(self._key(node), []).append(node)
        self.bytes_used += node.cost
        nodes = [node]
        while (parent := nodes[-1].parent) is not None and parent.parent is not None:
            nodes.append(parent)
        self._by_use.update(dict.fromkeys(nodes))
        self._touch(nodes[::-1])

    def _remove(self, node: _Node) -> None:
        assert node.parent is not None
        siblings = node.parent.children[self._key(node)]
        siblings.remove(node)
        if not siblings:
            del node.parent.children[self._key(node)]
        if node.parent.latest is node:
            node.parent.latest = None
        del self._by_use[node]
        self.bytes_used -= node.cost

    def _key(self, node: _Node) -> int:
        text = node.part.text
        return hash(text[: self._cuts.find_after(text, 0)])

    def _touch(self, nodes: list[_Node]) -> None:
        for node in reversed(nodes):
            assert node.parent is not None
            self._by_use.move_to_end(node)
            node.parent.latest = node

    def _evict(self) -> None:
        while self.bytes_used > self._max_bytes:
            leaf = next(iter(self._by_use))
            self._remove(leaf)
            if isinstance(leaf.parent, _Root) and not leaf.parent.children:
                self.bytes_used -= self._roots.pop(leaf.parent.namespace).cost


def _list_cuts_up_to(part: TokenizedText, reach: int) -> Iterator[Cut]:
    """Yields the cuts up to `reach` in reverse order. The part's end counts as a cut."""
    if reach == len(part.text):
        yield part.end
    yield from reversed(part.cuts[: bisect_right(part.cuts, reach, key=lambda cut: cut.offset)])
