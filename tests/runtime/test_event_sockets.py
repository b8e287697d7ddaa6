"""The value of --kv-events: which addresses and keys it takes, and what its errors say."""

from __future__ import annotations

from pathlib import Path

import pytest
from arbora.frontend.launch.options import Setting, build_config
from arbora.runtime.config import ServeConfig, load_config
from arbora.runtime.errors import ConfigError
from arbora.runtime.event_sockets import read_event_sockets
from zmq.auth import create_certificates

LOCAL = "tcp://127.0.0.1:5557"


def build(text: str, **more: str) -> ServeConfig:
    settings = {"kv_events": text, "data_dir": "off", **more}
    return build_config(None, {name: Setting(f"--{name}", value) for name, value in settings.items()})


@pytest.fixture
def keys(tmp_path: Path) -> str:
    create_certificates(tmp_path, "server")
    (tmp_path / "clients").mkdir()
    create_certificates(tmp_path / "clients", "router")
    return f"secret={tmp_path}/server.key_secret,clients={tmp_path}/clients"


def test_each_replica_has_the_next_port_or_a_file_of_its_own() -> None:
    sockets = read_event_sockets(f"{LOCAL}, replay=ipc:///run/events")
    assert sockets.list_addresses(3) == [
        "tcp://127.0.0.1:5557",
        "tcp://127.0.0.1:5558",
        "tcp://127.0.0.1:5559",
        "ipc:///run/events",
        "ipc:///run/events_dp1",
        "ipc:///run/events_dp2",
    ]


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:5557", "tcp://*:5557", "tcp://10.0.0.3:5557", "tcp://gpu:1"]
)
@pytest.mark.parametrize("form", ["{}", f"{LOCAL},replay={{}}"])
def test_an_address_that_others_reach_needs_keys(address: str, form: str, keys: str) -> None:
    with pytest.raises(ValueError, match=r"other machines can reach tcp://.* loopback .* CURVE keys"):
        read_event_sockets(form.format(address))
    assert read_event_sockets(f"{form.format(address)},{keys}").secret is not None


@pytest.mark.parametrize(
    "address", [LOCAL, "tcp://localhost:1", "tcp://[::1]:65535", "tcp://127.9.9.9:80", "ipc:///x/y"]
)
def test_a_local_address_needs_no_keys(address: str) -> None:
    assert read_event_sockets(address).list_addresses(1) == [address]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("127.0.0.1:5557", "is no address. Expected tcp://HOST:PORT"),
        ("tcp://127.0.0.1", "is no address"),
        ("tcp://127.0.0.1:0", "a port from 1 to 65535"),
        ("tcp://127.0.0.1:65536", "a port from 1 to 65535"),
        ("ipc://relative", "ipc:///ABSOLUTE/PATH"),
        ("http://127.0.0.1:5557", "is no address"),
        (f"{LOCAL},reply=tcp://127.0.0.1:1", "'reply' is none of replay, topic, secret, clients"),
        (f"{LOCAL},topic=", "'topic' is none of"),
        (f"{LOCAL},secret=/none", "secret= needs clients= too"),
        (f"{LOCAL},clients=/none", "clients= needs secret= too"),
        (f"{LOCAL},secret=/none,clients=/none", "secret=/none can't be read .*create_certificates"),
    ],
)
def test_an_error_names_the_value_and_the_fix(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        read_event_sockets(text)


def test_certificates_are_checked_before_the_start(keys: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no secret key"):
        read_event_sockets(f"{LOCAL},{keys.replace('.key_secret', '.key')}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no certificates"):
        read_event_sockets(f"{LOCAL},{keys.replace('/clients', '/empty')}")


def test_replicas_may_not_share_a_port() -> None:
    near = f"{LOCAL},replay=tcp://127.0.0.1:5558"
    assert build(near).kv_events is not None
    with pytest.raises(ConfigError, match=r"--kv-events: tcp://127.0.0.1:5558 is used twice.*further apart"):
        build(near, replicas="2")
    with pytest.raises(ConfigError, match="replica 1 would need port 65536"):
        build("tcp://127.0.0.1:65535", replicas="2")


def test_options_that_leave_nothing_to_publish_or_do_not_say_of_what_are_refused() -> None:
    with pytest.raises(ConfigError, match="leaves nothing to publish"):
        build(LOCAL, debug="uncached")
    with pytest.raises(ConfigError, match="--kv-events is that of one model"):
        build(LOCAL, also_serve="smollm2")


def test_the_children_read_the_same_addresses(keys: str, tmp_path: Path) -> None:
    config = build(f"{LOCAL},replay=tcp://127.0.0.1:6000,topic=kv@a@b,{keys}")
    config.save(tmp_path)
    assert load_config(tmp_path).kv_events == config.kv_events
