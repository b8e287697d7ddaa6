"""A model of transformers in two parts: the one below its head, and the whole for logits."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from .attention_calls import UnservedModelError
from .recurrent_layers import RecurrentLayers


class SplitModel:
    """Logits are wanted of few tokens, so the part below the head runs alone. The whole model computes logits
    from its results, because some models scale or cap them after the head."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        name, self.base = _find_base(model)
        self.recurrent = RecurrentLayers(self.base)
        self._given = _GivenStates(self.base)
        model.set_submodule(name, self._given)

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, **cache: Any) -> torch.Tensor:
        """Hidden states [tokens, hidden] of token ids int32 [tokens] at positions int64 [tokens].

        cache: see `RecurrentLayers.handled_by`
        """
        result = self.base(input_ids=tokens[None], position_ids=positions[None], **cache)
        states: torch.Tensor = result.last_hidden_state[0]
        return states

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [tokens, vocab] of hidden states [tokens, hidden]."""
        self._given.hidden = hidden[None]
        try:
            logits: torch.Tensor = self._model(inputs_embeds=self._given.hidden, use_cache=False).logits[0]
        finally:
            self._given.hidden = None
        return logits

    def modules(self) -> list[torch.nn.Module]:
        """The modules of both parts, the head's last."""
        return [*self.base.modules(), *self._model.modules()]


def _find_base(model: PreTrainedModel) -> tuple[str, torch.nn.Module]:
    for name in (model.base_model_prefix, "model", "transformer"):
        module = model._modules.get(name)
        if module is not None:
            return name, module
    raise UnservedModelError("has no part below its head that computes hidden states")


class _GivenStates(torch.nn.Module):
    """Stands in place of the part below the head. Returns hidden states that were computed before."""

    def __init__(self, base: torch.nn.Module) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None
        self._base = (base,)  # in a tuple, so that PyTorch does not register it

    def __getattr__(self, name: str) -> Any:
        """Some heads read settings of the part below."""
        return getattr(self._base[0], name)

    @property
    def decoder(self) -> _GivenStates:
        """Some heads call the decoder in the part below."""
        return self

    def forward(self, *args: Any, **kwargs: Any) -> _GivenOutput:
        assert self.hidden is not None
        return _GivenOutput(self.hidden)


class _GivenOutput:
    """Stands in place of the output of the part below the head. Heads read only its hidden states."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, at: int | slice) -> Any:
        return (self.last_hidden_state,)[at]

    def __getattr__(self, name: str) -> None:
        return None
