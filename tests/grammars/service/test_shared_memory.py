"""The processes that build automata share the memory of the server that forks them."""

from __future__ import annotations

from pathlib import Path

import pytest
from arbora.grammars import Automaton
from grammar_world import compiled, compiler, server_pid
from processes import children_of

OWN_SHARE = 0.25  # of the server's memory, for an idle process that has built one small automaton


def memory_kb(pid: int, *names: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return sum(sizes[name] for name in names)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_a_process_that_builds_automata_has_little_memory_of_its_own() -> None:
    grammars = compiler()
    assert isinstance(compiled(grammars, "regex", "shared"), Automaton)
    server = server_pid(grammars._builders)
    assert server is not None
    (builder,) = children_of(server)
    own = memory_kb(builder, "Private_Clean", "Private_Dirty")
    assert own < OWN_SHARE * memory_kb(server, "Rss"), own
    grammars.close()
