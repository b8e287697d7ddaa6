"""Certificates for tests, made for localhost and 127.0.0.1 with a validity of 100 years."""

from __future__ import annotations

import ssl
from pathlib import Path

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmDCCAT6gAwIBAgIUDYttTsDQjOiL3pBTu8AhOkPEtwowCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMzE4NDg1NFoYDzIxMjYxMDMw
MTg0ODU0WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASMf09PwGjv+iqqVOWajZ7eXxB8AyLFgzacjJrf4weFRkZmQ0d224Z+
rddyMivKZeS0SJdOlcpH63oj2/zXKruso2wwajAdBgNVHQ4EFgQUVi7qlhZklrzn
h2vfmlTkLHujo9EwHwYDVR0jBBgwFoAUVi7qlhZklrznh2vfmlTkLHujo9EwGgYD
VR0RBBMwEYIJbG9jYWxob3N0hwR/AAABMAwGA1UdEwEB/wQCMAAwCgYIKoZIzj0E
AwIDSAAwRQIgSuzSoWrIQqUowCTCMZCmkjaHfCXgDqGoHZrLzAtVPZ8CIQCoNzlP
C8JeagCmA76srJDGMpFPbnKtvWVfFtGn9RXY3g==
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgyc51SgPz7/Esd3mC
xznmMdVbiBy+kIih5nGsgZp4wiKhRANCAASMf09PwGjv+iqqVOWajZ7eXxB8AyLF
gzacjJrf4weFRkZmQ0d224Z+rddyMivKZeS0SJdOlcpH63oj2/zXKrus
-----END PRIVATE KEY-----
"""
ENCRYPTED_KEY = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAiPE/HhSFVwaAICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEH7/8AJaYf6fN9iih/t7sVEEgZDB
rHBBzqm1++cQJlRhswtuXZ7O3uuexK4MV/bnycUNfUeMlv0801+jmbjY860875RG
/Wh+IQU80xJ42+G/CsvBZq1XCYKqaAgRNnVwOMFqQg6FW1glWMx3sNcLgvk9E1KN
ud1KvX+u04CbQl3BEEpBr8EuPh8tHrYxW5DiLS2+3bzmRHB10XNVEJ5ED/OHRgg=
-----END ENCRYPTED PRIVATE KEY-----
"""  # of the same key, with the password x
OTHER_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgkAUpUFHODAWmOHbn
tQI+Oo0jDatX//vi+Ycc1Vd0cuGhRANCAASz0EpSgPTxTYtGwLQdE3lHzl5ih3k/
F1/sjUun8r8Fy383MVFaeWLElPhqR8wcjPVAZPYrO++bbq+KDLC7FhbJ
-----END PRIVATE KEY-----
"""


def write_certificate(directory: Path) -> tuple[Path, Path]:
    """The files with the certificate and its key."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    certificate.write_text(CERTIFICATE)
    key.write_text(KEY)
    return certificate, key


def client_context() -> ssl.SSLContext:
    """A context that trusts only the certificate for tests."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=CERTIFICATE)
    return context
