"""The workloads of programs.py as programs of the embedded language."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import arbora as ab
import program_material as texts
from arbora.frontend.language.expressions import Expression
from arbora.frontend.language.trace import Trace
from program_material import Invoice, Letter, Lookup, Material, Task

Workload: TypeAlias = Callable[[Material, object], Trace]


@ab.program
def think(s: ab.State, problem: str, depth: int) -> str:
    s += problem
    leaves = [s]
    for number in range(depth):
        leaves = [fork for leaf in leaves for fork in leaf.fork(texts.WIDTH)]
        for seed, leaf in enumerate(leaves):
            leaf += texts.step(number) + ab.gen(
                max_tokens=texts.THOUGHT_TOKENS, ignore_eos=True, temperature=1.0, seed=seed
            )
    for leaf in leaves:
        leaf += texts.MARK + ab.select("mark", texts.MARKS)
    return max(leaves, key=lambda leaf: str(leaf["mark"])).text()


@ab.program
def answer(s: ab.State, document: str, topics: list[str]) -> list[str]:
    s += document
    forks = s.fork(len(topics))
    for fork, topic in zip(forks, topics, strict=True):
        fork += texts.question(topic)
        fork += ab.gen("answer", max_tokens=texts.ANSWER_TOKENS, ignore_eos=True, temperature=0)
    return forks["answer"]


@ab.program
def judge(s: ab.State, document: str) -> str:
    s += document
    forks = s.fork(len(texts.POINTS))
    for fork, name in zip(forks, texts.POINTS, strict=True):
        fork += texts.point(name) + ab.select("grade", texts.GRADES)
    s += texts.verdict(forks["grade"]) + ab.select("verdict", texts.GRADES)
    return str(s["verdict"])


@ab.program
def vote(s: ab.State, document: str, chains: int) -> list[str]:
    s += document
    forks = s.fork(chains)
    for seed, fork in enumerate(forks):
        fork += texts.THOUGHTS
        fork += ab.gen(max_tokens=texts.CHAIN_TOKENS, ignore_eos=True, temperature=1.0, seed=seed)
        fork += texts.RESULT + ab.gen("number", regex=texts.NUMBER, max_tokens=8, temperature=0)
    return forks["number"]


@ab.program
def extract(s: ab.State, instructions: str, invoice: str) -> None:
    s += instructions + invoice + typed("invoice", Invoice)


@ab.program
def handle(s: ab.State, instructions: str, invoice: str) -> None:
    extract(s, instructions, invoice)
    for heading in texts.tasks(s["invoice"]):
        s += heading + typed(None, Task)
    s += texts.LETTER + typed(None, Letter)


@ab.program
def agent(s: ab.State, document: str, topics: list[str]) -> None:
    s += document
    for topic in topics:
        s += texts.lookup(topic) + typed(topic, Lookup)
        s += texts.looked_up(s[topic])
        s += ab.gen(max_tokens=texts.ANSWER_TOKENS, ignore_eos=True, temperature=0)


def typed(name: str | None, kind: type) -> Expression:
    return ab.gen(name, json_schema=kind, max_tokens=texts.JSON_TOKENS, temperature=0)


def _tree(material: Material, backend: object) -> Trace:
    return think.run(material.documents[0], material.depth, backend=backend).trace


def _questions(material: Material, backend: object) -> Trace:
    batch = [{"document": each, "topics": material.topics} for each in material.documents]
    return _sum(state.trace for state in answer.run_batch(batch, backend=backend))


def _judge(material: Material, backend: object) -> Trace:
    batch = [{"document": each} for each in material.documents]
    return _sum(state.trace for state in judge.run_batch(batch, backend=backend))


def _consistency(material: Material, backend: object) -> Trace:
    batch = [{"document": each, "chains": material.chains} for each in material.documents]
    return _sum(state.trace for state in vote.run_batch(batch, backend=backend))


def _extraction(material: Material, backend: object) -> Trace:
    batch = [{"instructions": material.instructions, "invoice": each} for each in material.invoices]
    return _sum(state.trace for state in extract.run_batch(batch, backend=backend))


def _pipeline(material: Material, backend: object) -> Trace:
    batch = [{"instructions": material.instructions, "invoice": each} for each in material.invoices]
    return _sum(state.trace for state in handle.run_batch(batch, backend=backend))


def _agent(material: Material, backend: object) -> Trace:
    batch = [{"document": each, "topics": material.topics} for each in material.documents]
    return _sum(state.trace for state in agent.run_batch(batch, backend=backend))


def _sum(traces: Iterable[Trace]) -> Trace:
    return Trace(call for trace in traces for call in trace.calls)


IN_LANGUAGE: dict[str, Workload] = {
    "tree": _tree,
    "questions": _questions,
    "judge": _judge,
    "consistency": _consistency,
    "extraction": _extraction,
    "pipeline": _pipeline,
    "agent": _agent,
}
