"""The file of API keys: plain lines, described keys, and errors with the number of the wrong line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from arbora.frontend.cli.main import main
from arbora.frontend.http.key_file import read_key_file
from arbora.frontend.http.tenants import KeyRing
from arbora.runtime.api_keys import ApiKey, key_hash, plain_key


def read(directory: Path, text: str) -> tuple[ApiKey, ...]:
    path = directory / "keys"
    path.write_text(text)
    path.chmod(0o600)
    return read_key_file(path)


def described(**fields: object) -> str:
    return json.dumps({"name": "ada", "key": "secret", **fields})


def test_plain_keys_and_described_ones_share_a_file(tmp_path: Path) -> None:
    limits = {"requests_per_minute": 60, "tokens_per_minute": 1000, "concurrent_requests": 2, "max_tokens": 9}
    lines = ["# ours", "", "one  # Ada's", described(**limits, priority=3, best_priority=1)]
    assert read(tmp_path, "\n".join(lines)) == (
        plain_key("one"),
        ApiKey(name="ada", sha256=key_hash("secret"), **limits, priority=3, best_priority=1),
    )


def test_a_key_may_contain_a_hash_sign(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("abc#def # Ada's\n")
    path.chmod(0o600)
    assert read_key_file(path) == (plain_key("abc#def"),)


def test_a_key_may_be_given_by_its_hash(tmp_path: Path) -> None:
    line = json.dumps({"name": "ada", "sha256": key_hash("secret").upper()})
    ring = KeyRing(read(tmp_path, line))
    found = ring.find("secret")
    assert found is not None and found.name == "ada"
    assert ring.find(key_hash("secret")) is None and ring.find("") is None


def test_a_key_that_is_there_twice_counts_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = ["one", described(max_tokens=5), "# ours", "one", described(max_tokens=5)]
    assert [key.sha256 for key in read(tmp_path, "\n".join(lines))] == [key_hash("one"), key_hash("secret")]
    assert "line 4 has the key of line 1 again: it counts once" in caplog.text
    assert "line 5 has the key of line 2 again" in caplog.text


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    assert read(tmp_path, "\ufeffone\r\ntwo\r\n") == (plain_key("one"), plain_key("two"))


def test_a_key_with_limits_may_not_be_given_without_them_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(tmp_path, described())
    options = ["serve", str(tmp_path), "--api-key", f"@{tmp_path / 'keys'}"]
    assert main([*options, "--api-key", "other,secret"]) == 2
    assert (
        "the key of ada is one of --api-key too, which has no limits: remove it there."
        in capsys.readouterr().err
    )
    read(tmp_path, "secret")
    assert main([*options, "--api-key", "secret"]) == 2
    assert "--api-key" not in capsys.readouterr().err


def test_the_key_command_prints_a_key_and_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["key", "ada"]) == 0
    key, line = (each.partition(": ")[2] for each in capsys.readouterr().out.splitlines())
    assert key not in line
    found = KeyRing(read(tmp_path, line)).find(key)
    assert found is not None and found.name == "ada"


def test_the_key_command_prints_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "ada", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    key = printed.pop("key")
    assert printed == {"name": "ada", "sha256": key_hash(key)}
    found = KeyRing(read(tmp_path, json.dumps(printed))).find(key)
    assert found is not None and found.name == "ada"


def test_the_key_command_refuses_a_name_that_no_line_may_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "a b"]) == 2
    assert "arbora key a b: a name has 1 to 64 of the characters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 2 is no JSON object"),
        (described(name=1), "line 2 is wrong: name is an integer, but must be a string."),
        (described(key=["one"]), "line 2 is wrong: key is a list, but must be a string."),
        (
            described(tokens_per_minute=1.5),
            "line 2 is wrong: tokens_per_minute is a number, but must be an integer.",
        ),
        (described(priority=None), "line 2 is wrong: priority is null, but must be an integer."),
        (json.dumps({"key": "secret"}), "line 2 has no name; write 1 to 64 of the characters"),
        (
            described(requests=1),
            "line 2 has the unknown field requests. A key has the fields name, key or sha256",
        ),
        (described(name="a b"), "line 2 has the name 'a b'"),
        (described(sha256="0" * 64), "line 2 (ada) needs either key or sha256"),
        (
            json.dumps({"name": "ada"}),
            "line 2 (ada) needs either key or sha256; `arbora key ada` makes a line",
        ),
        (json.dumps({"name": "ada", "sha256": "0f"}), "line 2 (ada) has a wrong sha256"),
        ("a\x00b", "line 2 has the character U+0000 in a key, which no HTTP header may have"),
        (described(key="a\x00b"), "line 2 (ada) has the character U+0000 in its key"),
        ("a\x0bb", "line 2 has a space within a key"),
        (described(key="two parts"), "line 2 (ada) has an empty key, or one with a space"),
        (described(tokens_per_minute=0), "line 2 (ada): tokens_per_minute is 0, but must be 1 or more"),
        (described(best_priority=2), "priority is 0, better than best_priority 2"),
        (described(key="one"), "line 2 has the key of"),
        (described() + "\n" + described(key="other"), "line 3 has the name ada again"),
    ],
)
def test_a_wrong_line_is_named_with_its_number(tmp_path: Path, line: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        read(tmp_path, f"one\n{line}\n")


def test_an_error_does_not_show_a_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1") as error:
        read(tmp_path, described(key="very secret"))
    assert "very" not in str(error.value)
