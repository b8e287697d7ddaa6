"""The certificate and key of a server: which files are taken, and the errors of the others."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from arbora.frontend.cli.main import build_parser, main, serve_config
from arbora.frontend.http.tls import tls_context
from arbora.runtime.config import ServeConfig
from arbora.runtime.errors import ConfigError
from certificates import CERTIFICATE, ENCRYPTED_KEY, KEY, OTHER_KEY, write_certificate


def configured(*flags: str | Path) -> ServeConfig:
    return serve_config(vars(build_parser().parse_args(["serve", *map(str, flags)])), {})


def test_a_certificate_and_its_key_are_in_two_files_or_one(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    config = configured("--ssl-certfile", f"{certificate},{key}")
    assert (config.ssl_certfile, config.ssl_keyfile) == (certificate, key)
    both = tmp_path / "both.pem"
    both.write_text(KEY + CERTIFICATE)
    assert configured("--ssl-certfile", both).ssl_keyfile is None


def test_old_versions_of_tls_are_not_spoken(tmp_path: Path) -> None:
    assert tls_context(*write_certificate(tmp_path)).minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (OTHER_KEY, "it is not the private key of the certificate in"),
        (ENCRYPTED_KEY, "the private key is encrypted. Name a file with the plain key, which `openssl pkey"),
        (CERTIFICATE, "there is no private key in it. Name a PEM file"),
        ("", "there is no private key in it. Name a PEM file"),
        (None, "it can't be read \\(No such file or directory\\). Correct its name."),
    ],
)
def test_a_wrong_key_is_an_error_that_names_its_file(tmp_path: Path, key: str | None, expected: str) -> None:
    certificate, path = write_certificate(tmp_path)
    path.unlink()
    if key is not None:
        path.write_text(key)
    with pytest.raises(ConfigError, match=f"^--ssl-certfile {certificate},{path}: {expected}"):
        configured("--ssl-certfile", f"{certificate},{path}")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (CERTIFICATE, "there is no private key in it. Name the key's file behind a comma: FILE,KEYFILE."),
        (ENCRYPTED_KEY + CERTIFICATE, "the private key is encrypted"),
        (KEY, "there is no valid certificate in it"),
        (CERTIFICATE.replace("M", "N"), "there is no valid certificate in it"),
        ("", "there is no valid certificate in it"),
        (None, "it can't be read \\(No such file or directory\\). Correct its name."),
    ],
)
def test_a_wrong_certificate_is_an_error_that_names_its_file(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    path = tmp_path / "cert.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"^--ssl-certfile {path}: {expected}"):
        configured("--ssl-certfile", path)


def test_a_key_without_a_certificate_is_refused(tmp_path: Path) -> None:
    _, key = write_certificate(tmp_path)
    with pytest.raises(ConfigError, match="expected a file's path"):
        configured("--ssl-certfile", f",{key}")


def test_a_server_with_a_wrong_key_ends_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = write_certificate(tmp_path)
    key.write_text(OTHER_KEY)
    assert main(["serve", "--ssl-certfile", f"{certificate},{key}"]) == 2
    assert (
        f"arbora: error: --ssl-certfile {certificate},{key}: it is not the private key"
        in capsys.readouterr().err
    )
