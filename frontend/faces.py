"""The faces of this server. Errors on a path without a face have OpenAI's form."""

from __future__ import annotations

from .anthropic.face import ANTHROPIC
from .http.faces import Faces
from .openai.face import OPENAI
from .responses.face import RESPONSES

FACES = Faces(OPENAI, (ANTHROPIC, RESPONSES))
