"""Which tokens of a prompt with a choice are scored."""

from __future__ import annotations

from collections.abc import Sequence


def first_scored(prompt: Sequence[int], candidates: Sequence[Sequence[int]]) -> int:
    """The length of the longest prefix that the prompt's tokens share with those of every candidate, which
    are the prompt with a choice.

    A choice may merge with the prompt's last token, which is then scored too. Raises ValueError if nothing is
    shared, as the first token of all has no probability, and for a choice without a token of its own.
    """
    first = min(_common(prompt, candidate) for candidate in candidates)
    if first == 0:
        raise ValueError("select needs text before it: nothing predicts the first token of all.")
    for number, candidate in enumerate(candidates, 1):
        if len(candidate) == first:
            raise ValueError(
                f"choice {number} adds no token to the prompt: the chat template drops its text, such as "
                "white space at the end. Remove this choice."
            )
    return first


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
