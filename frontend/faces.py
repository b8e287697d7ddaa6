"""The faces of this server. Errors on a path without a face have OpenAI's form."""

from __future__ import annotations

from .anthropic.face import ANTHROPIC
from .batches.face import batches_face
from .http.faces import Faces
from .native.face import NATIVE
from .ollama.face import OLLAMA
from .openai.face import OPENAI
from .responses.face import RESPONSES

FACES = Faces(OPENAI, (ANTHROPIC, RESPONSES, NATIVE, OLLAMA, batches_face((OPENAI, ANTHROPIC, RESPONSES))))
