"""The APIs of this server. Errors on paths of no API have OpenAI's form."""

from __future__ import annotations

from ..api.anthropic.routes import ANTHROPIC
from ..api.native.routes import NATIVE
from ..api.ollama.routes import OLLAMA
from ..api.openai.routes import OPENAI
from ..http.apis import Apis
from ..stored.batches.routes import batches_api
from ..stored.responses.routes import RESPONSES

APIS = Apis(OPENAI, (ANTHROPIC, RESPONSES, NATIVE, OLLAMA, batches_api((OPENAI, ANTHROPIC, RESPONSES))))
