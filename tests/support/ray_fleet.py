"""`python ray_fleet.py PORT ARGS`: a Ray cluster on the loopback address that serves the application with the
JSON arguments, until its input ends. It says when it serves; the end of the process ends the cluster."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import suppress

import httpx
import ray
from arbora.frontend.ray_serve import build_app
from ray import serve

OBJECT_STORE_BYTES = 100 << 20


def main() -> None:
    port, arguments = int(sys.argv[1]), json.loads(sys.argv[2])
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-") as directory:  # sockets need a short path
        ray.init(
            num_cpus=16,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=directory,
            log_to_driver=False,
        )
        with suppress(TimeoutError):  # Serve waits a minute for its proxy; a busy machine needs more
            serve.start(http_options={"host": "127.0.0.1", "port": port})
        with suppress(TimeoutError):
            serve.run(build_app(arguments))
        while not answers(f"http://127.0.0.1:{port}/v1/models"):
            time.sleep(0.2)
        print("serves", flush=True)
        sys.stdin.read()
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    main()
