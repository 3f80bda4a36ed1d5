"""What attention keeps of the caches of a model of transformers: one state for each layer and cache."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch

from .._attention import Attention
from .._errors import Error
from ._cache import OwnLayer


class Unserved(Exception):
    """Why a call goes to sdpa."""


class State:
    """What one layer has of one cache: an Attention for each sequence of the batch."""

    def __init__(self, attentions: list[Attention], pads: list[int], capacity: int) -> None:
        self.attentions = attentions
        self.pads = pads  # (batch) tokens of padding before each sequence
        self.capacity = capacity  # tokens that there is room for
        self.length = 0  # tokens taken in, padding included
        self.keys: tuple[torch.Tensor | None, int] = (None, 0)  # as the cache had them then


def mark(keys: torch.Tensor | None) -> tuple[torch.Tensor | None, int]:
    """Tells whether a cache was changed by another than us: other keys, or others in their place."""
    if keys is None or keys.is_inference():
        return keys, 0
    return keys, keys._version


def same(a: tuple[torch.Tensor | None, int], b: tuple[torch.Tensor | None, int]) -> bool:
    return a[0] is b[0] and a[1] == b[1]


class Layer:
    """One attention module: its settings, and its states by cache."""

    def __init__(self, index: int, options: dict[str, Any], shared: Shared) -> None:
        self.index = index
        self.options = options
        self.shared = shared
        self.states: weakref.WeakKeyDictionary[Any, State] = weakref.WeakKeyDictionary()
        self.cache: Any = None
        self.before: tuple[torch.Tensor | None, int] = (None, 0)
        self.keys_read: list[float] | None = None  # of each query head, in the last sequences

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        return Layer(self.index, self.options, self.shared)  # a copy of a model has caches of its own

    def cache_layer(self) -> Any:
        """That of the cache in use; None where there is none yet."""
        layers = getattr(self.cache, "layers", ())
        return layers[self.index] if self.index < len(layers) else None

    def cached_keys(self) -> torch.Tensor | None:
        return getattr(self.cache_layer(), "keys", None)

    def keeps_keys_alone(self) -> bool:
        """Whether the cache in use leaves keys and values to Sluice."""
        return isinstance(self.cache_layer(), OwnLayer)

    def before_forward(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """A hook: attention functions do not get the cache, and get keys after they are added to it."""
        self.cache = kwargs.get("past_key_values")
        self.before = mark(self.cached_keys())

    def after_attention(self) -> None:
        """Keeps nothing of a cache alive that its owner drops."""
        self.cache, self.before = None, (None, 0)

    def state(self, shape: Shape, pads: list[int]) -> State:
        """The state of the cache in use, where it is still the cache's; else an empty one."""
        state = self.states.get(self.cache) if self.cache is not None else None
        if (state is not None and same(state.keys, self.before) and state.pads == pads
                and state.length == shape.n_past and shape.n_past + shape.n <= state.capacity):
            return state
        if shape.n_past > 0 and self.keeps_keys_alone():
            if state is not None and shape.n_past + shape.n > state.capacity:
                raise Error(f"the cache is full: it has room for {state.capacity} tokens",
                            "use transformers' DynamicCache for texts beyond the positions of a model")
            raise Error(f"the cache has {shape.n_past} tokens that this attention did not get",
                        "one sluice.hf.Cache for each batch, and sluice.hf.enable before it")
        capacity = shape.capacity()
        make = dict(n_heads=shape.n_heads, n_kv_heads=shape.n_kv_heads, head_dim=shape.head_dim,
                    capacity=capacity, scale=shape.scale,
                    dtype="bf16" if shape.dtype == torch.bfloat16 else "f32", **self.options)
        try:
            state = State([Attention(**make) for _ in pads], pads, capacity)
        except Error as error:
            raise Unserved(error.message) from error
        if self.cache is not None:
            self.states[self.cache] = state
        return state


class Shape:
    """The sizes of a call."""

    def __init__(self, module: Any, query: torch.Tensor, key: torch.Tensor, scale: float | None,
                 n_before: int) -> None:
        self.batch, self.n_heads, self.n, self.head_dim = query.shape
        self.n_kv_heads = key.shape[1]
        self.n_past = n_before + key.shape[2] - self.n  # n_before: those that come without their keys
        self.scale = 0.0 if scale is None else float(scale)
        self.dtype = query.dtype
        self.longest = getattr(getattr(module, "config", None), "max_position_embeddings", None) or 0

    def capacity(self) -> int:
        """Room for all positions of a model, or twice what is there where it has no limit or goes beyond.

        Memory is taken as it is needed, so room alone costs none.
        """
        total = self.n_past + self.n
        return self.longest if total <= self.longest else 2 * total


class Shared:
    """What the layers of a model share: the last mask, and what was said already."""

    def __init__(self) -> None:
        self.mask: tuple[Any, list[int] | None] = (lambda: None, None)
        self.said: set[str] = set()

    def fall_back(self, why: str) -> None:
        if why not in self.said:
            self.said.add(why)
            warnings.warn(f"sluice: {why}, so sdpa serves such layers and calls", stacklevel=4)

    def pads(self, mask: torch.Tensor, n: int, total: int) -> list[int] | None:
        """Padding before each sequence, where a mask is causal but for it; else None.

        All layers get one mask, which is looked at once.
        """
        last, pads = self.mask
        if last() is not mask:
            pads = left_padding(mask, n, total)
            self.mask = (weakref.ref(mask), pads)
        return pads


def left_padding(mask: torch.Tensor, n: int, total: int) -> list[int] | None:
    if mask.dtype != torch.bool or mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[3] != total:
        return None
    seen = mask[:, 0]  # (batch, n, total)
    pads = seen[:, -1].int().argmax(dim=-1)
    position = torch.arange(total)
    query = position[total - n:, None]
    expected = (position <= query) & (position >= pads[:, None, None])
    padding = query < pads[:, None, None]  # queries of padding, whose outputs nobody reads
    return pads.tolist() if bool(((seen == expected) | padding).all()) else None
