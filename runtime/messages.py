"""Every message that crosses a process border. Reading this module tells the whole protocol.

    tokenizer → scheduler     Generate, Abort, Finish, QueryStats,
                              QueryCache, DropCache, CheckPin, PinPrefix, UnpinPrefix
    scheduler → tokenizer     Accepted, Refused, Outputs, Stats,
                              CacheReport, CacheDropped, PinFits, PrefixPinned, QueryRefused
    scheduler → model         StepPlan, StepMasks, LoadGrammar, DropGrammar,
                              SavePages, ForgetPages, DiscardPages, FlushPages
    scheduler → page store    FindPages, FetchPages, EndFetch, UsedPages
    model → scheduler         ModelReady, StepResult, Flushed
    page store → scheduler    Found, Fetched, Forgotten, StoreReport
    supervisor → tokenizer    PeerUp, PeerDown, PeerResponds, Drain, GiveUp
    supervisor → scheduler    PeerDown, Drain
    any child → supervisor    Ready, Alive, Failed, Drained

Token ids travel as `Tokens`: packed little-endian int32, never as lists. Arrays of other types
travel packed the same way; each field says its dtype. Messages are msgpack arrays, tagged by
their class name, in an envelope that carries the epoch (`sockets`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .grammar_spec import GrammarSpec as GrammarSpec
from .grammar_spec import PropertyOrder as PropertyOrder
from .grammar_spec import Unenforced as Unenforced
from .sampling_params import SamplingParams

Tokens = bytes
FinishReason = Literal["stop", "length", "abort", "error"]


class Message(msgspec.Struct, tag=True, array_like=True):
    """Base of everything that travels alone."""


class Part(msgspec.Struct, array_like=True):
    """Base of what travels inside a message."""


# tokenizer → scheduler


class Generate(Message):
    """One sequence to generate. A request with `n` choices is n of these.

    `namespace` says who shares prefixes with it; with None the cache is neither read nor added to. `tenant`
    is whose fair share it is served from. Of two priorities the lower number goes first.
    """

    request: str
    client: int
    prompt: Tokens
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    namespace: str | None = ""
    priority: int = 0
    tenant: str = ""


class Abort(Message):
    """The client went away: plan nothing more for it, answer nothing."""

    request: str


class Finish(Message):
    """A stop string was found in the text: the reply is its first `tokens_kept` tokens."""

    request: str
    tokens_kept: int


class QueryStats(Message):
    client: int
    query: int


class QueryCache(Message):
    """What the cache holds in the namespaces whose names begin with `scope`; tokens of `own` alone."""

    client: int
    query: int
    scope: str
    own: str


class DropCache(Message):
    """Give up what is cached in `namespace`, or in all whose names begin with `scope`, and not in use."""

    client: int
    query: int
    scope: str
    namespace: str | None


class CheckPin(Message):
    """Whether the full pages of `tokens` may be pinned once they are cached, as far as can be told before."""

    client: int
    query: int
    scope: str
    namespace: str
    tokens: Tokens


class PinPrefix(Message):
    """Keep the full pages of `tokens`, which are cached, for `ttl_s` seconds.

    `pin` is a new name; the same prefix keeps the one it has. All pins of a `scope` share a quota.
    """

    client: int
    query: int
    pin: str
    scope: str
    namespace: str
    tokens: Tokens
    ttl_s: float


class UnpinPrefix(Message):
    client: int
    query: int
    pin: str
    scope: str


# scheduler → tokenizer


class LeftOut(Part):
    """A keyword of a schema that is not enforced, and its path there."""

    keyword: str
    path: str


class Accepted(Message):
    request: str
    left_out: list[LeftOut] = []


class Refused(Message):
    """The request never started, or its replies were read too late (503). `status` is the HTTP status.

    `param` names the field at fault. `retry_after` is in seconds, where the scheduler knows.
    """

    request: str
    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None


class Logprobs(Part):
    """Log-probabilities of n tokens with k alternatives each, of the raw logits, natural log."""

    chosen: bytes  # float32 [n]
    top_ids: bytes  # int32 [n, k]
    top_values: bytes  # float32 [n, k], descending


class ReplyError(Part):
    """Why a reply ended early. `status` is the HTTP status, `param` the field at fault, as in `Refused`."""

    message: str
    status: int = 500
    param: str | None = None
    code: str = "error"


class Output(Part):
    """What one request gained in a step. The last one has `finish`.

    `cached_tokens` and `prompt_logprobs` (of prompt positions 1, 2, …) come with the first one.
    `stop_token` is the last of `tokens` if that ended it: an end-of-sequence or stop id.
    """

    request: str
    tokens: Tokens = b""
    logprobs: Logprobs | None = None
    finish: FinishReason | None = None
    stop_token: int | None = None
    error: ReplyError | None = None
    cached_tokens: int | None = None
    prompt_logprobs: Logprobs | None = None


class Outputs(Message):
    items: list[Output]


class StoreCounts(Part):
    """What the page store holds, in pages and bytes, and what it has done since the epoch's start.

    `lost_pages` were not saved: host memory was full of pages that were in use or not on disk yet.
    `host_hits`, `disk_hits` and `remote_hits` are pages fetched, by where they were.
    """

    host_pages: int = 0
    host_bytes: int = 0
    disk_pages: int = 0
    disk_bytes: int = 0
    saved_pages: int = 0
    lost_pages: int = 0
    host_hits: int = 0
    disk_hits: int = 0
    remote_hits: int = 0
    restored_pages: int = 0


class Stats(Message):
    """A snapshot of the scheduler, in requests, pages, tokens. Counters count from the epoch's start."""

    query: int
    running: int
    waiting: int
    pages_total: int
    pages_used: int
    pages_cached: int
    pages_pinned: int
    prompt_tokens_cached: int
    prompt_tokens_computed: int
    output_tokens: int
    forced_tokens: int
    retractions: int
    evicted_pages: int
    steps: int
    store: StoreCounts


class CachedPrefix(Part):
    """`hits` requests began with its `tokens` tokens; `idle` tokens and releases since the last one. `head`
    and `tail` are its first and last tokens if they are the asker's own, else nothing."""

    namespace: str
    head: Tokens
    tail: Tokens
    tokens: int
    hits: int
    idle: int


class PinnedPrefix(Part):
    """`expires_at` is in seconds since 1970."""

    pin: str
    namespace: str
    tokens: int
    pages: int
    expires_at: float


class CacheReport(Message):
    """Pages used, cached and free are all there are; those pinned are among the used ones. Pinned and
    pinnable are those of the scope.

    The prompt tokens of requests that might read the cache, and how many of them were found there: since
    the start, and of the last `recent_requests`. `namespaces` are pages by name, of the largest ones.
    """

    query: int
    pages_total: int
    pages_free: int
    pages_used: int
    pages_cached: int
    pages_pinned: int
    pages_pinnable: int
    prompt_tokens: int
    cached_tokens: int
    recent_requests: int
    recent_prompt_tokens: int
    recent_cached_tokens: int
    evicted_pages: int
    store: StoreCounts
    namespaces: dict[str, int]
    prefixes: list[CachedPrefix]
    pins: list[PinnedPrefix]


class CacheDropped(Message):
    """Pages and tokens given up in the KV cache, and pages in the page store's tiers. `disk_pages` is None if
    the disk failed, `remote_pages` if the remote store could not be reached, which then still has them."""

    query: int
    pages: int
    tokens: int
    host_pages: int = 0
    disk_pages: int | None = 0
    remote_pages: int | None = 0


class PinFits(Message):
    query: int


class PrefixPinned(Message):
    """The pin that now holds, or that was taken back."""

    query: int
    pin: PinnedPrefix


class QueryRefused(Message):
    """`status` is the HTTP status, `param` the field at fault, as in `Refused`."""

    query: int
    status: int
    message: str
    param: str | None
    code: str


# scheduler → model


class SlotSetup(Part):
    """A row's sent-once state, sent again behind tokens that were forced.

    `prompt` and `output` are there only if the row uses penalties.

    `banned_tokens` may not be sampled before output position `min_tokens`. `position` is the output
    position of the next token (not zero after a retraction or a jump). `grammar` is a loaded automaton's id,
    `state` its state and `stack` what it pushed and not popped (int32, first push first); rows masked
    by the host have none of them.
    """

    slot: int
    sampling: SamplingParams
    position: int = 0
    prompt: Tokens = b""
    output: Tokens = b""
    banned_tokens: Tokens = b""
    grammar: int | None = None
    state: int = 0
    stack: bytes = b""


class Row(Part):
    """One row of a step: compute KV for `tokens` from position `start` on.

    `tokens` empty: one token, the one that the slot sampled last (it never leaves the device).
    `sample`: sample a token from the logits of the last position. `targets`: the tokens that follow
    each position, to report prompt log-probabilities for (one fewer at the end of the prompt).
    `host_mask`: the mask comes with this step's `StepMasks`. `new_pages` (int32) are appended to
    the slot's page table, which is emptied by a `SlotSetup`.
    """

    slot: int
    start: int
    tokens: Tokens = b""
    sample: bool = True
    new_pages: bytes = b""
    targets: Tokens = b""
    host_mask: bool = False


class PageCopy(Part):
    source: int
    destination: int


class SavedPages(Part):
    """Pages whose contents the page store is to take in by their keys (16 bytes each; int32 page ids)."""

    namespace: str
    keys: bytes
    pages: bytes


class RestoredPages(Part):
    """Pages (int32 ids) to fill with those of a fetch, from its page `first` on.

    Their row may come in a later step.
    """

    fetch: int
    first: int
    pages: bytes


class RowGroup(Part):
    """Consecutive decode rows whose first `shared_tokens` (whole pages) are the same pages."""

    first_row: int
    rows: int
    shared_tokens: int


class StepPlan(Message):
    """One step, in the order of work: setups, saves, copies, restores, then the forward pass over `rows`.

    Decode rows stand before prefill chunks. Steps are numbered from 1 and run in order. `fetches_over` need
    not be kept ready for a restore any longer than for those of this step.
    """

    step: int
    rows: list[Row]
    setups: list[SlotSetup] = []
    copies: list[PageCopy] = []
    groups: list[RowGroup] = []
    saves: list[SavedPages] = []
    restores: list[RestoredPages] = []
    fetches_over: list[int] = []


class StepMasks(Message):
    """Masks of the step's rows with `host_mask` (int32 [rows, ceil(vocab / 32)], bit set: allowed).

    A row that is missing was finished meanwhile: its token will be thrown away.
    """

    step: int
    slots: bytes  # int32 [rows]
    masks: bytes


class LoadGrammar(Message):
    """An automaton's tables: see `grammars.automaton.Automaton` and its parts for their meaning."""

    grammar: int
    class_of_byte: bytes  # uint8 [256]
    row_starts: bytes  # int32 [states]
    default_state: bytes  # int32 [states]
    entries: bytes  # int32 [places]
    owners: bytes  # int32 [places]
    mask_of_state: bytes  # int32 [states]
    masks: bytes  # int32 [masks, ceil(vocab / 32)]
    lists_of_state: bytes  # int32 [states, 3]
    list_offsets: bytes  # int32 [lists + 1]
    list_tokens: bytes  # int32
    opener_counts: bytes  # int32 [lists]
    actions: bytes  # int32 [actions, ACTION_COLUMNS]
    returns: bytes  # int32


class DropGrammar(Message):
    grammar: int


class SavePages(Message):
    """The page store is to have these pages too: all that was planned for them so far is computed before."""

    saves: list[SavedPages]


class ForgetPages(Message):
    """The page store is to give up what it holds of `namespace`, or of all that begin with `scope`.

    `dropped` is the answer to `client`, which comes back in `Forgotten` with what that was.
    """

    scope: str
    namespace: str | None
    client: int
    dropped: CacheDropped


class DiscardPages(Message):
    """What the page store holds under these keys (16 bytes each) may be wrong, and must not be served."""

    namespace: str
    keys: bytes


class FlushPages(Message):
    """Save these pages too, and see to it that all that was saved outlives the process; then `Flushed`.

    `saves` begin with what was used last. For `fetches_over` see `StepPlan`.
    """

    saves: list[SavedPages]
    fetches_over: list[int] = []


# scheduler → page store


class FindPages(Message):
    """A prompt is queued: how many of these pages, from the first on, are stored?"""

    fetch: int
    namespace: str
    keys: bytes


class FetchPages(Message):
    """Get ready to restore what was found."""

    fetch: int


class EndFetch(Message):
    """Nobody wants it any more, and no step restores any of it."""

    fetch: int


class UsedPages(Message):
    """A request has used these pages on the device, the first ones of a prompt and its reply: those that are
    stored are to be kept as if they were fetched."""

    keys: bytes


# page store → scheduler


class Found(Message):
    """The first `pages` are stored. Without any the fetch is over."""

    fetch: int
    pages: int


class Fetched(Message):
    """The first `pages` are ready, until a step has the fetch among its `fetches_over`, or `EndFetch`."""

    fetch: int
    pages: int


class Forgotten(Message):
    """It is done, and outlives the process."""

    client: int
    dropped: CacheDropped


class StoreReport(Message):
    counts: StoreCounts


class Flushed(Message):
    """All that could be saved is."""


# model → scheduler


class ModelReady(Message):
    """The model is loaded and can run steps with up to `slots` rows.

    `page_model` names what a page's content depends on, beside its tokens, for the page store's keys; it is
    empty if there is none. `host_pages` is how many pages that has room for in host memory.
    """

    num_pages: int
    page_size: int
    max_model_len: int
    slots: int
    vocab_size: int
    device: str
    page_bytes: int
    page_model: bytes = b""
    host_pages: int = 0


class RowError(Part):
    """A row that has no token. After `not_a_number` what it computed must not be used again."""

    slot: int
    kind: Literal["not_a_number", "nothing_allowed", "mask_late"]
    message: str


class RowPromptLogprobs(Part):
    slot: int
    start: int  # position of the first token reported
    logprobs: Logprobs


class RowLogprobs(Part):
    slot: int
    logprobs: Logprobs


class StepResult(Message):
    """What a step sampled, for its rows with `sample`, in the plan's order.

    `states` are the automaton states after the token (-1: dead, or no such row). `forward_tokens` and
    `elapsed_ms` say how many tokens were computed in how many milliseconds; copying what was restored took
    `restored_ms` of them, or beside them.
    """

    step: int
    slots: bytes  # int32 [rows]
    tokens: Tokens  # int32 [rows]
    states: bytes  # int32 [rows]
    forward_tokens: int
    elapsed_ms: float
    restored_ms: float = 0.0
    logprobs: list[RowLogprobs] = []
    prompt_logprobs: list[RowPromptLogprobs] = []
    errors: list[RowError] = []


# supervisor → tokenizer, scheduler


class PeerUp(Message):
    """The replica (scheduler and model) serves, in the given epoch."""

    epoch: int
    ready: ModelReady


class PeerDown(Message):
    """A replica or a tokenizer process (`client`) died. What it held is lost."""

    role: Literal["replica", "tokenizer"]
    client: int = 0


class PeerResponds(Message):
    """Whether the replica, which is up, shows life: one that is stopped or stuck does not for a while before
    it is ended."""

    responds: bool


class Drain(Message):
    """Take no new requests, finish the open ones, then answer `Drained` and exit."""


class GiveUp(Message):
    """The time to drain is over: end the open requests with an error."""


# child → supervisor


class Ready(Message):
    """The process can take work. The scheduler passes on what the model said of itself."""

    role: Literal["tokenizer", "scheduler"]
    client: int = 0
    model: ModelReady | None = None


class Alive(Message):
    """A sign of life, every second. The main loop has made no progress for `stalled_s` seconds."""

    pid: int
    stalled_s: float


class Failed(Message):
    """The process can't start; `message` is for the user. It exits after this."""

    role: Literal["tokenizer", "scheduler", "model"]
    message: str


class Drained(Message):
    role: Literal["tokenizer", "scheduler"]
    client: int = 0


CacheControl = QueryCache | DropCache | CheckPin | PinPrefix | UnpinPrefix
CacheAnswer = CacheReport | CacheDropped | PinFits | PrefixPinned | QueryRefused
FromSupervisor = PeerUp | PeerDown | PeerResponds | Drain | GiveUp
TokenizerInbox = Accepted | Refused | Outputs | Stats | CacheAnswer | FromSupervisor
FromModel = ModelReady | StepResult | Found | Fetched | Forgotten | StoreReport | Flushed
SchedulerInbox = Generate | Abort | Finish | QueryStats | CacheControl | FromModel | PeerDown | Drain
ToPageStore = SavePages | ForgetPages | DiscardPages | FlushPages
ModelInbox = StepPlan | StepMasks | LoadGrammar | DropGrammar | ToPageStore
PageStoreInbox = FindPages | FetchPages | EndFetch | UsedPages
SupervisorInbox = Ready | Alive | Failed | Drained
