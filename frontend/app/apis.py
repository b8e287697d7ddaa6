"""The faces of this server. Errors on a path without a face have OpenAI's form."""

from __future__ import annotations

from ..api.anthropic.face import ANTHROPIC
from ..api.native.face import NATIVE
from ..api.ollama.face import OLLAMA
from ..api.openai.face import OPENAI
from ..http.faces import Faces
from ..stored.batches.face import batches_face
from ..stored.responses.face import RESPONSES

FACES = Faces(OPENAI, (ANTHROPIC, RESPONSES, NATIVE, OLLAMA, batches_face((OPENAI, ANTHROPIC, RESPONSES))))
