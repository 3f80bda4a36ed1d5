"""A cache for models of transformers whose keys and values are Sluice's alone."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from .._errors import Error


class OwnLayer(CacheLayerMixin):
    """Counts the tokens of a layer; :class:`sluice.Attention` has their keys and values."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self.is_initialized = True

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention gets: the new tokens alone."""
        self.length += key_states.shape[-2]
        return key_states, value_states

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        n = query_length if isinstance(query_length, int) else query_length.shape[0]  # positions, before 5.0
        return self.length + n, 0

    def get_seq_length(self, *_: Any) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1

    def reset(self) -> None:
        self.length = 0

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise Error("a sluice.hf.Cache grows, and can be reset, but not cropped, reordered or moved",
                    "use transformers' DynamicCache for that")

    reorder_cache = crop = batch_repeat_interleave = batch_select_indices = offload = prefetch = _refuse


class Cache(DynamicCache):
    """The cache of a model that :func:`sluice.hf.enable` was called on, with one copy of keys and values.

    With a ``DynamicCache`` keys and values are in memory twice, there and with Sluice, and every token
    that is appended copies all those before it. Here they are with Sluice alone. Layers that Sluice
    does not serve have transformers' own. Calls that would fall back to sdpa are refused, as there is
    nothing to fall back to; so are beams, cropping and copies.

        model.generate(**inputs, past_key_values=sluice.hf.Cache(model))
    """

    def __init__(self, model: PreTrainedModel) -> None:
        if "_sluice_enabled" not in model.__dict__:
            raise Error("this model's attention is not Sluice's", "sluice.hf.enable(model, ...) first")
        super().__init__(config=model.config)
        served = {module.__dict__["_sluice"].index for module in model.modules()
                  if "_sluice" in module.__dict__}
        for index in range(len(self.layers)):
            if index in served and not getattr(self.layers[index], "is_sliding", False):
                self.layers[index] = OwnLayer()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise Error("a sluice.hf.Cache cannot be copied", "use transformers' DynamicCache for that")
