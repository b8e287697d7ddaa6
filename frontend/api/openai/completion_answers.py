"""Text completions on the wire: a stream of chunks, or one text for each choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from ....runtime.messages import Logprobs, Tokens
from ...core.logprobs import TokenLogprob, prompt_entries
from ...core.parts import Piece
from ...core.reply import ChoiceReply, Reply
from ...core.text.detokenizer import Detokenizer
from ...core.text.tokenizer import Tokenizer
from ...core.work.thread_pool import Steps
from .chunks import ChunkWriter, Head
from .responses import Completion, CompletionChoice, CompletionLogprobs, PromptLogprobs, wire_usage
from .token_logprobs import completion_logprobs, prompt_logprobs

_encode = msgspec.json.encode
STEP_TOKENS = 8192
"""Tokens that take about 5 ms to decode."""


class EchoedPrompt(NamedTuple):
    """A prompt's text and, if its log-probabilities are wanted, the offset of each token in the text."""

    text: str
    offsets: Sequence[int] = ()


def echo_prompts(
    tokenizer: Tokenizer, items: Sequence[str | list[int]], prompts: Sequence[Tokens], wants_logprobs: bool
) -> Steps[list[EchoedPrompt]]:
    """The prompts as their choices echo them. `items` are the prompts as texts or ids, `prompts` their
    tokens."""
    echoed = []
    for item, prompt in zip(items, prompts, strict=True):
        if isinstance(item, str) and not wants_logprobs:
            echoed.append(EchoedPrompt(item))
            continue
        decoded, offsets = yield from _decode_prompt(tokenizer, prompt)
        text = item if isinstance(item, str) else decoded
        added = max(len(decoded) - len(text), 0)  # characters of a special token before the text
        echoed.append(EchoedPrompt(text, [max(offset - added, 0) for offset in offsets]))
    return echoed


def _decode_prompt(tokenizer: Tokenizer, prompt: Tokens) -> Steps[tuple[str, list[int]]]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False, continues_text=False)
    texts: list[str] = []
    offsets: list[int] = []
    for start in range(0, len(prompt), 4 * STEP_TOKENS):
        end = start + 4 * STEP_TOKENS
        delta = detokenizer.push(prompt[start:end], final=end >= len(prompt))
        texts.append(delta.text)
        offsets += delta.offsets
        yield
    return "".join(texts), offsets


@dataclass(frozen=True)
class CompletionContext:
    """The facts about a completion request that its answer needs, streamed or whole.

    Each of its `prompts` has `choices` choices, which echo its text in `echoed`, unless that is empty.
    """

    head: Head
    tokenizer: Tokenizer
    prompts: Sequence[Tokens]
    echoed: Sequence[EchoedPrompt]
    choices: int
    wants_logprobs: bool
    wants_prompt_logprobs: bool

    def prompt_of(self, index: int) -> Tokens:
        return self.prompts[index // self.choices]

    def echo_prompt(self, index: int, logprobs: Logprobs | None) -> tuple[str, list[TokenLogprob]]:
        """The text and log-probabilities of the prompt if choice `index` echoes it, otherwise empty."""
        if not self.echoed:
            return "", []
        text, offsets = self.echoed[index // self.choices]
        if not self.wants_logprobs:
            return text, []
        return text, prompt_entries(self.prompt_of(index), logprobs, offsets)

    def logprobs(self, entries: Sequence[TokenLogprob], offset: int) -> CompletionLogprobs | None:
        """OpenAI's form of `entries`, whose offsets count from a text after `offset` characters."""
        if not self.wants_logprobs:
            return None
        return completion_logprobs(self.tokenizer, entries, offset)

    def body(self, reply: Reply) -> bytes:
        """The body of an answer that is not streamed."""
        return _encode(
            Completion(
                **self.head._asdict(),
                choices=[self._choice(index, choice) for index, choice in enumerate(reply.choices)],
                usage=wire_usage(reply),
                unenforced=reply.unenforced() or UNSET,
                cache_explanation=reply.explanation or UNSET,
            )
        )

    def _choice(self, index: int, choice: ChoiceReply) -> CompletionChoice:
        echoed, entries = self.echo_prompt(index, choice.prompt_logprobs)
        offset = len(echoed)
        own = [entry._replace(offset=entry.offset + offset) for entry in choice.logprobs]
        scored: PromptLogprobs | UnsetType = UNSET
        if self.wants_prompt_logprobs:
            scored = prompt_logprobs(self.tokenizer, self.prompt_of(index), choice.prompt_logprobs)
        return CompletionChoice(
            index=index,
            text=echoed + choice.parts.text("text"),
            logprobs=self.logprobs([*entries, *own], 0),
            finish_reason=choice.finish,
            stop_reason=choice.stop_reason,
            prompt_logprobs=scored,
        )


class CompletionStream:
    """One chunk for each piece. The last text and the finish reason share a chunk, as in OpenAI's streams."""

    def __init__(self, context: CompletionContext, reply: Reply, writer: ChunkWriter) -> None:
        self._context = context
        self._reply = reply
        self._writer = writer
        self._echoed: list[int | None] = [None for _ in reply.choices]
        self._around = [writer.around(index, b'"text":', b"") for index in range(len(reply.choices))]

    def around_text(self, choice: int) -> tuple[bytes, bytes] | None:
        needs_more = self._context.wants_logprobs or self._writer.continuous
        return None if needs_more or self._echoed[choice] is None else self._around[choice]

    def push(self, piece: Piece) -> bytes:
        echo = self._echo(piece.choice)
        if not piece.content and not piece.logprobs and piece.finish is None:
            return echo
        offset = self._echoed[piece.choice] or 0
        logprobs = self._context.logprobs(piece.logprobs, offset)
        return echo + self._chunk(piece.choice, piece.content, logprobs, piece.finish)

    def end(self) -> bytes:
        return self._writer.end(wire_usage(self._reply), self._reply)

    def _echo(self, index: int) -> bytes:
        """A chunk with the echoed prompt; empty if the choice has none or it was sent."""
        if self._echoed[index] is not None:
            return b""
        text, entries = self._context.echo_prompt(index, self._reply.choices[index].prompt_logprobs)
        self._echoed[index] = len(text)
        return self._chunk(index, text, self._context.logprobs(entries, 0), None) if text else b""

    def _chunk(self, index: int, text: str, logprobs: CompletionLogprobs | None, finish: str | None) -> bytes:
        return self._writer.choice(
            index,
            b'"text":' + _encode(text),
            logprobs=logprobs,
            finish=finish,
            stop_reason=self._reply.choices[index].stop_reason,
            usage=wire_usage(self._reply) if self._writer.continuous else None,
        )
