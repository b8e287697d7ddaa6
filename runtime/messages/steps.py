"""Scheduler ↔ model: steps, grammar tables, results.

The model process owns the length of each slot, that is how many of its tokens have KV. The scheduler plans a
step before it knows how many tokens the previous step sampled, so it knows only an upper bound. A row samples
several tokens if the model process has drafts for it, of which the model keeps some (docs/speculation.md).

What a step samples is indexed by slot and offset: the first token that a row samples has offset 0.
`StepMasks` and `RowError` are of offset 0: a row with `host_mask` has no drafts, and tokens that could not be
sampled in a row with drafts are sampled again in the next step.
"""

from __future__ import annotations

from typing import Literal

from msgspec import field

from ..sampling_params import SamplingDefaults, SamplingParams
from .adapters import Adapter
from .base import Message, Part, Tokens
from .generation import Logprobs
from .page_store import RestoredPages, RestoredState, SavedPages, SavedState

DRAFT_SOURCES = ("request", "replies", "prediction")
"""where drafts come from: the request's own tokens, earlier replies in its namespace, and what its client
expects of the reply"""
NO_STATE = -1
"""in the place of a recurrent state's number"""


class SlotSetup(Part):
    """A slot's state that is sent once, and again after forced tokens. It empties the slot's page table."""

    slot: int
    sampling: SamplingParams
    position: int = 0  # output position of the next token
    prompt: Tokens = b""  # sent only for rows with penalties
    output: Tokens = b""  # sent only for rows with penalties
    banned_tokens: Tokens = b""  # tokens that may not be sampled before output position `min_tokens`
    grammar: int | None = None  # id of a loaded automaton; None: no grammar, or the host sends its masks
    state: int = 0  # the automaton's state
    stack: bytes = b""  # the automaton's stack: int32, bottom first
    adapter: int | None = None  # place of a loaded adapter; None: the base model
    state_place: int = NO_STATE  # the place of the slot's recurrent state, if the model has any
    # For drafts, if the model process makes any:
    context: Tokens = b""  # prompt and output from position `context_start` on; it has those before
    context_start: int = 0
    namespace: str | None = None  # namespace of the replies to draft from; None: of no other request
    prediction: Tokens = b""  # what the client expects of the reply; only if `context_start` is 0


class SlotEnd(Part):
    """The end of a slot's request, from whose reply others may draft."""

    slot: int
    length: int  # number of tokens in its prompt and its reply, without forced ones that the process lacks


class Row(Part):
    """One row of a step: a chunk of known tokens, or in decode the token that the slot sampled last.

    That token never leaves the device. Its position is the slot's length.
    """

    slot: int
    start: int = 0  # position of the first of `tokens`; 0 for a row in decode
    tokens: Tokens = b""  # empty: the row is in decode
    samples: int = 1  # tokens that the row samples at most after its last position; 0: none
    new_pages: bytes = b""  # page ids to append to the slot's page table, int32
    new_window_pages: list[bytes] = []
    """the same for the tables of windowed groups; id 0 stands for pages that the row does not need"""
    targets: Tokens = b""
    """for prompt log-probabilities: the token after each position, except after the prompt's last one"""
    untargeted: int = 0  # number of the row's first positions that have no target
    host_mask: bool = False  # whether the row's mask comes in this step's `StepMasks`
    load_state: int = NO_STATE  # the place from which the slot's recurrent state is copied before the step
    save_state: int = NO_STATE  # the place to which it is copied after the step
    pools: bool = False  # whether the input ends with the row, so that its vector is wanted
    second: int = 0  # position of the first token of a pair's second text; 0: the input is no pair


class PageCopy(Part):
    source: int
    destination: int
    group: int = 0  # index in `ModelReady.groups`


class RowGroup(Part):
    """Consecutive rows of a step whose page tables begin with the same pages.

    Two groups are either disjoint, or the earlier one contains all rows of the later one, which share more.
    """

    first_row: int
    rows: int
    shared_tokens: int  # number of tokens on the shared pages, which are whole


class StepPlan(Message):
    """One step. Its parts are carried out in this order: ended slots, setups, saves, copies, restores, and
    the forward pass over `rows`.

    Steps run in order. Saves and restores of pages may run beside earlier steps, which neither write the
    pages to save nor use the pages to restore. Those of states run after earlier steps.
    """

    step: int  # number of the step, from 1
    rows: list[Row]
    setups: list[SlotSetup] = []
    copies: list[PageCopy] = []
    groups: list[RowGroup] = []
    saves: list[SavedPages] = []
    saved_states: list[SavedState] = []
    restores: list[RestoredPages] = []
    restored_states: list[RestoredState] = []
    fetches_over: list[int] = []  # fetches that the store may drop after this step's restores
    ended: list[SlotEnd] = []  # the slots whose requests have ended since the last step


class StepMasks(Message):
    """Grammar masks of the step's rows with `host_mask`, except rows that have ended since it was planned."""

    step: int
    slots: bytes  # int32 [rows]: the slot of each mask
    masks: bytes  # int32 [rows, ceil(vocab / 32)]; bit set: allowed


class ForgetReplies(Message):
    """Draft from no reply that was given in `namespace` so far, or in any namespace in `scope`."""

    scope: str
    namespace: str | None


class LoadGrammar(Message):
    grammar: int
    tables: bytes  # `automaton_format.AutomatonTables`, packed


class DropGrammar(Message):
    grammar: int


class GroupCost(Part):
    """When grouping rows pays on the model's device. The defaults are for CPUs."""

    merged_tokens: float = 16.0
    """Merging one more partial result of a row costs as much as reading this many tokens."""
    min_shared_tokens: int = 128
    """An outermost group shares at least this many tokens. With fewer, reading them once for each row mostly
    costs less than merging the rows' partial results.
    """
    chunk_tokens: int = 8
    """Chunks with more tokens join no group."""
    levels: int = 0
    """maximal depth of nested groups; 0: no limit"""


class CacheGroup(Part):
    """Layers whose attention reaches equally far. They have pages of their own."""

    layers: int  # 0: no layer sees all tokens, and the group's pages take no memory
    reach: int | None  # number of latest tokens that attention reads; None: all
    num_pages: int
    page_bytes: int  # bytes of a page in all these layers
    in_chunks: bool = False  # whether attention reads the tokens since the last multiple of `reach` instead


class Pooling(Part):
    """A model that makes a vector of each input: an embedding, or the logits of its classes."""

    size: int  # numbers of a vector
    is_normalized: bool  # whether embeddings have the length 1
    reads_cache: bool  # whether a cached prefix of an input need not be computed again
    takes_whole: bool  # whether an input is computed in one step
    labels: list[str] = []  # the classes; empty: the vectors are embeddings
    activation: Literal["identity", "sigmoid", "softmax"] = "identity"  # turns logits into probabilities


class ModelDescription(Part, array_like=False):
    """What the time of a step depends on beside its work. Sizes are those of the whole model, not of a rank's
    part, and the most of all layers."""

    layers: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    vocab_size: int = 0
    dtype: str = ""
    """of activations"""
    weights: str = ""
    """the method of `--quantize`, or that of the checkpoint"""
    kv_dtype: str = ""
    device: str = ""
    """the GPU's name, or cpu"""
    threads: int = 0  # of each rank; 0 on a GPU
    tp: int = 1  # ranks


class ModelReady(Message):
    """The model is loaded and can run steps with up to `slots` rows."""

    groups: list[CacheGroup]  # first the layers that see all tokens, then the windowed groups
    page_size: int  # tokens per page, the same in all groups
    max_model_len: int  # maximal number of tokens of a prompt and its reply
    slots: int
    vocab_size: int
    device: str
    page_model: bytes = b""
    """hash of everything besides its tokens on which a page's content depends; empty: no page store"""
    host_pages: int = 0  # pages in the page store's host memory
    adapters: list[Adapter] = []  # those in the first places
    adapter_places: int = 0  # adapters that can be loaded at a time
    states: int = 0  # places for states of recurrent layers, at least two for each slot; 0: no such layers
    state_bytes: int = 0  # bytes of a state
    max_sampled: int = 1  # most tokens that a row in decode samples in a step
    group_cost: GroupCost = field(default_factory=GroupCost)
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    pooling: Pooling | None = None  # None: the model generates
    model: ModelDescription = field(default_factory=ModelDescription)

    @property
    def num_pages(self) -> int:
        """Number of pages of the group that sees all tokens, which every cached token has."""
        return self.groups[0].num_pages

    @property
    def page_bytes(self) -> int:
        """Memory of all groups for each of `num_pages`."""
        return sum(group.num_pages * group.page_bytes for group in self.groups) // self.num_pages


class RowError(Part):
    """A row for which no token could be sampled. After `not_a_number` its KV must not be used again."""

    slot: int
    kind: Literal["not_a_number", "nothing_allowed", "mask_late"]
    message: str


class RowPromptLogprobs(Part):
    slot: int
    logprobs: Logprobs


class RowLogprobs(Part):
    slot: int
    logprobs: Logprobs
    offset: int = 0  # number of the token among those that the row sampled


class RowVector(Part):
    slot: int
    values: bytes  # float32


class StepResult(Message):
    """The tokens that a step sampled, one row after the other in the plan's order."""

    step: int
    counts: bytes
    """int32 [rows]: tokens sampled by each row, from 1 to `Row.samples`; 0 if that is 0, or if the row must
    be repeated without its drafts"""
    tokens: Tokens  # int32 [tokens]; without meaning for the rows in `errors`
    states: bytes  # int32 [tokens]: the automaton's state after each token; -1: dead; -2: no automaton
    elapsed_ms: float
    restored_ms: float = 0.0  # time of copying the restored pages, during `elapsed_ms` or an earlier step
    drafted: bytes = b""  # int32 [rows]: drafts of each row; empty if no row has any
    draft_sources: bytes = b""  # int32 [rows]: indices in `DRAFT_SOURCES`
    logprobs: list[RowLogprobs] = []
    prompt_logprobs: list[RowPromptLogprobs] = []
    errors: list[RowError] = []
    vectors: list[RowVector] = []
