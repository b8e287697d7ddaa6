"""Every message that crosses a process boundary: this table and the modules below are the whole protocol.

    | from → to | messages | module |
    |---|---|---|
    | tokenizer → scheduler | Generate, Abort, Finish, AwaitTools, EndLease, QueryStats | generation |
    | | QueryRequests | generation |
    | | QueryCache, QueryNode, DropCache, CheckPin, PinPrefix, UnpinPrefix, ExplainPrompt | cache_control |
    | | WatchAdapters, LoadAdapter, UnloadAdapter | adapters |
    | | WatchReplica | routing |
    | scheduler → tokenizer | Accepted, Refused, Outputs, Stats, RequestList | generation |
    | | CacheReport, NodeTokens, CacheDropped, PinFits, PrefixPinned, PromptExplained | cache_control |
    | | QueryRefused | cache_control |
    | | AdapterList, AdapterChanged | adapters |
    | | ReplicaReport | routing |
    | scheduler → model | StepPlan, StepMasks, ForgetReplies, LoadGrammar, DropGrammar | steps |
    | | ReadAdapter, DropAdapter | adapters |
    | | SavePages, ForgetPages, DiscardPages, FlushPages | page_store |
    | model → scheduler | ModelReady, StepResult | steps |
    | | AdapterRead | adapters |
    | | PagesFlushed | page_store |
    | scheduler → page store | FindPages, FetchPages, EndFetch, UsedPages, LocatePages | page_store |
    | page store → scheduler | PagesFound, PagesFetched, PagesLocated, PagesForgotten | page_store |
    | | StoreReport | page_store |
    | supervisor → tokenizer | PeerUp, PeerDown, PeerResponds, NewKeys, Drain, GiveUp | supervision |
    | | ModelState | supervision |
    | supervisor → scheduler | PeerDown, Drain | supervision |
    | tokenizer → other tokenizers | RememberReply, ForgetPrompts | tokenizers |
    | | QueryRecords, RecordList | tokenizers |
    | any child → supervisor | Ready, Alive, Failed, Drained | supervision |
    | tokenizer → supervisor | KnowsReplica, UseModel, LeaveModel | supervision |

Token ids travel as `Tokens`: packed little-endian int32, never as lists. Arrays of other types are packed in
the same way; each field names its dtype. Messages are msgpack arrays, tagged by their class name, in an
envelope with the epoch (`sockets`). Other packages import from here, not from the modules.
"""

from __future__ import annotations

from ..grammar_spec import AdditionalProperties, GrammarSpec, PropertyOrder, Unenforced, Whitespace
from .adapters import (
    ADAPTER_MARK,
    Adapter,
    AdapterChanged,
    AdapterList,
    AdapterRead,
    DropAdapter,
    LoadAdapter,
    ReadAdapter,
    UnloadAdapter,
    WatchAdapters,
)
from .base import PAGE_ID_BYTES, TOKEN_BYTES, FinishReason, Message, Part, StoreCounts, Tokens
from .cache_control import (
    CacheDropped,
    CacheNode,
    CacheReport,
    CacheRoot,
    CheckPin,
    DropCache,
    ExplainPrompt,
    HitRate,
    NodeTokens,
    PagesInTiers,
    PathNode,
    Pin,
    PinFits,
    PinPrefix,
    PrefixPinned,
    PromptExplained,
    QueryCache,
    QueryNode,
    QueryRefused,
    ShownLease,
    TopPrefix,
    UnpinPrefix,
)
from .generation import (
    BACKGROUND_PRIORITY,
    PREFILL_CLIENT,
    Abort,
    Accepted,
    AwaitTools,
    DraftCounts,
    EndLease,
    Finish,
    Generate,
    GroupPages,
    LeaseKind,
    LeaseTerms,
    LeftOutKeyword,
    Logprobs,
    OpenRequest,
    Output,
    Outputs,
    PredictionCounts,
    QueryRequests,
    QueryStats,
    Refused,
    ReplyError,
    RequestList,
    RequestState,
    Stats,
)
from .page_store import (
    DiscardPages,
    EndFetch,
    FetchPages,
    FindPages,
    FlushPages,
    ForgetPages,
    LocatePages,
    NeededEntries,
    PagesFetched,
    PagesFlushed,
    PagesForgotten,
    PagesFound,
    PagesLocated,
    RestoredPages,
    RestoredState,
    SavedPages,
    SavedState,
    SavePages,
    StoreReport,
    UsedPages,
)
from .routing import Load, ReplicaReport, TreeChange, WatchReplica
from .steps import (
    DRAFT_SOURCES,
    NO_STATE,
    CacheGroup,
    DropGrammar,
    ForgetReplies,
    GroupCost,
    LoadGrammar,
    ModelDescription,
    ModelReady,
    PageCopy,
    Pooling,
    Row,
    RowError,
    RowGroup,
    RowLogprobs,
    RowPromptLogprobs,
    RowVector,
    SlotEnd,
    SlotSetup,
    StepMasks,
    StepPlan,
    StepResult,
)
from .supervision import (
    Alive,
    Drain,
    Drained,
    Failed,
    GiveUp,
    KnowsReplica,
    LeaveModel,
    LoadState,
    ModelState,
    NewKeys,
    PeerDown,
    PeerResponds,
    PeerUp,
    Ready,
    UseModel,
)
from .tokenizers import ForgetPrompts, QueryRecords, RecordList, RememberReply

CacheControl = QueryCache | QueryNode | DropCache | CheckPin | PinPrefix | UnpinPrefix | ExplainPrompt
CacheAnswer = (
    CacheReport | NodeTokens | CacheDropped | PinFits | PrefixPinned | PromptExplained | QueryRefused
)
AdapterOrder = WatchAdapters | LoadAdapter | UnloadAdapter
FromSupervisor = PeerUp | PeerDown | PeerResponds | ModelState | NewKeys | Drain | GiveUp
FromTokenizer = RememberReply | ForgetPrompts
TokenizerInbox = (
    Accepted
    | Refused
    | Outputs
    | Stats
    | RequestList
    | CacheAnswer
    | AdapterList
    | AdapterChanged
    | FromSupervisor
    | ReplicaReport
    | FromTokenizer
    | QueryRecords
    | RecordList
)
FromModel = (
    ModelReady
    | StepResult
    | AdapterRead
    | PagesFound
    | PagesFetched
    | PagesLocated
    | PagesForgotten
    | StoreReport
    | PagesFlushed
)
SchedulerInbox = (
    Generate
    | Abort
    | Finish
    | AwaitTools
    | EndLease
    | QueryStats
    | QueryRequests
    | CacheControl
    | AdapterOrder
    | WatchReplica
    | FromModel
    | PeerDown
    | Drain
)
PrefillAnswer = Accepted | Refused | Outputs
"""answers to requests of `PREFILL_CLIENT`"""
ToPageStore = SavePages | ForgetPages | DiscardPages | FlushPages | PrefillAnswer
ModelInbox = (
    StepPlan | StepMasks | ForgetReplies | LoadGrammar | DropGrammar | ReadAdapter | DropAdapter | ToPageStore
)
PageStoreInbox = FindPages | FetchPages | EndFetch | UsedPages | LocatePages
SupervisorInbox = Ready | KnowsReplica | Alive | Failed | Drained | UseModel | LeaveModel

__all__ = [
    "ADAPTER_MARK",
    "BACKGROUND_PRIORITY",
    "DRAFT_SOURCES",
    "NO_STATE",
    "PAGE_ID_BYTES",
    "PREFILL_CLIENT",
    "TOKEN_BYTES",
    "Abort",
    "Accepted",
    "Adapter",
    "AdapterChanged",
    "AdapterList",
    "AdapterOrder",
    "AdapterRead",
    "AdditionalProperties",
    "Alive",
    "AwaitTools",
    "CacheAnswer",
    "CacheControl",
    "CacheDropped",
    "CacheGroup",
    "CacheNode",
    "CacheReport",
    "CacheRoot",
    "CheckPin",
    "DiscardPages",
    "DraftCounts",
    "Drain",
    "Drained",
    "DropAdapter",
    "DropCache",
    "DropGrammar",
    "EndFetch",
    "EndLease",
    "ExplainPrompt",
    "Failed",
    "FetchPages",
    "FindPages",
    "Finish",
    "FinishReason",
    "FlushPages",
    "ForgetPages",
    "ForgetPrompts",
    "ForgetReplies",
    "FromModel",
    "FromSupervisor",
    "FromTokenizer",
    "Generate",
    "GiveUp",
    "GrammarSpec",
    "GroupCost",
    "GroupPages",
    "HitRate",
    "KnowsReplica",
    "LeaseKind",
    "LeaseTerms",
    "LeaveModel",
    "LeftOutKeyword",
    "Load",
    "LoadAdapter",
    "LoadGrammar",
    "LoadState",
    "LocatePages",
    "Logprobs",
    "Message",
    "ModelDescription",
    "ModelInbox",
    "ModelReady",
    "ModelState",
    "NeededEntries",
    "NewKeys",
    "NodeTokens",
    "OpenRequest",
    "Output",
    "Outputs",
    "PageCopy",
    "PageStoreInbox",
    "PagesFetched",
    "PagesFlushed",
    "PagesForgotten",
    "PagesFound",
    "PagesInTiers",
    "PagesLocated",
    "Part",
    "PathNode",
    "PeerDown",
    "PeerResponds",
    "PeerUp",
    "Pin",
    "PinFits",
    "PinPrefix",
    "Pooling",
    "PredictionCounts",
    "PrefillAnswer",
    "PrefixPinned",
    "PromptExplained",
    "PropertyOrder",
    "QueryCache",
    "QueryNode",
    "QueryRecords",
    "QueryRefused",
    "QueryRequests",
    "QueryStats",
    "ReadAdapter",
    "Ready",
    "RecordList",
    "Refused",
    "RememberReply",
    "ReplicaReport",
    "ReplyError",
    "RequestList",
    "RequestState",
    "RestoredPages",
    "RestoredState",
    "Row",
    "RowError",
    "RowGroup",
    "RowLogprobs",
    "RowPromptLogprobs",
    "RowVector",
    "SavePages",
    "SavedPages",
    "SavedState",
    "SchedulerInbox",
    "ShownLease",
    "SlotEnd",
    "SlotSetup",
    "Stats",
    "StepMasks",
    "StepPlan",
    "StepResult",
    "StoreCounts",
    "StoreReport",
    "SupervisorInbox",
    "ToPageStore",
    "TokenizerInbox",
    "Tokens",
    "TopPrefix",
    "TreeChange",
    "Unenforced",
    "UnloadAdapter",
    "UnpinPrefix",
    "UseModel",
    "UsedPages",
    "WatchAdapters",
    "WatchReplica",
    "Whitespace",
]
