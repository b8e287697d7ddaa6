"""Batches on a real server: they resume after a kill, and run in an order that shares prefixes."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from served import PATIENCE, Served, eventually, serve

CHATS: Any = "/v1/chat/completions"
DOCUMENTS, QUESTIONS = 20, 10
OPEN = ("validating", "in_progress", "finalizing")


def line(custom_id: str, text: str, max_tokens: int) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "ignore_eos": True}
    return {"custom_id": custom_id, "method": "POST", "url": CHATS, "body": body}


def start(served: Served, lines: list[dict[str, Any]]) -> str:
    content = "".join(json.dumps(each) + "\n" for each in lines).encode()
    file = served.client.files.create(file=("in.jsonl", content), purpose="batch")
    created = served.client.batches.create(input_file_id=file.id, endpoint=CHATS, completion_window="24h")
    return created.id


def ended(served: Served, batch: str) -> Any:
    end = time.monotonic() + 3 * PATIENCE
    while (found := served.client.batches.retrieve(batch)).status in OPEN:
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def output(served: Served, file: str | None) -> list[Any]:
    assert file is not None
    return [
        json.loads(each) for each in served.client.files.content(file).text.removesuffix("\n").split("\n")
    ]


def finished(served: Served, batch: str) -> int:
    counts = served.client.batches.retrieve(batch).request_counts
    assert counts is not None
    return counts.completed


def test_a_batch_survives_the_death_of_its_process_and_of_the_server(
    served_model: Path, tmp_path: Path
) -> None:
    flags = ("--data-dir", str(tmp_path / "data"), "--max-running", "8")
    lines = [line(str(number), f"Question {number}", 200) for number in range(16)]
    with serve(served_model, *flags, home=tmp_path) as first:
        batch = start(first, lines)
        eventually(lambda: finished(first, batch) >= 2)
        os.kill(first.children["tokenizer"], signal.SIGKILL)
        time.sleep(1)
        eventually(lambda: first.is_healthy)
        before = finished(first, batch)
        assert before < len(lines)
        eventually(lambda: finished(first, batch) > before)
        os.kill(first.process.pid, signal.SIGKILL)
    with serve(served_model, *flags, home=tmp_path) as second:
        after_kill = finished(second, batch)
        assert before < after_kill < len(lines)
        found = ended(second, batch)
        assert (found.status, found.error_file_id) == ("completed", None)
        answered = output(second, found.output_file_id)
        assert [each["custom_id"] for each in answered] == [str(number) for number in range(16)]


def questions() -> list[dict[str, Any]]:
    """Each question once for each document, in a random order."""
    generator = random.Random(3)
    words = ["tree", "river", "stone", "light", "music", "bread", "winter", "garden", "letter", "road"]
    lines = []
    for document in range(DOCUMENTS):
        text = " ".join(generator.choices(words, k=60))
        lines += [
            line(f"{document}/{question}", f"{text}\nQuestion {question}: which words?", 2)
            for question in range(QUESTIONS)
        ]
    generator.shuffle(lines)
    return lines


def cached_share(usages: list[Any]) -> float:
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return float(cached / sum(usage["prompt_tokens"] for usage in usages))


def in_the_order_of_the_file(served: Served, lines: list[dict[str, Any]]) -> float:
    """The cached share if a client sends the requests itself, as many at once as a batch has."""

    def ask(each: dict[str, Any]) -> Any:
        answer = served.http.post(CHATS, json=each["body"])
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]

    with ThreadPoolExecutor(4) as clients:
        return cached_share(list(clients.map(ask, lines)))


def test_a_shuffled_file_runs_in_an_order_that_shares_prefixes(served_model: Path, tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path / "data"), "--max-running", "16", "--kv-memory", "512KiB")
    lines = questions()
    with serve(served_model, *flags, home=tmp_path) as served:
        tokens = sum(len(served.token_ids(each["body"]["messages"][0]["content"])) for each in lines)
        pages = served.metrics()["arbora_kv_pages"]
        assert pages * 16 < tokens / QUESTIONS  # the cache holds less than one copy of each document
        unordered = in_the_order_of_the_file(served, lines)
        assert served.http.delete("/cache").status_code == 200
        found = ended(served, start(served, lines))
        answers = output(served, found.output_file_id)
        ordered = cached_share([each["response"]["body"]["usage"] for each in answers])
    assert len(answers) == len(lines)
    ideal = (QUESTIONS - 1) / QUESTIONS
    assert ordered > 0.8 * ideal, (ordered, unordered)
    assert unordered < ordered / 2, (ordered, unordered)
