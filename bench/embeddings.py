"""Embeddings of texts of many lengths, by Arbora and by sentence-transformers in turns.

    python bench/embeddings.py MODEL --sentence-transformers DIRECTORY --rounds 3

MODEL is a directory as sentence-transformers saves it. DIRECTORY has that package (pip install --target
DIRECTORY --no-deps sentence-transformers scikit-learn scipy joblib threadpoolctl narwhals cloudpickle loky);
without it only Arbora is measured.

The texts are words of `--texts` (Markdown files) in log-normal lengths, 58 tokens on average. In each round
Arbora computes all texts in one request, then from 16 clients with one text each; then sentence-transformers
computes them in one call of `encode`, in a process with as many threads. The table has the medians. "CPU ms"
are milliseconds of processor time of the whole server, or of that process, for 1,000 tokens. "other" is the
share of all cores that other processes used: figures with much of it are spoilt.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parent / "lib")]
import httpx
import numpy as np
from arbora.runtime.system_cores import count_usable_cores
from other_load import now, other_load, tree_seconds
from reports import commit, date, machine, table
from server_process import ServerProcess, exit_on_sigterm, serve_arbora

CLIENTS = 16
_PEER = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import sentence_transformers, torch
torch.set_num_threads(int(sys.argv[3]))
model = sentence_transformers.SentenceTransformer(sys.argv[2], device="cpu")
texts = json.loads(sys.stdin.readline())
model.encode(texts[:32])
print(json.dumps(sum(len(ids) for ids in model.tokenizer(texts, truncation=True)["input_ids"])), flush=True)
for line in sys.stdin:
    begun, used = time.perf_counter(), time.process_time()
    vectors = model.encode(texts, batch_size=32)
    figures = [time.perf_counter() - begun, time.process_time() - used, vectors[:8].tolist()]
    print(json.dumps(figures), flush=True)
"""


def make_texts(files: list[Path], count: int) -> list[str]:
    words = re.findall(r"\S+", " ".join(path.read_text() for path in files))
    chance = random.Random(1)
    texts = []
    for _ in range(count):
        length = min(160, max(3, int(chance.lognormvariate(3.2, 0.9))))
        start = chance.randrange(len(words) - length)
        texts.append(" ".join(words[start : start + length]))
    return texts


class Peer:
    """Runs sentence-transformers in another process."""

    def __init__(self, packages: Path, model: Path, texts: list[str]) -> None:
        command = [sys.executable, "-c", _PEER, str(packages), str(model), str(count_usable_cores())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tokens: int = self._ask(texts)

    def run(self) -> tuple[float, float, Any]:
        """Seconds, processor seconds, and the first vectors."""
        seconds, used, vectors = self._ask(None)
        return seconds, used, vectors

    def _ask(self, question: object) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def ask(client: httpx.Client, given: str | list[str]) -> Any:
    body = {"input": given, "truncate_prompt_tokens": -1}
    answer = client.post("/v1/embeddings", json=body)
    answer.raise_for_status()
    return answer.json()


def measure_arbora(server: ServerProcess, texts: list[str], clients: int) -> tuple[int, float, float, Any]:
    """Tokens, seconds, processor seconds, and the first vectors."""
    with httpx.Client(base_url=server.url, timeout=600) as client:
        used, begun = tree_seconds(server.pid), time.perf_counter()
        if clients == 1:
            answers = [ask(client, texts)]
        else:
            with ThreadPoolExecutor(clients) as pool:
                answers = list(pool.map(lambda text: ask(client, text), texts))
        seconds, used = time.perf_counter() - begun, tree_seconds(server.pid) - used
    tokens = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    vectors = [each["embedding"] for answer in answers for each in answer["data"]]
    return tokens, seconds, used, vectors[:8]


def main() -> None:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--sentence-transformers", type=Path)
    parser.add_argument("--texts", type=Path, nargs="+", default=sorted(Path("docs").glob("*.md")))
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    texts = make_texts(options.texts, options.count)
    cores = os.cpu_count() or 1
    rows: dict[str, list[tuple[float, float, float]]] = {}

    def note(name: str, tokens: int, seconds: float, used: float, load: float) -> None:
        rows.setdefault(name, []).append((tokens / seconds, 1e6 * used / tokens, load))

    log = Path(tempfile.mkdtemp(prefix="arbora-bench-")) / "server.log"
    with serve_arbora(log, str(options.model)) as server:
        measure_arbora(server, texts[:32], 1)
        packages = options.sentence_transformers
        peer = None if packages is None else Peer(packages, options.model, texts)
        for _ in range(options.rounds):
            for name, clients in (("arbora, one request", 1), (f"arbora, {CLIENTS} clients", CLIENTS)):
                before = now(server.pid)
                tokens, seconds, used, ours = measure_arbora(server, texts, clients)
                note(name, tokens, seconds, used, other_load(before, now(server.pid), cores))
            if peer is not None:
                before = now(server.pid)
                seconds, used, theirs = peer.run()
                load = other_load(before, now(server.pid), cores) - used / (cores * seconds)
                note("sentence-transformers", peer.tokens, seconds, used, load)
                assert np.abs(np.array(ours) - np.array(theirs)).max() < 1e-4, "the embeddings differ"
        if peer is not None:
            peer.close()
    print(f"{date()}, {machine()}, commit {commit()}, {options.count} texts\n")
    cells = [
        (name, *(round(statistics.median(values), 1) for values in zip(*figures, strict=True)))
        for name, figures in rows.items()
    ]
    print(table(("", "tokens/s", "CPU ms", "other"), cells))


if __name__ == "__main__":
    main()
