"""A model hub with the paths that huggingface_hub asks for, on a thread."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "team/tiny"
GATED = "team/gated"
PIECE = 1 << 16


class FakeHub:
    """`breaks_after`: bytes of a file after which the connection breaks once. `downloads` has the name and
    the Range header of each download."""

    def __init__(self, url: str, files: Mapping[str, bytes]) -> None:
        self.url = url
        self.files = dict(files)
        self.breaks_after: int | None = None
        self.delay_s = 0.0
        """before each piece of a file"""
        self.downloads: list[tuple[str, str | None]] = []


@contextmanager
def fake_hub(files: Mapping[str, bytes]) -> Iterator[FakeHub]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            if path.startswith((f"/api/models/{GATED}", f"/{GATED}/")):
                self._refuse(403, "GatedRepo")
            elif path.startswith(f"/api/models/{MODEL}/revision/"):
                if path.rsplit("/", 1)[1] in ("main", COMMIT):
                    self._json({"id": MODEL, "sha": COMMIT, "siblings": []})
                else:
                    self._refuse(404, "RevisionNotFound")
            elif path == f"/api/models/{MODEL}":
                self._json({"id": MODEL, "sha": COMMIT, "siblings": []})
            elif path.startswith(f"/api/models/{MODEL}/tree/"):
                self._json(
                    [
                        {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                        for name, data in hub.files.items()
                    ]
                )
            elif path.startswith(f"/{MODEL}/resolve/"):
                self._file(path.rsplit("/", 1)[1], with_body)
            else:
                self._refuse(404, "RepoNotFound")

        def _file(self, name: str, with_body: bool) -> None:
            if name not in hub.files:
                self._refuse(404, "EntryNotFound")
                return
            data = hub.files[name]
            wanted = self.headers["Range"]
            begin = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            self.send_header("ETag", f'"{_etag(data)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(data) - begin))
            self.end_headers()
            if not with_body:
                return
            hub.downloads.append((name, wanted))
            for at in range(begin, len(data), PIECE):
                if hub.breaks_after is not None and at >= hub.breaks_after:
                    hub.breaks_after = None
                    self.close_connection = True
                    return
                time.sleep(hub.delay_s)
                self.wfile.write(data[at : at + PIECE])

        def _json(self, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        hub = FakeHub(f"http://127.0.0.1:{server.server_port}", files)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
