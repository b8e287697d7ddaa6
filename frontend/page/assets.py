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
_PACKED = ".gz"  # the suffix of large files, which the package contains packed
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
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in (*_TYPES, _PACKED))
    bodies = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}
    digest = sha256()
    for name, body in bodies.items():
        digest.update(f"{name} {len(body)} ".encode() + body)
    version = digest.hexdigest()[:16]
    page = bodies.pop(PAGE).replace(_VERSION_MARK, version.encode())
    files = {name.removesuffix(_PACKED): _asset(name, body) for name, body in bodies.items()}
    return Assets(version, _asset(PAGE, page), files)


def _asset(name: str, body: bytes) -> Asset:
    if name.endswith(_PACKED):
        return Asset(gzip.decompress(body), body, _TYPES[Path(name.removesuffix(_PACKED)).suffix])
    return Asset(body, gzip.compress(body, mtime=0), _TYPES[Path(name).suffix])
