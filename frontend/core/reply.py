"""A request's choices as they grow: turns the scheduler's outputs into text and log-probabilities."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from ...runtime.messages import DraftCounts, LeftOutKeyword, Logprobs, Output, Tokens
from .cache_misses.explanation import Explanation
from .logprobs import TokenLogprob, unpack
from .parts import Parts, Piece
from .replica.generation import Arrival, Generation, early_end
from .text.detokenizer import Detokenizer
from .tools.reply_parser import ContentDelta, Delta, ReasoningDelta, ReplyParser, ToolCallDelta

MANY_TOKENS = 1000  # tokens in a batch whose log-probabilities take long to unpack and write


class Usage(msgspec.Struct, frozen=True):
    """Counts of tokens. Of the prompt tokens `cached_tokens` were found in the cache, and `written_tokens`
    were computed and left there. If only the last token was computed, as it always is, it does not count."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    written_tokens: int = 0


class UnenforcedKeyword(msgspec.Struct):
    """A keyword of a schema that is not enforced, and its path in the schema."""

    keyword: str
    path: str


class ChoiceReply:
    """One choice. The stop token counts as a token of the reply, but its text is shown only on request.

    `parser` separates reasoning and calls from the content; without it all text is content. The `remember` of
    a chat takes the choice's whole text and tokens once it has ended, so that the conversation's next turn
    begins with them. `reasoning_tokens` are counted up to the piece in which the reasoning ends. `parts` and
    `logprobs` have all pieces, once `collect` was called. `called_tools` are names.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        shows_stop_token: bool,
        eos_tokens: Sequence[int],
        *,
        parser: ReplyParser | None = None,
        remember: Callable[[str, Tokens], None] | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._shows_stop_token = shows_stop_token
        self._eos_tokens = eos_tokens
        self._parser = parser
        self._remember = remember
        self._is_plain = not detokenizer.has_stop_strings and parser is None
        self._tokens = bytearray()
        self._texts: list[str] = []  # texts of the tokens so far, kept for `remember`
        self._settled = 0
        self._collects = False
        self.parts = Parts()
        self.logprobs: list[TokenLogprob] = []
        self.called_tools: list[str] = []
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.cached_tokens = 0
        self.accepted_prediction = self.rejected_prediction = 0
        self.drafts = DraftCounts()
        self.prompt_logprobs: Logprobs | None = None
        self.finish: str | None = None
        self.stop_reason: str | int | None = None

    @property
    def tokens(self) -> Tokens:
        return bytes(self._tokens[: 4 * self.completion_tokens])

    def settled_tokens(self, start: int) -> Tokens:
        """The tokens after the first `start` that no stop string can remove any more."""
        return bytes(self._tokens[4 * start : 4 * self._settled])

    @property
    def has_begun(self) -> bool:
        """Whether the prompt has been computed: the reply has tokens, or has ended without any."""
        return bool(self._tokens) or self.finish is not None

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.called_tools)

    def may_take_long(self, output: Output, several: bool) -> bool:
        """Whether `push` may take more than a few milliseconds: unpacking many log-probabilities does, and so
        does checking a complete call against its schema. `several`: more outputs follow at once."""
        if output.prompt_logprobs is not None and len(output.prompt_logprobs.chosen) > 4 * MANY_TOKENS:
            return True
        has_several = several or len(output.tokens) > 4 or self._detokenizer.holds_text
        return self._parser is not None and self._parser.may_check(has_several)

    def is_quick(self, output: Output) -> bool:
        """Whether `push` takes little time and can't end the choice."""
        if self._only_adds_token(output):
            return True
        return (
            output.finish is None
            and not self._detokenizer.has_stop_strings
            and not self.may_take_long(output, several=False)
        )

    def _only_adds_token(self, output: Output) -> bool:
        """Whether the output only adds one token whose text is content, and does not end the choice."""
        return (
            self._is_plain
            and output.finish is None
            and output.logprobs is None
            and output.cached_tokens is None
            and output.prompt_logprobs is None
            and output.prediction is None
            and output.drafts is None
            and len(output.tokens) == 4
        )

    def collect(self) -> None:
        """From now on, collects the pieces in `parts` and `logprobs`."""
        self._collects = True

    def push(self, index: int, output: Output) -> Piece:
        if self._only_adds_token(output):
            piece = Piece(index, self._push_one(output.tokens), (), None)
        else:
            piece = self._push(index, output)
        if self._collects and not (piece.is_text_alone and self.parts.add_text(piece.content)):
            self.parts.add(piece)
            self.logprobs += piece.logprobs
        return piece

    def _push(self, index: int, output: Output) -> Piece:
        if output.cached_tokens is not None:
            self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        self.prompt_logprobs = self.prompt_logprobs or output.prompt_logprobs
        if output.prediction is not None:
            self.accepted_prediction += output.prediction.accepted
            self.rejected_prediction += output.prediction.rejected
        if output.drafts is not None:
            self.drafts.add(output.drafts)
        self._tokens += output.tokens
        hidden = 1 if output.stop_token is not None and not self._shows_stop_token else 0
        shown = output.tokens[: len(output.tokens) - 4 * hidden] if hidden else output.tokens
        delta = self._detokenizer.push(shown, final=output.finish is not None)
        if self._remember is not None:
            self._texts.append(delta.text)
        self.completion_tokens = delta.tokens_kept
        offsets = delta.offsets
        if delta.stopped is not None:
            self.finish, self.stop_reason = "stop", delta.stopped
        else:
            self.finish = output.finish
            self.completion_tokens += hidden
            offsets += (self._detokenizer.characters,) * hidden
            if output.stop_token not in self._eos_tokens:
                self.stop_reason = output.stop_token
        if self.finish is not None or not self._detokenizer.holds_text:
            self._settled = self.completion_tokens
        entries = unpack(output.tokens, output.logprobs, offsets) if output.logprobs else ()
        content, reasoning, deltas = self._read(delta.text)
        return Piece(index, content, entries, self.finish, reasoning, deltas)

    def _push_one(self, token: Tokens) -> str:
        """Adds the token of an output for which `_only_adds_token` holds. Returns its text."""
        self._tokens += token
        text = self._detokenizer.push_one(int.from_bytes(token, "little"))
        if self._remember is not None:
            self._texts.append(text)
        self.completion_tokens += 1
        self._settled = self.completion_tokens
        return text

    def remember(self) -> None:
        """Remembers the tokens of a chat's reply that has ended. May be called from any thread."""
        if self._remember is not None:
            self._remember("".join(self._texts), self.tokens)

    def _read(self, text: str) -> tuple[str, str, Sequence[Delta]]:
        """Separates new text into content and reasoning. With calls, or with reasoning after content, it also
        returns all of it in its order."""
        if self._parser is None:
            return text, "", ()
        is_cut = self.finish == "length" or isinstance(self.stop_reason, str)
        ends = self._parser.ends
        deltas = self._parser.push(text, self.finish is not None, is_cut)
        if self._parser.is_reasoning or self._parser.ends > ends:
            self.reasoning_tokens = self.completion_tokens
        calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        self.called_tools += [delta.name for delta in calls if delta.name is not None]
        content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
        reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
        is_split = any(isinstance(delta, ReasoningDelta) for delta in deltas[1:])
        return content, reasoning, deltas if calls or is_split else ()


class Reply:
    """All choices of a request: `n` for each of its prompts, in that order.

    `is_cached`: what the request computes stays in the cache. `explanation` is set before the answer is
    closed, if the request wants it.
    """

    def __init__(
        self, choices: Sequence[ChoiceReply], generation: Generation, n: int, *, is_cached: bool = True
    ) -> None:
        self.choices = choices
        self._is_cached = is_cached
        self.explanation: Explanation | None = None
        self._n = n
        self._generation = generation
        self._open = len(choices)
        self._ended = deque[ChoiceReply]()  # ended choices that `remember` has not stored yet
        self._stopped: list[int] = []  # choices that a stop string has ended
        self._called: list[int] = []  # choices that ended in tool calls

    @property
    def done(self) -> bool:
        return not self._open

    @property
    def has_begun(self) -> bool:
        """Whether all prompts have been computed."""
        return all(choice.has_begun for choice in self.choices)

    def may_take_long(self, arrivals: Sequence[Arrival]) -> bool:
        """Whether pushing the arrivals takes so long that it belongs on another thread."""
        several = len(arrivals) > 1 and len({index for index, _, _ in arrivals}) < len(arrivals)
        return any(self.choices[index].may_take_long(output, several) for index, output, _ in arrivals)

    def push(self, arrivals: Sequence[Arrival]) -> list[Piece]:
        """Turns outputs into pieces, on any thread. Call `remember` and `end_stopped` afterwards."""
        pieces = []
        for index, output, _ in arrivals:
            choice = self.choices[index]
            if choice.finish is not None:
                continue
            if output.finish in ("error", "abort"):
                raise early_end(output)
            pieces.append(choice.push(index, output))
            if choice.finish is not None:
                self._end(index, choice, output)
        return pieces

    def _end(self, index: int, choice: ChoiceReply, output: Output) -> None:
        self._open -= 1
        self._ended.append(choice)
        if output.finish is None:
            self._stopped.append(index)
        if choice.called_tools:
            self._called.append(index)

    @property
    def has_ended_choices(self) -> bool:
        """Whether choices have ended that `remember` has not seen."""
        return bool(self._ended)

    def remember(self) -> None:
        """Remembers the tokens of ended chat choices for the next turn. May be called from any thread."""
        while (choice := self._next_ended()) is not None:
            choice.remember()

    def _next_ended(self) -> ChoiceReply | None:
        try:
            return self._ended.popleft()
        except IndexError:  # another thread may have taken the last one
            return None

    def end_stopped(self) -> None:
        """Tell the scheduler which choices a stop string or tool calls have ended. Call it only on the event
        loop."""
        for index in self._stopped:
            self._generation.finish(index)
        for index in self._called:
            self._generation.await_tools(index, self.choices[index].called_tools)
        self._stopped.clear()
        self._called.clear()

    def unenforced(self) -> list[UnenforcedKeyword]:
        """The schema's keywords that the reply may violate: misspelt ones, unknown formats, and if the
        request allows it all keywords that the grammar leaves out. Otherwise those keywords are checked in
        complete calls."""
        grammar = self._generation.requests[0].grammar
        left_out: Sequence[LeftOutKeyword] = self._generation.left_out
        if grammar is None or grammar.unenforced != "allow":
            left_out = [each for each in left_out if each.keyword == "format"]
        misspelt = () if grammar is None else grammar.misspelt
        return [UnenforcedKeyword(*each) for each in misspelt] + [
            UnenforcedKeyword(each.keyword, each.path) for each in left_out
        ]

    def count_drafts(self) -> DraftCounts:
        """The steps and drafts of all choices; zeros if there were no drafts."""
        counts = DraftCounts()
        for choice in self.choices:
            counts.add(choice.drafts)
        return counts

    def usage(self) -> Usage:
        """Counts the request's tokens. A prompt and its cached tokens count once, not for each choice."""
        prompts = [len(each.prompt) // 4 for each in self._generation.requests[:: self._n]]
        cached = [choice.cached_tokens for choice in self.choices[:: self._n]]
        computed = [prompt - known for prompt, known in zip(prompts, cached, strict=True)]
        return Usage(
            prompt_tokens=sum(prompts),
            cached_tokens=sum(cached),
            completion_tokens=sum(choice.completion_tokens for choice in self.choices),
            written_tokens=sum(tokens for tokens in computed if tokens > 1) if self._is_cached else 0,
        )
