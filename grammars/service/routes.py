"""Compiles each kind of grammar: to an automaton if possible, otherwise to llguidance's matcher."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from msgspec import structs

from ...runtime.grammar_spec import GrammarSpec, Unenforced
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
from ..host.messages import CompileJob, Description, Task
from .automaton import Automaton
from .digest import digest_of
from .files import GrammarFiles
from .host_jobs import HostJobs
from .jobs import GoOn, Job, Result
from .worker import AutomatonWorkers

Compiled: TypeAlias = Automaton | HostGrammar
DEADLINE_S = 2.0
HOST_BYTES = 384 << 20  # of memory for one grammar in llguidance
_ANY_TEXT = '{"type":"any_text"}'
_LARK = re.compile(r"\s*(%llguidance\b|start\s*:(?!:=))")
_SHOWN = 80  # characters of a grammar that the log shows

log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """A grammar to compile, and the tenant whose compile time it counts as. `go_on`: see `Job`."""

    spec: GrammarSpec
    tenant: str
    go_on: GoOn | None = None

    def job(self, key: str, spec: GrammarSpec) -> Job:
        return Job(key, spec, DEADLINE_S, self.tenant, self.go_on)


class Routes:
    """Compiles grammars; each call blocks until its grammar is compiled. Grammars are read only in separate
    processes, because reading one may crash the process. Thread-safe."""

    def __init__(self, workers: AutomatonWorkers, host: HostJobs, files: GrammarFiles | None) -> None:
        self._workers = workers
        self._host = host
        self._files = files

    def compiled(self, asked: Asked) -> Compiled:
        """Compiles the grammar. Raises CompilerError if our compiler failed and llguidance doesn't cover the
        grammar."""
        compiled = self._matcher_of(asked)
        if asked.spec.closing and isinstance(compiled, Automaton):
            compiled.find_shortest_exits()
        return compiled

    def _matcher_of(self, asked: Asked) -> Compiled:
        match asked.spec.kind:
            case "json_schema" | "json_object":
                return self._schema(asked)
            case "regex" | "choice":
                return self._regex(asked)
            case "grammar":
                return self._by_host(asked, "lark", self._lark(asked, asked.spec.text))
            case "structural_tag":
                return self._structural_tag(asked)

    def _schema(self, asked: Asked) -> Compiled:
        """Compiles a schema. If that is allowed, leaves out keywords that neither compiler can enforce."""

        def enforced() -> HostGrammar:
            return self._by_host(asked, "enforce")

        def allowed() -> HostGrammar:
            return self._by_host(asked, "allow")

        if asked.spec.unenforced != "allow":
            return self._schema_enforcing(asked.spec.unenforced, asked, enforced)
        try:
            return self._schema_enforcing("annotations", asked, enforced)
        except (NoValueError, WrongKeywordError):
            raise
        except (GrammarError, CompilerError):
            return self._schema_enforcing("allow", asked, allowed)

    def _schema_enforcing(
        self, unenforced: Unenforced, asked: Asked, by_host: Callable[[], HostGrammar]
    ) -> Compiled:
        """Compiles a schema to an automaton, otherwise with llguidance. If both fail, raises our compiler's
        error."""
        refusal: GrammarError
        try:
            return self._built(asked, structs.replace(asked.spec, unenforced=unenforced))
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

    def _regex(self, asked: Asked) -> Compiled:
        def by_host() -> HostGrammar:
            return self._by_host(asked, "enforce")

        try:
            return self._built(asked, asked.spec)
        except TooLargeError:
            return by_host()
        except CompilerError as fault:
            return _despite(fault, by_host)

    def _lark(self, asked: Asked, grammar: str) -> str:
        """The grammar in Lark. A worker converts GBNF, because its reader can be slow."""
        if any(map(_LARK.match, grammar.split("\n"))):
            return grammar
        try:
            lark = self._worked(asked.job("", GrammarSpec("grammar", grammar)))
        except TooLargeError as error:
            raise TooLargeError(f"it can't be read: {error}") from None
        assert isinstance(lark, str)
        return lark

    def _structural_tag(self, asked: Asked) -> Compiled:
        refusal: GrammarError | CompilerError
        try:
            return self._built(asked, asked.spec)
        except (NotCoveredError, NoValueError) as error:
            return self._tagged_by_host(asked, self._described(asked), error)
        except TooLargeError as error:
            description = self._described(asked)
            refusal = GrammarError(f"the structural tag is too large: {error}")
            refusal.function = error.function or _only_function(description)
        except CompilerError as error:
            refusal, description = error, self._described(asked)
        return self._tagged_otherwise(asked, description, refusal)

    def _tagged_otherwise(
        self, asked: Asked, description: Description, refusal: GrammarError | CompilerError
    ) -> Compiled:
        """Compiles a tag that is too large as free text whose calls are not enforced, if every schema may be
        replaced."""
        schemas = description.schemas
        if not schemas or any(otherwise == "refuse" for _, otherwise in schemas):
            return self._tagged_by_host(asked, description, refusal)
        if isinstance(refusal, CompilerError):
            with suppress(GrammarError, CompilerError, TimeoutError, TooLargeError):
                return self._tagged_by_host(asked, description, refusal)
        free = self._built(asked, structs.replace(asked.spec, text=_ANY_TEXT))
        return replace(free, left_out=tuple(("parameters", f"{function}#") for function, _ in schemas))

    def _tagged_by_host(
        self, asked: Asked, description: Description, refusal: GrammarError | CompilerError
    ) -> HostGrammar:
        """Compiles a structural tag that has no automaton to llguidance's matcher."""
        if description.grammar is not None:
            return self._by_host(asked, "thinking", self._lark(asked, description.grammar))

        def by_host() -> HostGrammar:
            return self._by_host(asked, "enforce")

        if isinstance(refusal, CompilerError):
            return _despite(refusal, by_host)
        try:
            return by_host()
        except GrammarError:
            raise refusal from None

    def _built(self, asked: Asked, spec: GrammarSpec) -> Automaton:
        spec = _for_automaton(spec)
        key = digest_of(spec).hex()
        kept = self._files.get(key) if self._files else None
        if kept is not None:
            return kept
        automaton = self._worked(asked.job(key, spec))
        assert isinstance(automaton, Automaton)
        if self._files:
            self._files.put(automaton)
        return automaton

    def _worked(self, job: Job) -> Result:
        try:
            return self._workers.build(job)
        except CompilerError as fault:
            log.warning("the grammar compiler failed at %r: %s", job.spec.text[:_SHOWN], fault)
            raise

    def _described(self, asked: Asked) -> Description:
        return self._host.described(_host_job(asked.spec, "describe"), asked.tenant)

    def _by_host(self, asked: Asked, task: Task, lark: str = "") -> HostGrammar:
        return self._host.compiled(_host_job(asked.spec, task, lark), asked.tenant)


def _host_job(spec: GrammarSpec, task: Task, lark: str = "") -> CompileJob:
    """The job with which llguidance compiles a grammar."""
    return CompileJob(task, spec, DEADLINE_S, HOST_BYTES, lark)


def _for_automaton(spec: GrammarSpec) -> GrammarSpec:
    """The spec with only the options that its automaton depends on, so that equal automata are cached
    once."""
    match spec.kind:
        case "regex" | "choice":
            return GrammarSpec(spec.kind, spec.text, scope=spec.scope)
        case "json_object":
            spec = structs.replace(spec, kind="json_schema", text=spec.schema, additional_properties="schema")
    return structs.replace(spec, param="", misspelt=(), params={}, closing=False)


def _despite(fault: CompilerError, by_host: Callable[[], HostGrammar]) -> HostGrammar:
    """Compiles the grammar with llguidance after our compiler failed. If that is impossible too, raises the
    first failure."""
    try:
        return by_host()
    except WrongKeywordError:
        raise
    except (GrammarError, TimeoutError, TooLargeError, ProcessEndedError):
        raise fault from None


def _only_function(description: Description) -> str:
    """The only function whose parameters must all be enforced; "" if there are several or none."""
    functions = {function for function, otherwise in description.schemas if otherwise == "refuse"}
    return functions.pop() if len(functions) == 1 else ""
