"""Every message that crosses a process boundary: this table and the modules below are the whole protocol.

    | from → to | messages | module |
    |---|---|---|
    | tokenizer → scheduler | Generate, Abort, Finish, AwaitTools, EndLease, QueryStats | generation |
    | | QueryCache, QueryNode, DropCache, CheckPin, PinPrefix, UnpinPrefix, ExplainPrompt | cache_control |
    | scheduler → tokenizer | Accepted, Refused, Outputs, Stats | generation |
    | | CacheReport, NodeTokens, CacheDropped, PinFits, PrefixPinned, PromptExplained | cache_control |
    | | QueryRefused | cache_control |
    | scheduler → model | StepPlan, StepMasks, LoadGrammar, DropGrammar | steps |
    | | SavePages, ForgetPages, DiscardPages, FlushPages | page_store |
    | model → scheduler | ModelReady, StepResult | steps |
    | | PagesFlushed | page_store |
    | scheduler → page store | FindPages, FetchPages, EndFetch, UsedPages, LocatePages | page_store |
    | page store → scheduler | PagesFound, PagesFetched, PagesLocated, PagesForgotten | page_store |
    | | StoreReport | page_store |
    | supervisor → tokenizer | PeerUp, PeerDown, PeerResponds, NewKeys, Drain, GiveUp | supervision |
    | supervisor → scheduler | PeerDown, Drain | supervision |
    | tokenizer → other tokenizers | RememberReply, ForgetPrompts | tokenizers |
    | any child → supervisor | Ready, Alive, Failed, Drained | supervision |
    | tokenizer → supervisor | KnowsReplica | supervision |

Token ids travel as `Tokens`: packed little-endian int32, never as lists. Arrays of other types are packed in
the same way; each field names its dtype. Messages are msgpack arrays, tagged by their class name, in an
envelope with the epoch (`sockets`). Other packages import from here, not from the modules.
"""

from __future__ import annotations

from ..grammar_spec import AdditionalProperties, GrammarSpec, PropertyOrder, Unenforced, Whitespace
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
    Abort,
    Accepted,
    AwaitTools,
    EndLease,
    Finish,
    Generate,
    LeaseKind,
    LeaseTerms,
    LeftOutKeyword,
    Logprobs,
    Output,
    Outputs,
    QueryStats,
    Refused,
    ReplyError,
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
    PagesFetched,
    PagesFlushed,
    PagesForgotten,
    PagesFound,
    PagesLocated,
    RestoredPages,
    SavedPages,
    SavePages,
    StoreReport,
    UsedPages,
)
from .steps import (
    NO_STATE,
    CacheGroup,
    DropGrammar,
    GroupCost,
    LoadGrammar,
    ModelReady,
    PageCopy,
    Row,
    RowError,
    RowGroup,
    RowLogprobs,
    RowPromptLogprobs,
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
    NewKeys,
    PeerDown,
    PeerResponds,
    PeerUp,
    Ready,
)
from .tokenizers import ForgetPrompts, RememberReply

CacheControl = QueryCache | QueryNode | DropCache | CheckPin | PinPrefix | UnpinPrefix | ExplainPrompt
CacheAnswer = (
    CacheReport | NodeTokens | CacheDropped | PinFits | PrefixPinned | PromptExplained | QueryRefused
)
FromSupervisor = PeerUp | PeerDown | PeerResponds | NewKeys | Drain | GiveUp
FromTokenizer = RememberReply | ForgetPrompts
TokenizerInbox = Accepted | Refused | Outputs | Stats | CacheAnswer | FromSupervisor | FromTokenizer
FromModel = (
    ModelReady
    | StepResult
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
    | CacheControl
    | FromModel
    | PeerDown
    | Drain
)
ToPageStore = SavePages | ForgetPages | DiscardPages | FlushPages
ModelInbox = StepPlan | StepMasks | LoadGrammar | DropGrammar | ToPageStore
PageStoreInbox = FindPages | FetchPages | EndFetch | UsedPages | LocatePages
SupervisorInbox = Ready | KnowsReplica | Alive | Failed | Drained

__all__ = [
    "BACKGROUND_PRIORITY",
    "NO_STATE",
    "PAGE_ID_BYTES",
    "TOKEN_BYTES",
    "Abort",
    "Accepted",
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
    "Drain",
    "Drained",
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
    "FromModel",
    "FromSupervisor",
    "FromTokenizer",
    "Generate",
    "GiveUp",
    "GrammarSpec",
    "GroupCost",
    "HitRate",
    "KnowsReplica",
    "LeaseKind",
    "LeaseTerms",
    "LeftOutKeyword",
    "LoadGrammar",
    "LocatePages",
    "Logprobs",
    "Message",
    "ModelInbox",
    "ModelReady",
    "NewKeys",
    "NodeTokens",
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
    "PeerDown",
    "PeerResponds",
    "PeerUp",
    "Pin",
    "PinFits",
    "PinPrefix",
    "PrefixPinned",
    "PromptExplained",
    "PropertyOrder",
    "QueryCache",
    "QueryNode",
    "QueryRefused",
    "QueryStats",
    "Ready",
    "Refused",
    "RememberReply",
    "ReplyError",
    "RestoredPages",
    "Row",
    "RowError",
    "RowGroup",
    "RowLogprobs",
    "RowPromptLogprobs",
    "SavePages",
    "SavedPages",
    "SchedulerInbox",
    "ShownLease",
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
    "Unenforced",
    "UnpinPrefix",
    "UsedPages",
    "Whitespace",
]
