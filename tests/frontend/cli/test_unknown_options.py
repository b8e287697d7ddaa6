"""Arguments that the command line does not know: the error names what to write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from arbora.frontend.cli.main import main
from arbora.frontend.cli.unknown_options import ELSEWHERE
from arbora.frontend.launch.options import REPLACED
from arbora.runtime.config import OPTIONS


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("serve", "--prt", "8000"), "there is no option --prt: did you mean --port?"),
        (
            ("serve", "--prot", "8000"),
            "there is no option --prot: did you mean --port?",
        ),
        (("serve", "--por", "8000"), "there is no option --por: did you mean --port?"),
        (("serve", "--max-r", "8"), "there is no option --max-r: did you mean --max-running?"),
        (
            ("serve", "--request", "8"),
            "there is no option --request: did you mean --request-timeout or --request-defaults?",
        ),
        (
            ("serve", "--disk", "8"),
            "there is no option --disk: did you mean --disk-cache?",
        ),
        (("serve", "--kv-memroy=1GiB"), "there is no option --kv-memroy: did you mean --kv-memory?"),
        (("serve", "--uds", "a.sock"), "--uds is now --host unix:PATH"),
        (("serve", "--isolate-keys"), "--isolate-keys is now --isolate keys"),
        (("serve", "--zzzzz"), "there is no option --zzzzz"),
        (
            ("serve", "--tensor-parallel-size", "2"),
            "there is no option --tensor-parallel-size: use --tp N",
        ),
        (("serve", "--model", "m"), "there is no option --model: give MODEL as the argument: `serve MODEL`"),
        (
            ("serve", "-c", "4096", "--num-ctx", "8"),
            "there is no option -c: use --max-model-len; there is no option --num-ctx: use --max-model-len",
        ),
        (("serve", "-m", "a.gguf"), "there is no option -m: give MODEL as the argument: `serve MODEL`"),
        (("serve", "--max_num_seqs=8"), "there is no option --max_num_seqs: use --max-running"),
        (
            ("serve", "--gpu-memory-utilization", "0.9"),
            "there is no option --gpu-memory-utilization: use --kv-memory SIZE, such as 4GiB",
        ),
        (("serve", "one-model", "another"), "only one MODEL can be given"),
        (("serve", "m", "--api-key", "k1", "k2"), "only one MODEL can be given"),
        (
            ("serve", "--prt", "1", "--sed", "2", "--prt", "3"),
            "there is no option --prt: did you mean --port; there is no option --sed; "
            "there is no option --prt: did you mean --port?",
        ),
        (("serve", "--port"), "argument --port: expected one argument"),
        (("chat", "--sytem", "Be brief."), "there is no option --sytem: did you mean --system?"),
        (("chat", "hello"), "there is an argument too many"),
    ],
)
def test_an_unknown_argument_is_refused_in_one_line_with_the_closest_option(
    arguments: Sequence[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    end = "" if expected.endswith("?") else "."
    advice = f"`arbora {arguments[0]} --help` lists all options."
    assert capsys.readouterr().err == f"arbora: error: {expected}{end} {advice}\n"


def test_an_option_of_another_server_names_only_options_that_exist() -> None:
    flags = {option.flag for option in OPTIONS}
    new = [f"--{option.replace('_', '-')}" for option, _ in REPLACED.values()]
    for instead in (*ELSEWHERE.values(), *new):
        assert set(re.findall(r"--[a-z-]+", instead)) <= flags
