"""The TLS context of a server, made from its certificate and its private key."""

from __future__ import annotations

import ssl
from pathlib import Path

from ...runtime.errors import ConfigError


def tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """A context for TLS 1.2 and later. Without `key`, the certificate's file contains the key too.

    Raises ConfigError if the files can't be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _check_is_certificate(certificate)
    named = f"--ssl-certfile {certificate}" if key is None else f"--ssl-certfile {certificate},{key}"
    try:
        if key is not None:
            key.read_bytes()
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except _EncryptedKeyError as error:
        raise ConfigError(
            f"{named}: the private key is encrypted. Name a file with the plain key, which "
            f"`openssl pkey -in {key or certificate} -out FILE` writes."
        ) from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"it is not the private key of the certificate in {certificate}. Name the key of that one."
        elif error.reason not in (None, "PEM_LIB", "NO_START_LINE"):
            why = f"OpenSSL refuses it or its certificate ({error.reason}). Make new ones."
        elif key is None:
            why = "there is no private key in it. Name the key's file behind a comma: FILE,KEYFILE."
        else:
            why = "there is no private key in it. Name a PEM file with BEGIN PRIVATE KEY in it."
        raise ConfigError(f"{named}: {why}") from error
    except OSError as error:
        raise ConfigError(f"{named}: it can't be read ({error.strerror}). Correct its name.") from error
    return context


def _check_is_certificate(certificate: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except ssl.SSLError as error:
        raise ConfigError(
            f"--ssl-certfile {certificate}: there is no valid certificate in it. Name a PEM file with the "
            "server's certificate, followed by those of its issuers."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"--ssl-certfile {certificate}: it can't be read ({error.strerror}). Correct its name."
        ) from error


class _EncryptedKeyError(Exception):
    """The private key is encrypted, and the server has no password for it."""


def _refuse_password() -> str:
    """Raises an error for an encrypted key, instead of OpenSSL's question at the terminal."""
    raise _EncryptedKeyError
