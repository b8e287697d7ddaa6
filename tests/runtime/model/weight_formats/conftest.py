from __future__ import annotations

import pytest
from arbora.runtime.model.weight_formats import packing


@pytest.fixture
def expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads quantized weights as on a device without a product for them, so that results are exact."""
    monkeypatch.setattr(packing, "find_packer", lambda shape, device: None)
