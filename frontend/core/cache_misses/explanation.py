"""Explains a prompt: how many of its tokens were in the cache, and why the others were not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, Struct, UnsetType

from ....runtime.messages import PathNode, Tokens
from .causes import Cause, Decode, FirstDifference, find_difference
from .outline import Outline, Part
from .recent_prompts import Nearest
from .repeated import count_repeated_tokens

RUN_PAGES = 2
"""Minimum pages of a run of equal tokens that counts. Shorter runs may be chance."""
SHOWN = 60
"""Characters that are shown on each side of the first difference."""
_SHOWN_TOKENS = 64
"""Tokens that are decoded on each side to get `SHOWN` characters."""
ONCE_CACHED: frozenset[Cause] = frozenset(
    ("checkpoint", "evicted", "namespace", "volatile", "tools", "system", "history", "template")
)
"""Causes of uncached tokens that an earlier prompt had too."""


class Difference(Struct, kw_only=True):
    """The first difference between a prompt and the nearest earlier one.

    `part` is "tool", "system", "message" or "prompt". `token` and `character` are positions in the rendered
    prompt. `prompt` and `earlier` are the two texts around them, shortened, with control characters escaped.
    """

    cause: Cause
    part: str
    index: int | None
    role: str | None
    token: int
    character: int
    prompt: str
    earlier: str
    note: str


class MessageTokens(Struct):
    """The tokens of one message in the prompt. The chat template's own tokens before and after the messages
    have the role "template" and no `index`.

    A prompt computed now would find `cached_tokens` of them; `evicted_tokens` were in the KV cache once.
    `shared_by` is the number of other branches of the tree that have the prompt up to the message's end; null
    in a namespace that several API keys share.
    """

    index: int | None
    role: str
    tokens: int
    cached_tokens: int
    evicted_tokens: int
    shared_by: int | None


class Explanation(Struct, kw_only=True):
    """Why tokens were not cached. `matched_tokens` and the tokens of all causes add up to `prompt_tokens`.

    `POST /cache/explain` adds the `messages` of a chat, and the `nodes` of the tree that its prompt goes
    through.
    """

    prompt_tokens: int
    matched_tokens: int
    could_match_tokens: int
    causes: dict[Cause, int]
    difference: Difference | None
    prompt_rules: tuple[str, ...]
    messages: list[MessageTokens] | UnsetType = UNSET
    nodes: list[PathNode] | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class PromptComparison:
    """A prompt, and the earlier prompts with which it is compared.

    `near` is the nearest earlier prompt and `elsewhere` the longest beginning in another namespace of the
    caller. `remembered` is the number of the prompt's tokens that the tree remembers, evicted pages included,
    and `behind` are the tokens that follow its match in the tree. The scheduler is asked for both only if the
    request wants an explanation. `paged` is the number of the prompt's tokens in the tree; a model with
    recurrent layers can use only those before a checkpoint.
    `is_off`: the request or the server has the cache off.
    """

    tokens: Tokens
    outline: Outline
    near: Nearest | None
    elsewhere: int = 0
    remembered: int = 0
    behind: Tokens = b""
    paged: int = 0
    page_size: int = 16
    is_off: bool = False

    @property
    def length(self) -> int:
        return len(self.tokens) // 4

    @property
    def differs(self) -> bool:
        """Whether the prompt and the nearest one differ, rather than one being the beginning of the other."""
        return self.near is not None and self.near.shared < min(self.length, self.near.length)


def count_by_cause(
    comparison: PromptComparison, matched: int, decode: Decode
) -> tuple[dict[Cause, int], FirstDifference | None]:
    """The tokens that were not matched, by cause, and the first difference to the nearest prompt.

    In the order of positions: tokens with KV after the last checkpoint of a recurrent state (`checkpoint`),
    tokens that were cached once at the same place (`short` or `evicted`), tokens
    that are cached in another namespace, and the rest. Of the rest, runs of two pages' length that the
    nearest prompt has too are counted under the cause of the first difference; the others are new.
    """
    found: dict[Cause, int] = {}
    length = comparison.length
    if comparison.is_off:
        return ({"off": length - matched} if matched < length else {}), None
    shared = 0 if comparison.near is None else comparison.near.shared
    at = matched
    paged = min(comparison.paged, length - 1)
    if paged > at:
        found["checkpoint"], at = paged - at, paged
    known = min(max(shared, comparison.remembered), length)
    if known > at:
        cause: Cause = "short" if known - at < comparison.page_size else "evicted"
        found[cause], at = known - at, known
    if comparison.elsewhere >= at + comparison.page_size:
        found["namespace"], at = comparison.elsewhere - at, comparison.elsewhere
    lost = _count_repeated(comparison, at)
    difference = None
    if lost and comparison.near is not None:
        difference = find_difference(comparison.tokens, comparison.outline, comparison.near, decode)
        found[difference.cause], at = lost, at + lost
    if at < length:
        found["new"] = length - at
    return found, difference


def _count_repeated(comparison: PromptComparison, at: int) -> int:
    """The number of tokens after `at` in runs that the nearest prompt also has after the first difference."""
    near = comparison.near
    if near is None or not comparison.differs:
        return 0
    earlier = near.tokens[4 * near.shared :]
    repeated = count_repeated_tokens(comparison.tokens[4 * at :], earlier, RUN_PAGES * comparison.page_size)
    return min(repeated, len(earlier) // 4)


def explain(comparison: PromptComparison, matched: int, decode: Decode) -> Explanation:
    causes, difference = count_by_cause(comparison, matched, decode)
    return Explanation(
        prompt_tokens=comparison.length,
        matched_tokens=matched,
        could_match_tokens=matched + sum(count for cause, count in causes.items() if cause in ONCE_CACHED),
        causes=causes,
        difference=_find_shown_difference(comparison, matched, difference, decode),
        prompt_rules=comparison.outline.rules,
    )


def divide_by_message(
    comparison: PromptComparison, matched: int, places: Sequence[int], shared_by: Sequence[int] | None
) -> list[MessageTokens]:
    """The tokens of each message. `places`: see `find_message_places`; `shared_by` has a number for each."""
    roles = [(index, message["role"]) for index, message in enumerate(comparison.outline.messages)]
    parts = [(None, "template"), *roles, (None, "template")]
    starts, ends = [0, *places], [*places, comparison.length]
    evicted_from, known = max(matched, comparison.paged), max(matched, comparison.remembered)
    found = []
    for place, ((index, role), start, end) in enumerate(zip(parts, starts, ends, strict=True)):
        cached = max(0, min(matched, end) - start)
        evicted = max(0, min(known, end) - max(evicted_from, start))
        # The prompt's own end is no place of the tree's: the reply that follows it is not there.
        shared = None if shared_by is None else [*shared_by, 0][place]
        found.append(MessageTokens(index, role, end - start, cached, evicted, shared))
    return [part for part in found if part.index is not None or part.tokens]


def _find_shown_difference(
    comparison: PromptComparison, matched: int, difference: FirstDifference | None, decode: Decode
) -> Difference | None:
    near, tree_has = comparison.near, comparison.behind
    if difference is not None and near is not None:
        return _describe(comparison, near.shared, near.tokens[4 * near.shared :], difference, decode)
    if near is not None and comparison.differs:
        unlike = FirstDifference(
            "new", None, "What follows is new: the earlier prompt has other text from here on."
        )
        return _describe(comparison, near.shared, near.tokens[4 * near.shared :], unlike, decode)
    if near is None and tree_has and 0 < matched < comparison.length:
        unlike = FirstDifference("new", None, "The cache has other text from here on.")
        return _describe(comparison, matched, tree_has, unlike, decode)
    return None


def _describe(
    comparison: PromptComparison, token: int, earlier: Tokens, difference: FirstDifference, decode: Decode
) -> Difference:
    start = decode(comparison.tokens[: 4 * token])
    before = start[-SHOWN:]
    part = difference.part or _find_message(comparison.outline, decode(comparison.tokens), len(start))
    end = 4 * _SHOWN_TOKENS
    return Difference(
        cause=difference.cause,
        part="prompt" if part is None else part.kind,
        index=None if part is None else part.number,
        role=None if part is None or part.kind == "tool" else part.role,
        token=token,
        character=len(start),
        prompt=escape(before + decode(comparison.tokens[4 * token :][:end])[:SHOWN]),
        earlier=escape(before + decode(earlier[:end])[:SHOWN]),
        note=difference.note,
    )


def _find_message(outline: Outline, text: str, character: int) -> Part | None:
    """The message with a character of the rendered prompt; between two messages, the later one."""
    said = [part for part in outline.parts if part.kind != "tool"]
    found, end = -1, 0
    for number, message in enumerate(outline.messages):
        content = message["content"].strip()
        begins = text.find(content[:SHOWN], end, character + SHOWN)
        if 0 <= begins <= character:
            found, end = number, begins + len(content)
    if end <= character:
        found += 1
    return said[found] if 0 <= found < len(said) else None


def escape(text: str) -> str:
    """The text with control characters, invisible ones and backslashes as escapes."""
    return "".join(
        each if each.isprintable() and each != "\\" else each.encode("unicode_escape").decode()
        for each in text
    )
