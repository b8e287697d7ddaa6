"""Measures the router alone, with prompts of their real length."""

from __future__ import annotations

import random
import time

import numpy as np
from arbora.frontend.core.replica.router import Router
from arbora.radix_cache import PrefixCache
from arbora.runtime.messages import TOKEN_BYTES, Generate, Load, ReplicaReport
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.replies import Replies
from arbora.runtime.scheduler.routing_reports import RoutingReports

PAGE = 16
PROMPT = 12_000  # tokens
SYSTEM = 2_000  # tokens with which all prompts begin
TURN = 1_000  # tokens of a turn of a conversation
VOCABULARY = 150_000
ROUTES = 3_000
ONE_TOKEN = SamplingParams(max_tokens=1)


def measure_routes(replicas: int, tokens: int) -> tuple[float, int]:
    """Routes per second of processor time, and the number of nodes of the router's mirror.

    tokens: that the cache of each replica holds
    """
    router, source = Router(PAGE), np.random.default_rng(1)
    system = source.integers(VOCABULARY, size=SYSTEM, dtype=np.int32)
    prompts = list[bytes]()
    for replica in range(replicas):
        cache, replies = PrefixCache(tokens // PAGE, PAGE), Replies()
        reports = RoutingReports(cache, lambda: Load(0.0, 2e-5), replies)
        for _ in range(tokens // (PROMPT - SYSTEM)):
            rest = source.integers(VOCABULARY, size=PROMPT - SYSTEM, dtype=np.int32)
            prompts.append(np.concatenate([system, rest]).tobytes())
            for end in range(SYSTEM, PROMPT + 1, TURN):
                enter(cache, prompts[-1][: end * TOKEN_BYTES])
        reports.watch(0)
        reports.send()
        router.open(replica)
        for report in replies.take()[0]:
            assert isinstance(report, ReplicaReport) and router.take(replica, report)
    chosen = random.Random(1).choices(prompts, k=ROUTES)
    requests = [Generate(str(number), 0, prompt, ONE_TOKEN) for number, prompt in enumerate(chosen)]
    begin = time.process_time()
    for request in requests:
        router.send([request], router.choose([request], range(replicas)))
        router.note_accepted(request.request)
        router.note_end(request.request)
    return ROUTES / (time.process_time() - begin), router.num_nodes


def enter(cache: PrefixCache, prompt: bytes) -> None:
    """Enters a prompt into a cache as a request does."""
    length = len(prompt) // TOKEN_BYTES
    lock = cache.acquire(cache.match("", prompt, length - 1), length)
    assert cache.extend(lock, length)
    cache.commit(lock, prompt)
    if lock.copy is not None:
        cache.end_copy(lock)
    cache.release(lock, prompt)
