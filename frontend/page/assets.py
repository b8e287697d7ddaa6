"""The files of the page, and their version: a hash of all their contents."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent / "files"
PAGE = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_VERSION_MARK = b"{version}"  # stands for the version in the page's links to its files


@dataclass(frozen=True)
class Asset:
    body: bytes
    packed: bytes  # the content, packed by gzip
    content_type: str


@dataclass(frozen=True)
class Assets:
    """The page's HTML, and by their paths the `files` that it loads. The HTML names their version."""

    version: str
    page: Asset
    files: dict[str, Asset]


def read_assets() -> Assets:
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in _TYPES)
    bodies = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}
    digest = sha256()
    for name, body in bodies.items():
        digest.update(f"{name} {len(body)} ".encode() + body)
    version = digest.hexdigest()[:16]
    page = bodies.pop(PAGE).replace(_VERSION_MARK, version.encode())
    return Assets(version, _asset(PAGE, page), {name: _asset(name, body) for name, body in bodies.items()})


def _asset(name: str, body: bytes) -> Asset:
    return Asset(body, gzip.compress(body, mtime=0), _TYPES[Path(name).suffix])
