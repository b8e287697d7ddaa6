"""The workloads of programs.py as a client without forks writes them: each call sends its whole prompt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, TypeAlias, TypeVar

import httpx
import msgspec
import program_material as texts
from program_material import Invoice, Letter, Lookup, Material, Task

T = TypeVar("T")
R = TypeVar("R")


class NaiveClient:
    """OpenAI's completions. `threads`: of the pool for calls that do not need each other's replies; 1 makes
    them one after the other. `scores`: `select` scores each choice with a request of its own, as evaluation
    scripts do; otherwise one request is constrained to the choices."""

    def __init__(self, url: str, threads: int, scores: bool) -> None:
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self._http = httpx.Client(base_url=url, timeout=None, limits=httpx.Limits(max_connections=threads))
        self._model = self._http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        self._threads = threads
        self._scores = scores
        self._counting = threading.Lock()

    def close(self) -> None:
        self._http.close()

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        if self._threads == 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(function, items))

    def complete(self, prompt: str, **fields: Any) -> str:
        return str(self._ask(prompt, **fields)["text"])

    def complete_json(self, prompt: str, kind: type) -> str:
        schema = {"name": kind.__name__, "strict": True, "schema": msgspec.json.schema(kind)}
        wanted = {"type": "json_schema", "json_schema": schema}
        return self.complete(prompt, max_tokens=texts.JSON_TOKENS, temperature=0, response_format=wanted)

    def select(self, prompt: str, choices: list[str]) -> str:
        if not self._scores:
            return self.complete(prompt, max_tokens=8, temperature=0, structured_outputs={"choice": choices})
        means = [self._mean_logprob(prompt, choice) for choice in choices]
        return choices[means.index(max(means))]

    def _mean_logprob(self, prompt: str, choice: str) -> float:
        scored = self._ask(prompt + choice, max_tokens=1, temperature=0, echo=True, logprobs=1)["logprobs"]
        places = zip(scored["text_offset"], scored["token_logprobs"], strict=True)
        end = len(prompt + choice)
        values = [value for place, value in places if len(prompt) <= place < end]
        return float(sum(values) / max(1, len(values)))

    def _ask(self, prompt: str, **fields: Any) -> dict[str, Any]:
        body = {"model": self._model, "prompt": prompt, **fields}
        answer = self._http.post("/v1/completions", json=body).raise_for_status().json()
        usage = answer["usage"]
        with self._counting:
            self.prompt_tokens += usage["prompt_tokens"]
            self.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            self.completion_tokens += usage["completion_tokens"]
        choice: dict[str, Any] = answer["choices"][0]
        return choice


Workload: TypeAlias = Callable[[Material, NaiveClient], None]


def _tree(material: Material, client: NaiveClient) -> None:
    """A pool computes a level of the tree at a time, and then the marks."""

    def think(numbered: tuple[int, str]) -> str:
        seed, prompt = numbered
        thought = client.complete(
            prompt, max_tokens=texts.THOUGHT_TOKENS, ignore_eos=True, temperature=1.0, seed=seed
        )
        return prompt + thought

    paths = [material.documents[0]]
    for number in range(material.depth):
        prompts = [path + texts.step(number) for path in paths for _ in range(texts.WIDTH)]
        paths = client.each(think, enumerate(prompts))
    client.each(lambda path: client.select(path + texts.MARK, texts.MARKS), paths)


def _questions(material: Material, client: NaiveClient) -> None:
    prompts = [each + texts.question(topic) for each, topic in product(material.documents, material.topics)]
    client.each(
        lambda prompt: client.complete(
            prompt, max_tokens=texts.ANSWER_TOKENS, ignore_eos=True, temperature=0
        ),
        prompts,
    )


def _judge(material: Material, client: NaiveClient) -> None:
    """A pool judges documents side by side, the points of each one after the other."""

    def judge(document: str) -> str:
        grades = [client.select(document + texts.point(name), texts.GRADES) for name in texts.POINTS]
        return client.select(document + texts.verdict(grades), texts.GRADES)

    client.each(judge, material.documents)


def _consistency(material: Material, client: NaiveClient) -> None:
    """A pool computes chains side by side; each is two calls."""

    def chain(numbered: tuple[str, int]) -> str:
        document, seed = numbered
        begun = document + texts.THOUGHTS
        thoughts = client.complete(
            begun, max_tokens=texts.CHAIN_TOKENS, ignore_eos=True, temperature=1.0, seed=seed
        )
        constraint = {"regex": texts.NUMBER}
        prompt = begun + thoughts + texts.RESULT
        return client.complete(prompt, max_tokens=8, temperature=0, structured_outputs=constraint)

    client.each(chain, product(material.documents, range(material.chains)))


def _extraction(material: Material, client: NaiveClient) -> None:
    def extract(invoice: str) -> Invoice:
        text = client.complete_json(material.instructions + invoice, Invoice)
        return msgspec.json.decode(text, type=Invoice)

    client.each(extract, material.invoices)


def _pipeline(material: Material, client: NaiveClient) -> None:
    """A pool handles invoices side by side, the calls of each one after the other."""

    def handle(invoice: str) -> Letter:
        prompt = material.instructions + invoice
        found = client.complete_json(prompt, Invoice)
        prompt += found
        for heading in texts.tasks(msgspec.json.decode(found, type=Invoice)):
            prompt += heading
            prompt += client.complete_json(prompt, Task)
        return msgspec.json.decode(client.complete_json(prompt + texts.LETTER, Letter), type=Letter)

    client.each(handle, material.invoices)


def _agent(material: Material, client: NaiveClient) -> None:
    """A pool runs an agent for each document, the turns of each one after the other."""

    def answer(prompt: str) -> None:
        for topic in material.topics:
            prompt += texts.lookup(topic)
            call = client.complete_json(prompt, Lookup)
            prompt += call + texts.looked_up(msgspec.json.decode(call, type=Lookup))
            prompt += client.complete(prompt, max_tokens=texts.ANSWER_TOKENS, ignore_eos=True, temperature=0)

    client.each(answer, material.documents)


NAIVE: dict[str, Workload] = {
    "tree": _tree,
    "questions": _questions,
    "judge": _judge,
    "consistency": _consistency,
    "extraction": _extraction,
    "pipeline": _pipeline,
    "agent": _agent,
}
