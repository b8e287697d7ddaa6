"""Anthropic's response headers about the limits of an API key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ....runtime.api_keys import Allowances
from ...http.allowances import by_kind
from ...http.apis import Headers


def allowance_headers(allowances: Allowances) -> Headers:
    now = datetime.now(UTC)
    for kind, allowance in by_kind(allowances):
        full_at = now + timedelta(seconds=allowance.full_in_s)
        name = b"anthropic-ratelimit-" + kind
        yield name + b"-limit", b"%d" % allowance.limit
        yield name + b"-remaining", b"%d" % allowance.left
        yield name + b"-reset", full_at.strftime("%Y-%m-%dT%H:%M:%SZ").encode()
