"""A model hub with the paths that huggingface_hub asks for, on a thread."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "team/tiny"
GATED = "team/gated"
PIECE = 1 << 16
LFS = (".safetensors", ".gguf")
WEIGHTS = bytes(range(256)) * 4096
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "README.md": b"not needed",
}


class FakeHub:
    """`breaks_after`: bytes of a file after which the connection breaks once. `downloads` has the name and
    the Range header of each download, and `sent` the bytes that were sent of each file. Weights are stored as
    Git LFS does, with a SHA-256 digest; `digests` has those that the hub states wrongly."""

    def __init__(self, url: str, files: Mapping[str, bytes]) -> None:
        self.url = url
        self.files = dict(files)
        self.breaks_after: int | None = None
        self.delay_s = 0.0
        """before each piece of a file"""
        self.downloads: list[tuple[str, str | None]] = []
        self.sent: Counter[str] = Counter()
        self.digests: dict[str, str] = {}
        self.refuses_files: int | None = None
        """the status for all files, as of a model whose licence was not accepted"""
        self.architecture: str | None = None
        """that of the GGUF files, as the hub read it from them"""

    def digest(self, name: str) -> str:
        data = self.files[name]
        if not name.endswith(LFS):
            return hashlib.sha1(data).hexdigest()
        return self.digests.get(name) or hashlib.sha256(data).hexdigest()

    def describe(self, name: str, key: str) -> dict[str, object]:
        size, digest = len(self.files[name]), self.digest(name)
        git_id = "blobId" if key == "rfilename" else "oid"
        found = {"type": "file", key: name, "size": size, git_id: digest[:40]}
        pointer = {"size": size, "sha256": digest, "oid": digest, "pointerSize": 134}
        return {**found, "lfs": pointer} if name.endswith(LFS) else found


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
                    self._model()
                else:
                    self._refuse(404, "RevisionNotFound")
            elif path.lower() == f"/api/models/{MODEL}":
                self._model()
            elif path.startswith(f"/api/models/{MODEL}/tree/"):
                self._json([hub.describe(name, "path") for name in hub.files])
            elif path.startswith(f"/{MODEL}/resolve/") and hub.refuses_files is not None:
                self._refuse(hub.refuses_files, "GatedRepo" if hub.refuses_files == 403 else "")
            elif path.startswith(f"/{MODEL}/resolve/"):
                self._file(path.split("/", 5)[5], with_body)
            else:
                self._refuse(404, "RepoNotFound")

        def _model(self) -> None:
            siblings = [hub.describe(name, "rfilename") for name in hub.files]
            gguf = {"architecture": hub.architecture} if hub.architecture else None
            self._json({"id": MODEL, "sha": COMMIT, "siblings": siblings, "gguf": gguf})

        def _file(self, name: str, with_body: bool) -> None:
            if name not in hub.files:
                self._refuse(404, "EntryNotFound")
                return
            data = hub.files[name]
            wanted = self.headers["Range"]
            first, _, last = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
            begin, data = int(first), data[: int(last) + 1] if last else data
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            self.send_header("ETag", f'"{hub.digest(name)}"')
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
                piece = data[at : at + PIECE]
                self.wfile.write(piece)
                hub.sent[name] += len(piece)

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
