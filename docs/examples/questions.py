"""Many questions about a few documents: each document is computed once, and its questions are forks."""

from __future__ import annotations

from pathlib import Path

import arbora as ab
from example_options import connected, parser, print_cached_share

PAGES = Path(__file__).parents[1]
NAMES = ["architecture", "determinism", "failures", "scheduling", "tiers"]
TOPICS = """
memory, processes, requests, errors, speed, threads, tokens, pages, prefixes, priorities, clients, limits,
files, networks, floating point, random numbers, restarts, messages, tests, defaults
"""


@ab.program
def ask(s: ab.State, document: str, topics: list[str]) -> list[str]:
    s += ab.system("You answer questions about a document in one sentence.")
    s += ab.user(document)
    s += ab.assistant("I have read it. What is your question?")
    forks = s.fork(len(topics))
    for fork, topic in zip(forks, topics, strict=True):
        fork += ab.user(f"What does it say about {topic}?")
        fork += ab.assistant(ab.gen("answer", max_tokens=24, temperature=0))
    return forks["answer"]


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--words", type=int, default=300, help="of each document")
    options.add_argument("--questions", type=int, default=20, help="about each document, at most 20")
    values = connected(options)
    topics = [topic.strip() for topic in TOPICS.split(",")][: values.questions]
    texts = [(PAGES / f"{name}.md").read_text().split()[: values.words] for name in NAMES]
    states = ask.run_batch([{"document": " ".join(text), "topics": topics} for text in texts])
    for name, state in zip(NAMES, states, strict=True):
        print(f"{name}: {topics[0]}? {state.result[0]!r}")
    print_cached_share(states)
