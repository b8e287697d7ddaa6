"""A backend of programs that computes nothing: it says what a function says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arbora.frontend.language.api_client import Usage
from arbora.frontend.language.backend import Lease, OnText, Prompt, Reply, Scores, TextPrompt

Say = Callable[[Prompt, Mapping[str, Any]], str | Reply]


class ScriptedBackend:
    """Keeps the prompts it gets. `most_open` is the most replies that were open at a time."""

    concurrency = 4

    def __init__(self, say: Say = lambda prompt, sampling: " yes") -> None:
        self.prompts: list[Prompt] = []
        self.prefilled: list[Prompt] = []
        self.prefilled_for: list[float] = []  # seconds
        self.sessions: list[str] = []  # of replies and scores, in order
        self.ended: list[tuple[str, str | None]] = []  # sessions and their salts
        self.most_open = 0
        self._open = 0
        self._say = say

    async def reply(self, prompt: Prompt, sampling: Mapping[str, Any], on_text: OnText | None) -> Reply:
        self.prompts.append(prompt)
        sampling = dict(sampling)
        self.sessions.append(sampling.pop("cache_lease")["key"])
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        await asyncio.sleep(0.01)
        self._open -= 1
        said = self._say(prompt, sampling)
        reply = said if isinstance(said, Reply) else Reply(text=said, finish_reason="stop", usage=Usage(10))
        if on_text is not None:
            for character in reply.text:
                on_text(character)
        return reply

    async def score(self, prompt: Prompt, choices: Sequence[str], lease: Lease) -> Scores:
        """Longer choices are likelier."""
        self.prompts.append(prompt)
        self.sessions.append(lease["key"])
        return Scores(tuple(-3.0 / len(choice) for choice in choices), Usage(20, 15))

    async def prefill(self, prompt: Prompt, lease: Lease) -> Reply:
        self.prefilled.append(prompt)
        self.prefilled_for.append(lease["ttl_s"])
        return Reply(text="", finish_reason="length", usage=Usage(8, 3))

    async def end_session(self, session: str, cache_salt: str | None) -> None:
        self.ended.append((session, cache_salt))

    def texts(self) -> list[str]:
        return [prompt.text for prompt in self.prompts if isinstance(prompt, TextPrompt)]
