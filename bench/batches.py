"""Measures what the order of a batch is worth, and what a batch costs the requests beside it.

    PYTHONSAFEPATH=1 python bench/batches.py [MODEL] --documents 20 --questions 10 --words 150

The file has each question once for each document, shuffled. The KV cache (--kv-memory) should hold fewer
documents than there are. "file order" sends the lines as --in-flight clients do; "batch" uploads the file.
Both rows have the seconds and the share of prompt tokens that the cache had. The last table has the time to
the first token of short chats, alone and while the batch runs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parent / "lib"))
import httpx
from compared_servers import ServerCommand
from server_process import start

CHATS = "/v1/chat/completions"
WORDS = ["tree", "river", "stone", "light", "music", "bread", "winter", "garden", "letter", "road"]
OPEN = ("validating", "in_progress", "finalizing")


def chat(text: str, max_tokens: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 0}


def bodies(options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    generator = random.Random(seed)
    found = []
    for _ in range(options.documents):
        document = " ".join(generator.choices(WORDS, k=options.words))
        found += [
            chat(f"{document}\n\nQuestion {number}: which word comes first?", options.reply)
            for number in range(options.questions)
        ]
    generator.shuffle(found)
    return found


def share(usages: list[Any]) -> float:
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return float(cached / sum(usage["prompt_tokens"] for usage in usages))


def checked(answer: httpx.Response) -> Any:
    if answer.status_code != 200:
        sys.exit(f"{answer.request.url} answered {answer.status_code}: {answer.text}")
    return answer.json()


def in_file_order(client: httpx.Client, lines: list[dict[str, Any]], in_flight: int) -> list[Any]:
    with ThreadPoolExecutor(in_flight) as threads:
        return [
            checked(answer)["usage"]
            for answer in threads.map(lambda each: client.post(CHATS, json=each), lines)
        ]


def start_batch(client: httpx.Client, lines: list[dict[str, Any]]) -> str:
    content = "".join(
        json.dumps({"custom_id": str(number), "method": "POST", "url": CHATS, "body": body}) + "\n"
        for number, body in enumerate(lines)
    )
    file = checked(client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", content)}))
    body = {"input_file_id": file["id"], "endpoint": CHATS, "completion_window": "24h"}
    return str(checked(client.post("/v1/batches", json=body))["id"])


def batch_usages(client: httpx.Client, batch: str) -> list[Any]:
    while (found := checked(client.get(f"/v1/batches/{batch}")))["status"] in OPEN:
        time.sleep(0.1)
    if found["status"] != "completed" or found["error_file_id"]:
        sys.exit(f"the batch ended so: {found}")
    content = client.get(f"/v1/files/{found['output_file_id']}/content").text
    return [json.loads(line)["response"]["body"]["usage"] for line in content.removesuffix("\n").split("\n")]


def first_tokens_ms(client: httpx.Client, chats: int, label: str) -> list[float]:
    times = []
    for number in range(chats):
        body = {**chat(f"{label} {number}: hello", 8), "stream": True}
        begun = time.perf_counter()
        with client.stream("POST", CHATS, json=body) as answer:
            events = answer.iter_bytes()
            next(events)
            times.append((time.perf_counter() - begun) * 1000)
            for _ in events:
                pass
    return times


def measure(client: httpx.Client, options: argparse.Namespace) -> None:
    print(f"{'':12} {'seconds':>8} {'cached':>7}")
    for seed in range(options.rounds):
        lines = bodies(options, seed)
        for name in ("file order", "batch"):
            checked(client.delete("/cache"))
            begun = time.perf_counter()
            if name == "batch":
                usages = batch_usages(client, start_batch(client, lines))
            else:
                usages = in_file_order(client, lines, options.in_flight)
            print(f"{name:12} {time.perf_counter() - begun:8.1f} {share(usages):7.1%}", flush=True)
    print(f"\n{'first token':12} {'median ms':>9} {'worst':>7}")
    alone = first_tokens_ms(client, options.chats, "alone")
    batch = start_batch(client, bodies(options, options.rounds))
    time.sleep(3)
    beside = first_tokens_ms(client, options.chats, "beside")
    is_open = checked(client.get(f"/v1/batches/{batch}"))["status"] in OPEN
    client.post(f"/v1/batches/{batch}/cancel")
    for name, times in (("alone", alone), ("with a batch" if is_open else "(it ended)", beside)):
        print(f"{name:12} {median(times):9.0f} {max(times):7.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--questions", type=int, default=10)
    parser.add_argument("--words", type=int, default=150, help="of a document")
    parser.add_argument("--reply", type=int, default=4, help="most tokens of a reply")
    parser.add_argument("--in-flight", type=int, default=4, help="lines under way at once, in both ways")
    parser.add_argument("--kv-memory", default="8MiB")
    parser.add_argument("--chats", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-P", "-m", "arbora", "serve", *([options.model] if options.model else [])]
        command += ["--kv-memory", options.kv_memory, "--max-running", str(4 * options.in_flight)]
        command += ["--data-dir", f"{directory}/data"]
        with (
            start(ServerCommand("arbora", command), Path(directory)) as server,
            httpx.Client(base_url=server.url, timeout=600) as client,
        ):
            measure(client, options)


if __name__ == "__main__":
    main()
