"""Compiles each grammar with our compiler, llguidance, or first the one and then the other."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from msgspec import structs

from ...runtime.grammar_spec import GrammarKind, GrammarSpec, Unenforced
from ..errors import (
    CompilerError,
    GrammarError,
    NotCoveredError,
    NoValueError,
    ProcessEndedError,
    TooLargeError,
    WrongKeywordError,
)
from ..host.grammar import HostGrammar
from ..machine.automaton import Automaton
from ..processes.compiler_pool import CompilerPool
from ..processes.compiler_process import CompilerProcess, GoOn
from ..processes.messages import AutomatonReady, CompileJob, MatcherReady, Outcome, TagDescription
from .files import GrammarFiles

Compiled: TypeAlias = Automaton | HostGrammar
Kind = TypeVar("Kind", AutomatonReady, MatcherReady, TagDescription)

DEADLINE_S = 2.0  # seconds of processor time, for each compiler
MAX_LOGGED = 80  # characters of a grammar that the log shows
_ANY_TEXT = '{"type":"any_text"}'
_ROUNDS: dict[tuple[GrammarKind, Unenforced], tuple[Unenforced, ...]] = {
    ("json_schema", "allow"): ("annotations", "allow"),
    ("json_object", "allow"): ("annotations", "allow"),
}
"""What may stay unenforced in each round, by the spec's kind and its own `unenforced`.

A round tries our compiler, then llguidance. If both refuse the grammar, the next round follows. So a keyword
that only llguidance enforces is not left out while llguidance can compile the whole schema. Specs of other
kinds have one round.
"""
_HANDED_ON = (NotCoveredError, NoValueError, TooLargeError, CompilerError)
"""the errors of our compiler after which llguidance tries"""

log = logging.getLogger(__name__)


class CompileRequest(NamedTuple):
    """A grammar to compile, and the tenant who is charged for its compile time."""

    spec: GrammarSpec
    tenant: str
    go_on: GoOn


class CompilerSelector:
    """Compiles grammars; each call blocks until its grammar is compiled. Grammars are read only in separate
    processes, because reading one may crash the process. Thread-safe."""

    def __init__(
        self,
        builders: CompilerPool,
        followers: CompilerPool,
        eos_tokens: tuple[int, ...],
        files: GrammarFiles | None,
    ) -> None:
        """builders: processes that build automata; followers: processes that run llguidance"""
        self._builders = builders
        self._followers = followers
        self._eos_tokens = eos_tokens
        self._files = files

    def compile(self, request: CompileRequest) -> Compiled:
        """Compiles the grammar. Raises CompilerError if our compiler failed and llguidance doesn't cover the
        grammar."""
        compiled = self._try_rounds(request)
        if request.spec.closing and isinstance(compiled, Automaton):
            compiled.find_shortest_exits()
        return compiled

    def _try_rounds(self, request: CompileRequest) -> Compiled:
        spec = request.spec
        if spec.kind == "grammar":
            return self._make_matcher(request)
        *earlier, last = _ROUNDS.get((spec.kind, spec.unenforced), (spec.unenforced,))
        for unenforced in earlier:
            try:
                return self._try_both(_allow(request, unenforced))
            except (NoValueError, WrongKeywordError):
                raise
            except (GrammarError, CompilerError):
                continue
        return self._try_both(_allow(request, last))

    def _try_both(self, request: CompileRequest) -> Compiled:
        """Compiles to an automaton, otherwise with llguidance."""
        spec = request.spec
        try:
            return self._make_automaton(request, spec)
        except _HANDED_ON as error:
            if isinstance(error, WrongKeywordError) and spec.unenforced == "allow" and _is_json(spec):
                raise
            fault = error
        if spec.kind == "structural_tag" and isinstance(fault, TooLargeError | CompilerError):
            return self._try_tag(request, fault)
        try:
            return self._make_matcher(request)
        except (GrammarError, CompilerError, TooLargeError) as error:
            raise _choose_error(fault, error) from None

    def _try_tag(self, request: CompileRequest, fault: TooLargeError | CompilerError) -> Compiled:
        """Compiles a structural tag that our compiler could not compile. If every schema in it may be
        replaced, it becomes free text, in which calls are not enforced."""
        outcome, process = self._run_llguidance(request, "describe")
        self._followers.release(process)
        schemas = _expect(outcome, TagDescription).schemas
        is_replaceable = bool(schemas) and all(otherwise != "refuse" for _, otherwise in schemas)
        if not (is_replaceable and isinstance(fault, TooLargeError)):
            try:
                return self._make_matcher(request)
            except (GrammarError, CompilerError, TooLargeError) as error:
                if not is_replaceable:
                    raise _choose_error(_blame_function(fault, schemas), error) from None
        free = self._make_automaton(request, structs.replace(request.spec, text=_ANY_TEXT))
        return replace(free, left_out=tuple(("parameters", f"{function}#") for function, _ in schemas))

    def _make_automaton(self, request: CompileRequest, spec: GrammarSpec) -> Automaton:
        spec = _strip_spec(spec)
        key = digest_spec(spec).hex()
        kept = self._files.get(key) if self._files else None
        if kept is not None:
            return kept
        job = CompileJob("compile", spec, DEADLINE_S, key)
        try:
            outcome, process = self._builders.run(job, request.tenant, request.go_on)
        except CompilerError as fault:
            log.warning("the grammar compiler failed at %r: %s", spec.text[:MAX_LOGGED], fault)
            raise
        self._builders.release(process)
        automaton = _expect(outcome, AutomatonReady).automaton
        if self._files:
            self._files.put(automaton)
        return automaton

    def _make_matcher(self, request: CompileRequest) -> HostGrammar:
        outcome, process = self._run_llguidance(request, "compile")
        ready = _expect(outcome, MatcherReady)
        return HostGrammar(process, self._eos_tokens, ready.nbytes, ready.left_out)

    def _run_llguidance(
        self, request: CompileRequest, task: Literal["compile", "describe"]
    ) -> tuple[Outcome, CompilerProcess]:
        job = CompileJob(task, request.spec, DEADLINE_S)
        return self._followers.run(job, request.tenant, request.go_on)


def digest_spec(spec: GrammarSpec) -> bytes:
    """A digest of everything on which the compiled grammar depends."""
    enforced = (spec.whitespace, spec.additional_properties, spec.property_order, spec.unenforced)
    options = (spec.kind, *enforced, spec.closing, spec.scope)
    digest = hashlib.sha256(spec.text.encode(errors="surrogatepass"))
    digest.update(b"\0" + repr(options).encode(errors="surrogatepass"))
    return digest.digest()


def _is_json(spec: GrammarSpec) -> bool:
    return spec.kind in ("json_schema", "json_object")


def _allow(request: CompileRequest, unenforced: Unenforced) -> CompileRequest:
    return request._replace(spec=structs.replace(request.spec, unenforced=unenforced))


def _strip_spec(spec: GrammarSpec) -> GrammarSpec:
    """The spec with only the options that its automaton depends on, so that equal automata are cached
    once."""
    match spec.kind:
        case "regex" | "choice":
            return GrammarSpec(spec.kind, spec.text, scope=spec.scope)
        case "json_object":
            spec = structs.replace(spec, kind="json_schema", text=spec.schema, additional_properties="schema")
    return structs.replace(spec, param="", misspelt=(), params={}, closing=False)


def _expect(outcome: Outcome, kind: type[Kind]) -> Kind:
    if not isinstance(outcome, kind):
        raise CompilerError(f"its process answered with {type(outcome).__name__}")
    return outcome


def _choose_error(ours: Exception, theirs: Exception) -> Exception:
    """The error to report if both our compiler and llguidance failed."""
    match ours, theirs:
        case CompilerError(), WrongKeywordError():
            return theirs
        case CompilerError(), GrammarError() | TooLargeError() | ProcessEndedError():
            return ours
        case TooLargeError(), NotCoveredError() if not isinstance(theirs, WrongKeywordError):
            reason = f"{theirs.reason}, and the schema is too large for an automaton ({ours})"
            return NotCoveredError(theirs.keyword, theirs.path, reason)
        case NotCoveredError(keyword="grammar"), _:  # a part of a structural tag that only llguidance reads
            return theirs
        case GrammarError(), GrammarError():
            return ours
    return theirs


def _blame_function(fault: TooLargeError | CompilerError, schemas: Sequence[tuple[str, str]]) -> Exception:
    """The error of a structural tag: one that is too large names the function whose parameters must be
    enforced, if there is only one."""
    if isinstance(fault, CompilerError):
        return fault
    refusal = GrammarError(f"the structural tag is too large: {fault}")
    functions = {function for function, otherwise in schemas if otherwise == "refuse"}
    refusal.function = fault.function or (functions.pop() if len(functions) == 1 else "")
    return refusal
