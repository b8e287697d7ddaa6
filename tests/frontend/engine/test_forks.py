"""Forks of a process that has used an `Engine` or the client of a server."""

from __future__ import annotations

import subprocess
import sys

from scripted_http import MODELS, REPLY, scripted_http

START = """
import multiprocessing, os, sys
import arbora

WAYS = ["os.fork", "a pool"]

def in_child(way, function):
    if way == "a pool":
        with multiprocessing.get_context("fork").Pool(1) as pool:
            print("child:", pool.apply(function))
        return
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        print("child:", function())
        sys.exit()  # a child may end as any program, with the functions of atexit
    assert os.waitpid(child, 0)[1] == 0
"""
ENGINE = """
engine = arbora.Engine(sys.argv[1], device="cpu", kv_memory="4MiB")
before = engine.generate("Hello", max_tokens=3, seed=1).text

def attempt():
    told = set()
    for call in (
        lambda: engine.generate("Hello"),
        lambda: engine.chat([{"role": "user", "content": "Hello"}]),
        lambda: next(engine.stream("Hello")),
        lambda: engine.tokenize("Hello"),
    ):
        try:
            call()
        except arbora.ServerError as error:
            told.add(str(error))
    engine.close()
    return " ".join(told)

for way in WAYS:
    in_child(way, attempt)
    assert engine.generate("Hello", max_tokens=3, seed=1).text == before

def own_engine():
    with arbora.Engine(sys.argv[1], device="cpu", kv_memory="4MiB") as own:
        return own.generate("Hello", max_tokens=3, seed=1).text == before

in_child("os.fork", own_engine)
engine.close()
"""
CLIENT = """
@arbora.program
def ask(s):
    s += "Sure?" + arbora.gen("answer")

backend = arbora.connect(sys.argv[1])

def answer():
    return ask.run(backend=backend)["answer"]

def answers():
    return [each["answer"] for each in ask.run_batch([{}] * 3, backend=backend)]

assert answer() == " yes"
for way in WAYS:
    in_child(way, answer)
    in_child(way, answers)
    assert answer() == " yes"
"""


def lines_of(script: str, argument: str) -> list[str]:
    """What the script prints. It must end within a minute, successfully and without a warning."""
    run = subprocess.run(
        [sys.executable, "-P", "-W", "error::ResourceWarning", "-c", START + script, argument],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout.splitlines()


def test_an_engine_says_at_once_in_a_forks_child_what_to_do(model: str) -> None:
    *refused, own = lines_of(ENGINE, model)
    assert len(refused) == 2
    for line in refused:
        assert line.startswith("child: this Engine belongs to process ")
        assert "Make an Engine in the child process, start children with multiprocessing" in line
        assert line.count("this Engine") == 1, "every call says the same"
    assert own == "child: True"


def test_the_client_of_a_server_works_in_a_forks_child_and_on_in_its_parent() -> None:
    with scripted_http(MODELS, REPLY) as url:
        assert lines_of(CLIENT, url) == ["child:  yes", "child: [' yes', ' yes', ' yes']"] * 2
