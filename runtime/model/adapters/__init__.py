"""LoRA adapters: reading PEFT's checkpoints, and the places that loaded ones have on the device."""

from .adapter_bank import AdapterBank, rank_limit

__all__ = ["AdapterBank", "rank_limit"]
