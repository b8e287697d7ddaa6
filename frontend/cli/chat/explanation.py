"""The server's explanation of a prompt's cache misses, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CAUSES = {
    "new": "no earlier prompt had them",
    "short": "less than a page at the end is always computed",
    "evicted": "their pages were evicted",
    "namespace": "they are cached in another namespace",
    "volatile": "they follow a line that changes with each request",
    "tools": "they follow tools that were changed",
    "system": "they follow a changed system prompt",
    "history": "they follow a changed earlier message",
    "template": "they follow a message that the chat template renders in another way now",
    "off": "this request did not use the cache",
}


def explanation_in_words(explanation: Mapping[str, Any]) -> str:
    """Lines with the tokens of each cause, and the texts where the prompt left the nearest earlier one."""
    matched, total = explanation["matched_tokens"], explanation["prompt_tokens"]
    could = explanation["could_match_tokens"]
    lines = [f"{matched} of {total} prompt tokens were cached, {could} could have been"]
    for cause, tokens in sorted(explanation["causes"].items(), key=lambda item: -item[1]):
        lines.append(f"  {tokens:>6}  {cause}: {CAUSES.get(cause, 'see the documentation')}")
    if difference := explanation.get("difference"):
        lines.append(f"first difference in {difference['part']} {difference['index'] or 0}, at token")
        lines[-1] += f" {difference['token']}: {difference.get('note') or ''}".rstrip(": ")
        lines += [f"  now      {difference['prompt']}", f"  earlier  {difference['earlier']}"]
    return "\n".join(lines)
