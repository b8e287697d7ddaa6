"""A model process that finds no way to capture CUDA graphs, but serves without."""

from __future__ import annotations

from collections.abc import Callable

from arbora.runtime.config import ServeConfig
from arbora.runtime.model import process
from arbora.runtime.model.capture import CaptureError
from arbora.runtime.model.loading import LoadedModel, load_model
from arbora.runtime.model.ranks import ONE_RANK, Ranks
from arbora.runtime.vocabulary import Vocabulary


def load(
    config: ServeConfig, load_vocabulary: Callable[[], Vocabulary], ranks: Ranks = ONE_RANK
) -> LoadedModel:
    if not config.enforce_eager:
        raise CaptureError("CUDA graphs can't be captured here: there is no GPU.")
    return load_model(config, load_vocabulary, ranks)


if __name__ == "__main__":
    process.load_model = load  # type: ignore[attr-defined]
    process.main()
