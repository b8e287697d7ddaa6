"""What each kind of grammar becomes: an automaton where there can be one, else llguidance's matcher."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias, TypeVar

import msgspec

from .automaton import Automaton
from .errors import (
    CompilerError,
    GrammarError,
    NotCoveredError,
    NoValueError,
    TooLargeError,
    WrongKeywordError,
)
from .grammar_files import GrammarFiles
from .host import HostCompiler, HostGrammar
from .host_start import HostStart, may_begin
from .host_threads import HostAttempt, HostThreads
from .schema import Unenforced
from .source import Source
from .tags.format import Format, Grammar, JsonSchema, Thinking, json_schemas, read_format
from .worker import AutomatonWorkers, ContextFree, Job, Result, Schema, StructuralTag

Compiled: TypeAlias = Automaton | HostGrammar
DEADLINE_S = 2.0
_ANY_TEXT = '{"type":"any_text"}'
_LARK = re.compile(r"\s*(%llguidance\b|start\s*:(?!:=))")
_SHOWN = 80  # characters of a grammar in the log
Made = TypeVar("Made")

log = logging.getLogger(__name__)


class Routes:
    """For use by several threads, which wait.

    `special_spellings` are the bytes by which automata know special tokens, by name.
    """

    def __init__(
        self,
        workers: AutomatonWorkers,
        host: HostThreads,
        files: GrammarFiles | None,
        special_spellings: Mapping[str, bytes],
    ) -> None:
        self._workers = workers
        self._host = host
        self._files = files
        self._special_spellings = special_spellings

    def compiled(self, source: Source, attempt: HostAttempt) -> Compiled:
        """Raises GrammarError only where llguidance, by its `attempt`, can't have begun with the grammar:
        so the answer is the same whether the automaton was waited for or not. Raises CompilerError where
        our compiler failed and llguidance doesn't cover the grammar."""
        try:
            compiled = self._matcher_of(source, attempt)
        except GrammarError:
            if not may_begin(source) or not (start := self._outcome(attempt)):
                raise
            return start.grammar
        if source.closing and isinstance(compiled, Automaton):
            compiled.find_ways_out()
        return compiled

    def _matcher_of(self, source: Source, attempt: HostAttempt) -> Compiled:
        match source.kind:
            case "json_schema" | "json_object":
                return self._schema(source, attempt)
            case "regex" | "choice":
                return self._regex(source, attempt)
            case "grammar":
                return self._context_free(source)
            case "structural_tag":
                return self._structural_tag(source, attempt)

    def _schema(self, source: Source, attempt: HostAttempt) -> Compiled:
        """Keywords are left out, where that is allowed, once nobody enforces them."""

        def enforced() -> HostGrammar:
            return self._in_time(attempt.begun()).grammar

        def allowed() -> HostGrammar:
            return self._by_host(
                source, lambda host: host.json_schema(source.schema, source.separators, "allow")
            )

        if source.unenforced != "allow":
            return self._schema_enforcing(source.unenforced, source, enforced)
        try:
            return self._schema_enforcing("annotations", source, enforced)
        except (NoValueError, WrongKeywordError):
            raise
        except (GrammarError, CompilerError):
            return self._schema_enforcing("allow", source, allowed)

    def _schema_enforcing(
        self, unenforced: Unenforced, source: Source, by_host: Callable[[], HostGrammar]
    ) -> Compiled:
        """What has no automaton is left to the host. If that can't enforce it either, we say why we can't."""
        refusal: GrammarError
        try:
            return self._built(Schema(source.schema, source.separators, source.property_order, unenforced))
        except (NoValueError, NotCoveredError) as error:
            if isinstance(error, WrongKeywordError) and unenforced == "allow":
                raise
            refusal = error
        except TooLargeError as error:
            return self._too_large_schema(str(error), by_host)
        except CompilerError as fault:
            return _despite(fault, by_host)
        try:
            return by_host()
        except GrammarError:
            raise refusal from None

    def _too_large_schema(self, limit: str, by_host: Callable[[], HostGrammar]) -> HostGrammar:
        try:
            return by_host()
        except WrongKeywordError:
            raise
        except NotCoveredError as error:
            reason = f"{error.reason}, and the schema is too large for an automaton ({limit})"
            raise NotCoveredError(error.keyword, error.path, reason) from None

    def _regex(self, source: Source, attempt: HostAttempt) -> Compiled:
        def by_host() -> HostGrammar:
            return self._in_time(attempt.begun()).grammar

        try:
            return self._built(source.regex())
        except TooLargeError:
            return by_host()
        except CompilerError as fault:
            return _despite(fault, by_host)

    def _context_free(self, source: Source) -> Compiled:
        lark = self._lark(source.text)
        return self._by_host(source, lambda host: host.lark(lark))

    def _lark(self, grammar: str) -> str:
        """What isn't Lark is read in a process that can be ended, as its reader can be slow."""
        if any(map(_LARK.match, grammar.split("\n"))):
            return grammar
        try:
            lark = self._worked(Job("", ContextFree(grammar), DEADLINE_S))
        except TooLargeError as error:
            raise GrammarError(f"the grammar can't be read: {error}") from None
        assert isinstance(lark, str)
        return lark

    def _structural_tag(self, source: Source, attempt: HostAttempt) -> Compiled:
        format = read_format(source.text)
        refusal: GrammarError | CompilerError
        try:
            return self._built(self._tagged(source, source.text))
        except (NotCoveredError, NoValueError) as error:
            return self._tagged_by_host(source, format, attempt, error)
        except TooLargeError as error:
            refusal = GrammarError(f"the structural tag is too large: {error}")
            refusal.function = error.function or _only_function(json_schemas(format))
        except CompilerError as error:
            refusal = error
        return self._tagged_otherwise(source, format, attempt, refusal)

    def _tagged_otherwise(
        self, source: Source, format: Format, attempt: HostAttempt, refusal: GrammarError | CompilerError
    ) -> Compiled:
        """Where every schema may be loosened no tools are too many: no call is enforced then, whether
        llguidance has begun with them or not."""
        schemas = json_schemas(format)
        if not schemas or any(schema.otherwise == "refuse" for schema in schemas):
            return self._tagged_by_host(source, format, attempt, refusal)
        if isinstance(refusal, CompilerError):
            with suppress(GrammarError, CompilerError, TimeoutError):
                return self._tagged_by_host(source, format, attempt, refusal)
        free = self._built(self._tagged(source, _ANY_TEXT))
        return replace(free, left_out=tuple(("parameters", f"{schema.function}#") for schema in schemas))

    def _tagged(self, source: Source, text: str) -> StructuralTag:
        return StructuralTag(text, self._special_spellings, source.property_order, source.unenforced)

    def _tagged_by_host(
        self, source: Source, format: Format, attempt: HostAttempt, refusal: GrammarError | CompilerError
    ) -> HostGrammar:
        """For what has no automaton and nothing that only automata follow."""
        if isinstance(format, Thinking) and isinstance(format.content, Grammar):
            read = msgspec.structs.replace(format, content=Grammar(self._lark(format.content.grammar)))
            return self._by_host(source, lambda host: host.structural_tag(read))

        def by_host() -> HostGrammar:
            return self._in_time(attempt.begun()).grammar

        if isinstance(refusal, CompilerError):
            return _despite(refusal, by_host)
        try:
            return by_host()
        except GrammarError:
            raise refusal from None

    def _built(self, grammar: str | Schema | StructuralTag) -> Automaton:
        key = repr(grammar)
        kept = self._files.get(key) if self._files else None
        if kept is not None:
            return kept
        automaton = self._worked(Job(key, grammar, DEADLINE_S))
        assert isinstance(automaton, Automaton)
        if self._files:
            self._files.put(key, automaton)
        return automaton

    def _worked(self, job: Job) -> Result:
        try:
            return self._workers.build(job)
        except CompilerError as fault:
            log.warning("the grammar compiler failed at %r: %s", job.text[:_SHOWN], fault)
            raise

    def _by_host(self, source: Source, compile_with: Callable[[HostCompiler], HostGrammar]) -> HostGrammar:
        return self._in_time(self._host.submit(len(source.text), compile_with))

    def _outcome(self, attempt: HostAttempt) -> HostStart | None:
        try:
            return self._in_time(attempt.begun())
        except (GrammarError, TimeoutError):
            return None

    def _in_time(self, compiling: Future[Made]) -> Made:
        """llguidance can't be stopped: past the deadline its thread goes on for nobody."""
        self._host.wait()
        try:
            return compiling.result(DEADLINE_S)
        except TimeoutError:
            compiling.cancel()  # if others' grammars kept it from beginning
            raise TimeoutError(f"it takes more than {DEADLINE_S:g} s") from None


def _despite(fault: CompilerError, by_host: Callable[[], HostGrammar]) -> HostGrammar:
    """llguidance's matcher. If it has none either, that our compiler failed is all that there is to say."""
    try:
        return by_host()
    except WrongKeywordError:
        raise
    except (GrammarError, TimeoutError):
        raise fault from None


def _only_function(schemas: Sequence[JsonSchema]) -> str:
    """The one whose parameters must all be enforced, if it is one alone; "" for several, or other schemas."""
    functions = {schema.function for schema in schemas if schema.otherwise == "refuse"}
    return functions.pop() if len(functions) == 1 else ""
