"""An attention function for transformers, and the models that use it."""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Iterator, Sequence

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .._attention import Attention
from .._core import set_threads
from .._errors import Error

NAME = "sluice"  # of the attention implementation, in a model's config


class _Unserved(Exception):
    """Why a call goes to sdpa."""


class _State:
    """What one layer has of one cache: an Attention for each sequence of the batch."""

    def __init__(self, attentions: list[Attention], pads: list[int], capacity: int) -> None:
        self.attentions = attentions
        self.pads = pads  # (batch) tokens of padding before each sequence
        self.capacity = capacity  # tokens that there is room for
        self.length = 0  # tokens taken in, padding included
        self.keys: tuple[torch.Tensor | None, int] = (None, 0)  # as the cache had them then


def _mark(keys: torch.Tensor | None) -> tuple[torch.Tensor | None, int]:
    """Tells whether a cache was changed by another than us: other keys, or others in their place."""
    if keys is None or keys.is_inference():
        return keys, 0
    return keys, keys._version


def _same(a: tuple[torch.Tensor | None, int], b: tuple[torch.Tensor | None, int]) -> bool:
    return a[0] is b[0] and a[1] == b[1]


class _Layer:
    """One attention module: its settings, and its states by cache."""

    def __init__(self, index: int, options: dict[str, Any], shared: _Shared) -> None:
        self.index = index
        self.options = options
        self.shared = shared
        self.states: weakref.WeakKeyDictionary[Any, _State] = weakref.WeakKeyDictionary()
        self.cache: Any = None
        self.before: tuple[torch.Tensor | None, int] = (None, 0)
        self.keys_read: list[float] | None = None  # of each query head, in the last sequences

    def __deepcopy__(self, memo: dict[int, Any]) -> _Layer:
        return _Layer(self.index, self.options, self.shared)  # a copy of a model has caches of its own

    def cached_keys(self) -> torch.Tensor | None:
        layers = getattr(self.cache, "layers", None)
        if layers is None or self.index >= len(layers):
            return None
        return layers[self.index].keys

    def before_forward(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """A hook: attention functions do not get the cache, and get keys after they are added to it."""
        self.cache = kwargs.get("past_key_values")
        self.before = _mark(self.cached_keys())

    def after_attention(self) -> None:
        """Keeps nothing of a cache alive that its owner drops."""
        self.cache, self.before = None, (None, 0)

    def state(self, shape: _Shape, pads: list[int]) -> _State:
        """The state of the cache in use, where it is still the cache's; else an empty one."""
        state = self.states.get(self.cache) if self.cache is not None else None
        if (state is not None and _same(state.keys, self.before) and state.pads == pads
                and state.length == shape.n_past and shape.n_past + shape.n <= state.capacity):
            return state
        capacity = shape.capacity()
        make = dict(n_heads=shape.n_heads, n_kv_heads=shape.n_kv_heads, head_dim=shape.head_dim,
                    capacity=capacity, scale=shape.scale,
                    dtype="bf16" if shape.dtype == torch.bfloat16 else "f32", **self.options)
        try:
            state = _State([Attention(**make) for _ in pads], pads, capacity)
        except Error as error:
            raise _Unserved(error.message) from error
        if self.cache is not None:
            self.states[self.cache] = state
        return state


class _Shape:
    """The sizes of a call."""

    def __init__(self, module: Any, query: torch.Tensor, key: torch.Tensor, scale: float | None) -> None:
        self.batch, self.n_heads, self.n, self.head_dim = query.shape
        self.n_kv_heads = key.shape[1]
        self.n_past = key.shape[2] - self.n
        self.scale = 0.0 if scale is None else float(scale)
        self.dtype = query.dtype
        self.longest = getattr(getattr(module, "config", None), "max_position_embeddings", None) or 0

    def capacity(self) -> int:
        """Room for all positions of a model, or twice what is there where it has no limit or goes beyond.

        Memory is taken as it is needed, so room alone costs none.
        """
        total = self.n_past + self.n
        return self.longest if total <= self.longest else 2 * total


class _Shared:
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
            pads = _left_padding(mask, n, total)
            self.mask = (weakref.ref(mask), pads)
        return pads


def _left_padding(mask: torch.Tensor, n: int, total: int) -> list[int] | None:
    if mask.dtype != torch.bool or mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[3] != total:
        return None
    seen = mask[:, 0]  # (batch, n, total)
    pads = seen[:, -1].int().argmax(dim=-1)
    position = torch.arange(total)
    query = position[total - n:, None]
    expected = (position <= query) & (position >= pads[:, None, None])
    padding = query < pads[:, None, None]  # queries of padding, whose outputs nobody reads
    return pads.tolist() if bool(((seen == expected) | padding).all()) else None


def _check(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
           options: dict[str, Any]) -> None:
    """Throws _Unserved for what this attention does not do."""
    if query.device.type != "cpu":
        raise _Unserved(f"tensors are on {query.device.type}, and attention here is the CPU's")
    if query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise _Unserved(f"tensors are {query.dtype}")
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        raise _Unserved("gradients are asked for (use torch.no_grad())")
    if torch.compiler.is_compiling():
        raise _Unserved("the model is being compiled")
    is_causal = options.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise _Unserved("attention is not causal")
    if options.get("dropout"):
        raise _Unserved("attention has dropout")
    for name in ("softcap", "s_aux", "position_bias", "head_mask"):
        if options.get(name) is not None:
            raise _Unserved(f"attention has {name}")
    if key.shape[-1] != value.shape[-1]:
        raise _Unserved("heads of keys and values differ in size")
    window = options.get("sliding_window")
    if window is not None and key.shape[2] >= window:  # caches drop keys from there on
        raise _Unserved(f"a text fills a layer's sliding window of {window}")


def _rows(heads: torch.Tensor) -> torch.Tensor:
    """(n, heads, head_dim) of (heads, n, head_dim), float32; a view where it is that already."""
    return heads.detach().transpose(0, 1).to(torch.float32).contiguous()


def _attend(layer: _Layer, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            mask: torch.Tensor | None, options: dict[str, Any]) -> torch.Tensor:
    """(batch, n, n_heads, head_dim)."""
    _check(module, query, key, value, options)
    shape = _Shape(module, query, key, options.get("scaling"))
    total = key.shape[2]
    if mask is None:
        if 1 < shape.n < total:
            raise _Unserved("a cache of fixed size is in use")
        pads: list[int] | None = [0] * shape.batch
    else:
        pads = layer.shared.pads(mask, shape.n, total)
    if pads is None:
        raise _Unserved("a mask is other than causal with padding at the left")
    cached = layer.cached_keys()
    if shape.n_past > 0 and (cached is None or cached.shape[2] != total):
        raise _Unserved("a cache is in use that holds other keys than attention gets")
    state = layer.state(shape, pads)
    out = torch.empty(shape.batch, shape.n, shape.n_heads, shape.head_dim)
    for i, (attention, pad) in enumerate(zip(state.attentions, pads)):
        known = max(pad, state.length)
        begin = max(pad, shape.n_past)
        if known < begin:  # a cache that was filled, cropped or reordered without us
            zeros = torch.zeros(begin - known, shape.n_heads, shape.head_dim)
            attention.append(zeros, _rows(key[i, :, known:begin]), _rows(value[i, :, known:begin]),
                             torch.empty_like(zeros))
        out[i, :begin - shape.n_past] = 0
        if begin < total:
            attention.append(_rows(query[i, :, begin - shape.n_past:]), _rows(key[i, :, begin:]),
                             _rows(value[i, :, begin:]), out[i, begin - shape.n_past:])
    state.length = total
    state.keys = _mark(cached)
    shares = [each.keys_read_by_head for each in state.attentions]
    layer.keys_read = [sum(of_head) / shape.batch for of_head in zip(*shares)]
    return out.to(query.dtype)


def _attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               attention_mask: torch.Tensor | None, **options: Any) -> tuple[torch.Tensor, None]:
    """What transformers calls."""
    layer = module.__dict__.get("_sluice")
    if layer is not None:
        try:
            return _attend(layer, module, query, key, value, attention_mask, options), None
        except _Unserved as why:
            layer.shared.fall_back(str(why))
        finally:
            layer.after_attention()
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


class Enabled:
    """A model whose attention is Sluice's, until :meth:`disable`; also a context manager."""

    def __init__(self, model: PreTrainedModel, layers: list[tuple[torch.nn.Module, _Layer]],
                 hooks: list[Any], before: str) -> None:
        self._model, self._layers, self._hooks, self._before = model, layers, hooks, before

    def keys_read(self) -> dict[int, float | None]:
        """Of each layer, keys read as a share of those of dense attention, in the last sequences.

        None for a layer that was not served.
        """
        return {index: None if shares is None else sum(shares) / len(shares)
                for index, shares in self.keys_read_by_head().items()}

    def keys_read_by_head(self) -> dict[int, list[float] | None]:
        """The same of each query head."""
        return {layer.index: layer.keys_read for _, layer in self._layers}

    def disable(self) -> None:
        """Gives the model its own attention back."""
        for hook in self._hooks:
            hook.remove()
        for module, layer in self._layers:
            if module.__dict__.get("_sluice") is layer:
                del module.__dict__["_sluice"]
        if self._model.__dict__.get("_sluice_enabled") is self:
            del self._model.__dict__["_sluice_enabled"]
        if self._hooks:
            self._model.set_attn_implementation(self._before)
        self._hooks = []

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *_: Any) -> None:
        self.disable()


def _attention_modules(model: PreTrainedModel) -> Iterator[Any]:
    for module in model.modules():
        if isinstance(getattr(module, "layer_idx", None), int) and "Attention" in type(module).__name__:
            yield module


def enable(model: PreTrainedModel, attention: str = "refine", *,
           delta: float | Sequence[float | None] = 0.01, strict: bool = False,
           window: int | None = None, sinks: int | None = None) -> Enabled:
    """Gives the causal attention layers of a model refined attention.

    Args:
        model: of transformers, on the CPU.
        attention: "refine", or "dense", which is exact and keeps a cache of its own too.
        delta: a query reads the members of a cluster where the error of reading its mean is estimated at
            delta or more. 0 reads all. A sequence has one for each layer; None leaves a layer to sdpa.
        strict, window, sinks: as in :meth:`sluice.Plan.uniform`.

    Returns:
        What undoes it, and tells how many keys are read.

    Raises:
        sluice.Error: for a model without attention layers that can be replaced, and for options out of
            range.
    """
    if attention not in ("refine", "dense"):
        raise Error(f"there is no attention '{attention}' for transformers", "refine or dense")
    disable(model)
    modules = list(_attention_modules(model))
    if not modules:
        raise Error("this model has no attention layers that know their place", "a decoder of transformers")
    n_layers = 1 + max(module.layer_idx for module in modules)
    deltas = [delta] * n_layers if isinstance(delta, (int, float)) else list(delta)
    if len(deltas) != n_layers:
        raise Error(f"delta has {len(deltas)} values for {n_layers} layers", "one number, or one for each")
    set_threads(torch.get_num_threads())  # where both use one OpenMP, its number is one too
    options: dict[str, Any] = {"mode": attention, "strict": strict, "window": window, "sinks": sinks}
    for each in deltas:  # what is out of range is refused now
        if each is not None:
            Attention(n_heads=1, head_dim=64, capacity=1, delta=float(each), **options)
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    shared, layers, hooks = _Shared(), [], []
    for module in modules:
        own = deltas[module.layer_idx]
        if own is None:
            continue
        layer = _Layer(module.layer_idx, {**options, "delta": float(own)}, shared)
        module.__dict__["_sluice"] = layer
        layers.append((module, layer))
        hooks.append(module.register_forward_pre_hook(layer.before_forward, with_kwargs=True))
    enabled = Enabled(model, layers, hooks, before)
    model.__dict__["_sluice_enabled"] = enabled
    return enabled


def disable(model: PreTrainedModel) -> None:
    """Gives a model its own attention back; nothing for one that has it."""
    enabled = model.__dict__.get("_sluice_enabled")
    if enabled is not None:
        enabled.disable()
