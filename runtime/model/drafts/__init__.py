"""Drafts of the tokens that slots sample next, from what was said before."""

from .controller import DraftController, StepCosts
from .drafter import Drafter
from .suffix_drafter import SuffixDrafter

__all__ = ["DraftController", "Drafter", "StepCosts", "SuffixDrafter"]
