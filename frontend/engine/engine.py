"""`arbora.Engine`: a model in this process tree, without HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Unpack, overload

from . import work
from .completion import Completion, CompletionPart, Score
from .options import EngineOptions, engine_config, errors_with_keywords
from .requests import Prompt, Prompts
from .sampling import ChatOptions, Sampling, ScoreOptions, TokenizeOptions, merge, merge_each
from .thread import EngineThread
from .work import Conversation, Conversations


class Engine:
    """A model that is ready when the constructor returns and ends with `close`.

    `model` is a directory, a GGUF file, a hub id, or None for the built-in one. Use it as a context manager,
    from any thread, also while an asyncio loop runs. Every method has an async twin. All raise `RequestError`
    for a request that can't be served and `ServerError` when the model's processes can't go on; the
    constructor raises `ConfigError` for a model or options that can't be used.

    A prompt is text or token ids; a chat is a list of messages as in OpenAI's API. The fields of `Sampling`
    (for chats of `ChatOptions`) are keyword arguments, or one `Sampling` as the second argument, or both. A
    call for a list of prompts or conversations also takes a list, one `Sampling` for each. With `use_tqdm`
    it shows a progress bar.
    """

    def __init__(self, model: str | None = None, **options: Unpack[EngineOptions]) -> None:
        with errors_with_keywords():
            self._thread = EngineThread(engine_config(model, options))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the model's processes. Open requests raise `ServerError`. A second call has no effect."""
        self._thread.close()

    @overload
    def generate(
        self,
        prompt: Prompt,
        sampling_params: Sampling | None = None,
        *,
        use_tqdm: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: Prompts,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        use_tqdm: bool = False,
        **sampling: Unpack[Sampling],
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: Prompt | Prompts,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        use_tqdm: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Completion | list[Completion]:
        """The completion of a prompt, or those of a list of prompts in its order."""
        return self._thread.run(work.generate(prompt, merge_each(sampling_params, sampling), use_tqdm))

    @overload
    async def agenerate(
        self,
        prompt: Prompt,
        sampling_params: Sampling | None = None,
        *,
        use_tqdm: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Completion: ...
    @overload
    async def agenerate(
        self,
        prompt: Prompts,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        use_tqdm: bool = False,
        **sampling: Unpack[Sampling],
    ) -> list[Completion]: ...
    async def agenerate(
        self,
        prompt: Prompt | Prompts,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        use_tqdm: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Completion | list[Completion]:
        return await self._thread.run_async(
            work.generate(prompt, merge_each(sampling_params, sampling), use_tqdm)
        )

    def stream(
        self, prompt: Prompt, sampling_params: Sampling | None = None, **sampling: Unpack[Sampling]
    ) -> Iterator[CompletionPart]:
        """The completion of a prompt in parts, as they arrive."""
        return self._thread.stream(work.stream_completion(prompt, merge(sampling_params, sampling)))

    def astream(
        self, prompt: Prompt, sampling_params: Sampling | None = None, **sampling: Unpack[Sampling]
    ) -> AsyncIterator[CompletionPart]:
        return self._thread.stream_async(work.stream_completion(prompt, merge(sampling_params, sampling)))

    @overload
    def chat(
        self,
        messages: Conversation,
        sampling_params: Sampling | None = None,
        *,
        use_tqdm: bool = False,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...
    @overload
    def chat(
        self,
        messages: Conversations,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        use_tqdm: bool = False,
        **options: Unpack[ChatOptions],
    ) -> list[Completion]: ...
    def chat(
        self,
        messages: Conversation | Conversations,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        use_tqdm: bool = False,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion]:
        """The reply to a conversation, or those to a list of conversations in its order."""
        return self._thread.run(work.chat(messages, merge_each(sampling_params, options), use_tqdm))

    @overload
    async def achat(
        self,
        messages: Conversation,
        sampling_params: Sampling | None = None,
        *,
        use_tqdm: bool = False,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...
    @overload
    async def achat(
        self,
        messages: Conversations,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        use_tqdm: bool = False,
        **options: Unpack[ChatOptions],
    ) -> list[Completion]: ...
    async def achat(
        self,
        messages: Conversation | Conversations,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        use_tqdm: bool = False,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion]:
        return await self._thread.run_async(
            work.chat(messages, merge_each(sampling_params, options), use_tqdm)
        )

    def stream_chat(
        self,
        messages: Conversation,
        sampling_params: Sampling | None = None,
        **options: Unpack[ChatOptions],
    ) -> Iterator[CompletionPart]:
        """The reply to a conversation in parts, as they arrive."""
        return self._thread.stream(work.stream_chat(messages, merge(sampling_params, options)))

    def astream_chat(
        self,
        messages: Conversation,
        sampling_params: Sampling | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncIterator[CompletionPart]:
        return self._thread.stream_async(work.stream_chat(messages, merge(sampling_params, options)))

    def tokenize(self, prompt: str | Conversation, **options: Unpack[TokenizeOptions]) -> list[int]:
        """The tokens of a text or a conversation, as `generate` and `chat` compute them."""
        return self._thread.run(work.tokens(prompt, options))

    async def atokenize(self, prompt: str | Conversation, **options: Unpack[TokenizeOptions]) -> list[int]:
        return await self._thread.run_async(work.tokens(prompt, options))

    def end_lease(self, key: str, cache_salt: str | None = None) -> None:
        """Ends the leases that requests took with `cache_lease` under `key`."""
        self._thread.run(work.end_lease(key, cache_salt))

    async def aend_lease(self, key: str, cache_salt: str | None = None) -> None:
        await self._thread.run_async(work.end_lease(key, cache_salt))

    def score(
        self, prompt: str | Conversation, choices: Sequence[str], **options: Unpack[ScoreOptions]
    ) -> list[Score]:
        """How likely each choice is after a text or as the beginning of the reply to a conversation.

        If the conversation ends with an assistant's message, the choices continue it. Scored are the tokens
        after the longest prefix that the prompt alone and the prompt with each choice have in common.
        """
        return self._thread.run(work.score(prompt, choices, options))

    async def ascore(
        self, prompt: str | Conversation, choices: Sequence[str], **options: Unpack[ScoreOptions]
    ) -> list[Score]:
        return await self._thread.run_async(work.score(prompt, choices, options))
