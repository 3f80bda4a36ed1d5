"""What attention keeps of the caches of a model of transformers: one state for each layer and cache."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch

from .._attention import Attention, AttentionDevice
from .._errors import Error
from ._cache import OwnLayer


class Unserved(Exception):
    """Why a call goes to sdpa."""


class State:
    """What one layer has of one cache: an Attention for each sequence of the batch."""

    def __init__(self, device: AttentionDevice, attentions: list[Attention], pads: list[int],
                 capacity: int) -> None:
        self.device = device
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
        self.reads: list[Any] | None = None  # of the last sequences, to be looked at
        self.read: list[float] | None = None  # the same, once they were

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        return Layer(self.index, self.options, self.shared)  # a copy of a model has caches of its own

    def keys_read(self) -> list[float] | None:
        """Of each query head, in the last sequences; waits for them. None where there were none."""
        if self.reads is not None:
            shares = [each.by_head for each in self.reads]
            self.read = [sum(of_head) / len(shares) for of_head in zip(*shares)]
            self.reads = None
        return self.read

    def finish(self) -> None:
        """Keeps how many keys were read, and nothing of a device."""
        self.keys_read()
        self.states.clear()
        self.shared.devices.clear()

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

    def state(self, shape: Shape, pads: list[int], device: AttentionDevice) -> State:
        """The state of the cache in use, where it is still the cache's; else an empty one."""
        state = self.states.get(self.cache) if self.cache is not None else None
        if (state is not None and state.device is device
                and same(state.keys, self.before) and state.pads == pads
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
                    capacity=capacity, scale=shape.scale, device=device, **self.options)
        try:
            state = State(device, [Attention(**make) for _ in pads], pads, capacity)
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
        self.longest = getattr(getattr(module, "config", None), "max_position_embeddings", None) or 0

    def capacity(self) -> int:
        """Room for all positions of a model, or twice what is there where it has no limit or goes beyond.

        Memory is taken as it is needed, so room alone costs none.
        """
        total = self.n_past + self.n
        return self.longest if total <= self.longest else 2 * total


def computed_in(tensors: torch.Tensor) -> torch.dtype:
    """The dtype that attention has for tensors of a model.

    float16 is none of them. Without loss it goes into float32, which the CPU computes in as fast; the tensor
    cores of a GPU take bfloat16, and its kernels for float32 are slow ones.
    """
    if tensors.dtype == torch.float16:
        return torch.bfloat16 if tensors.is_cuda else torch.float32
    return tensors.dtype


class Shared:
    """What the layers of a model share: devices, the last mask, and what was said already."""

    def __init__(self) -> None:
        self.devices: dict[tuple[torch.device, torch.dtype], AttentionDevice | Error] = {}
        self.mask: tuple[Any, list[int] | None] = (lambda: None, None)
        self.said: set[str] = set()

    def device(self, tensors: torch.Tensor) -> AttentionDevice:
        """That of all layers and sequences on the device of some tensors, with the stream torch works on now."""
        where, dtype = tensors.device, computed_in(tensors)
        stream = torch.cuda.current_stream(where).cuda_stream if tensors.is_cuda else None
        found = self.devices.get((where, dtype))
        if found is None:
            try:
                found = AttentionDevice(where.type, "bf16" if dtype == torch.bfloat16 else "f32",
                                        ordinal=where.index or 0, stream=stream)
            except Error as error:
                found = error
            self.devices[where, dtype] = found
        if isinstance(found, Error):
            raise Unserved(found.message)
        if stream is not None:
            found.use_stream(stream)
        return found

    def fall_back(self, why: str) -> None:
        if why not in self.said:
            self.said.add(why)
            warnings.warn(f"sluice: {why}, so sdpa serves such layers and calls", stacklevel=4)

    def pads(self, mask: torch.Tensor, n: int, total: int) -> list[int] | None:
        """Padding before each sequence, where a mask is causal but for it; else None.

        All layers get one mask, which is looked at once; for that the host waits for a GPU.
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
    position = torch.arange(total, device=mask.device)
    query = position[total - n:, None]
    expected = (position <= query) & (position >= pads[:, None, None])
    padding = query < pads[:, None, None]  # queries of padding, whose outputs nobody reads
    return pads.tolist() if bool(((seen == expected) | padding).all()) else None
