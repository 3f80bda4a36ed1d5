"""An attention function for transformers, and the models that use it."""

from __future__ import annotations

from typing import Any, Iterator, Sequence

import torch
from torch.utils.dlpack import to_dlpack
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .._attention import Attention
from .._core import set_threads
from .._errors import Error
from .._plan import Plan
from ._layers import Layer, Shape, Shared, Unserved, computed_in, mark

NAME = "sluice"  # of the attention implementation, in a model's config


def _check(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
           options: dict[str, Any]) -> None:
    """Throws Unserved for what this attention does not do."""
    if query.device.type not in ("cpu", "cuda"):
        raise Unserved(f"tensors are on {query.device.type}, and attention here is the CPU's or CUDA's")
    if key.device != query.device or value.device != query.device:
        raise Unserved("queries, keys and values are on several devices")
    if query.is_cuda and torch.cuda.is_current_stream_capturing():
        raise Unserved("a CUDA graph is being captured")
    if query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise Unserved(f"tensors are {query.dtype}")
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        raise Unserved("gradients are asked for (use torch.no_grad())")
    if torch.compiler.is_compiling():
        raise Unserved("the model is being compiled")
    is_causal = options.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise Unserved("attention is not causal")
    if options.get("dropout"):
        raise Unserved("attention has dropout")
    for name in ("softcap", "s_aux", "position_bias", "head_mask"):
        if options.get(name) is not None:
            raise Unserved(f"attention has {name}")
    if key.shape[-1] != value.shape[-1]:
        raise Unserved("heads of keys and values differ in size")
    window = options.get("sliding_window")
    if window is not None and key.shape[2] >= window:  # caches drop keys from there on
        raise Unserved(f"a text fills a layer's sliding window of {window}")


def _rows(heads: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(n, heads, head_dim) of (heads, n, head_dim); a view where the heads of a token follow each other."""
    rows = heads.detach().transpose(0, 1).to(dtype)
    n, n_heads, dim = rows.shape
    by_token = rows.stride(2) == 1 and rows.stride(1) == dim and (n == 1 or rows.stride(0) >= n_heads * dim)
    return rows if by_token else rows.contiguous()


def _append(attention: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            out: torch.Tensor) -> None:
    """Of (heads, n, head_dim), into out (n, n_heads, head_dim), which has the dtype that attention has."""
    rows = [_rows(heads, out.dtype) for heads in (query, key, value)]
    # Capsules, since __dlpack__() lets CUDA's default stream wait, and refuses all but the current device.
    attention.append_rows(*(to_dlpack(each) for each in rows), to_dlpack(out))


def _attend(layer: Layer, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            mask: torch.Tensor | None, options: dict[str, Any]) -> torch.Tensor:
    """(batch, n, n_heads, head_dim)."""
    _check(module, query, key, value, options)
    own = layer.keeps_keys_alone()
    n_before = layer.cache_layer().length - query.shape[2] if own else 0  # the new ones are counted already
    shape = Shape(module, query, key, options.get("scaling"), n_before)
    total = n_before + key.shape[2]
    if mask is None:
        if 1 < shape.n < total:
            raise Unserved("a cache of fixed size is in use")
        pads: list[int] | None = [0] * shape.batch
    else:
        pads = layer.shared.pads(mask, shape.n, total)
    if pads is None:
        raise Unserved("a mask is other than causal with padding at the left")
    cached = layer.cached_keys()
    if not own and shape.n_past > 0 and (cached is None or cached.shape[2] != total):
        raise Unserved("a cache is in use that holds other keys than attention gets")
    state = layer.state(shape, pads, layer.shared.device(query))
    out = torch.empty(shape.batch, shape.n, shape.n_heads, shape.head_dim, dtype=computed_in(query),
                      device=query.device)
    for i, (attention, pad) in enumerate(zip(state.attentions, pads)):
        known = max(pad, state.length)
        begin = max(pad, shape.n_past)
        if known < begin:  # a cache that was filled, cropped or reordered without us
            zeros = out.new_zeros(begin - known, shape.n_heads, shape.head_dim)
            _append(attention, zeros.transpose(0, 1), key[i, :, known:begin], value[i, :, known:begin],
                    torch.empty_like(zeros))
        if begin > shape.n_past:
            out[i, :begin - shape.n_past] = 0
        if begin < total:
            _append(attention, query[i, :, begin - shape.n_past:], key[i, :, begin - n_before:],
                    value[i, :, begin - n_before:], out[i, begin - shape.n_past:])
    state.length = total
    state.keys = mark(cached)
    layer.reads = [each.reads() for each in state.attentions]
    return out.to(query.dtype)


def _attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               attention_mask: torch.Tensor | None, **options: Any) -> tuple[torch.Tensor, None]:
    """What transformers calls."""
    layer = module.__dict__.get("_sluice")
    if layer is not None:
        try:
            return _attend(layer, module, query, key, value, attention_mask, options), None
        except Unserved as why:
            if layer.keeps_keys_alone():
                raise Error(f"{why}, and a sluice.hf.Cache has no keys for sdpa",
                            "use transformers' DynamicCache") from why
            layer.shared.fall_back(str(why))
        finally:
            layer.after_attention()
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


class Enabled:
    """A model whose attention is Sluice's, until :meth:`disable`; also a context manager."""

    def __init__(self, model: PreTrainedModel, layers: list[tuple[torch.nn.Module, Layer]],
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
        return {layer.index: layer.keys_read() for _, layer in self._layers}

    def disable(self) -> None:
        """Gives the model its own attention back."""
        for hook in self._hooks:
            hook.remove()
        for module, layer in self._layers:
            if module.__dict__.get("_sluice") is layer:
                del module.__dict__["_sluice"]
            layer.finish()
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


def _options_of_plan(model: PreTrainedModel, plan: Plan, n_layers: int) -> list[dict[str, Any] | None]:
    """Of each layer; None for one that the plan leaves exact. Throws Error for a plan that does not fit."""
    info = plan.info
    if info is not None and info["n_layers"] != n_layers:
        raise Error(f"the plan has {info['n_layers']} layers, the model {n_layers}",
                    "was the plan made for this model?")
    if info is not None and info["linear"]:
        raise Error("the plan approximates linear layers too, which are transformers' own here",
                    "a plan of attention alone: sluice tune without --linear")
    config = model.config.get_text_config()
    n_heads = config.num_attention_heads
    heads = dict(n_heads=n_heads, n_kv_heads=getattr(config, "num_key_value_heads", None) or n_heads)
    layers: list[dict[str, Any] | None] = []
    for index in range(n_layers):
        options: dict[str, Any] = {"plan": plan, "layer": index}
        layers.append(None if Attention(**heads, head_dim=64, capacity=1, **options).is_dense else options)
    return layers


def _options_of_deltas(deltas: Sequence[float | None], options: dict[str, Any]) -> list[dict[str, Any] | None]:
    layers: list[dict[str, Any] | None] = []
    for delta in deltas:
        layers.append(None if delta is None else {**options, "delta": float(delta)})
        if delta is not None:  # what is out of range is refused now
            Attention(n_heads=1, head_dim=64, capacity=1, delta=float(delta), **options)
    return layers


def enable(model: PreTrainedModel, attention: str = "refine", *, plan: Plan | None = None,
           delta: float | Sequence[float | None] | None = None, strict: bool = False,
           window: int | None = None, sinks: int | None = None) -> Enabled:
    """Gives the causal attention layers of a model refined attention.

    Args:
        model: of transformers, on the CPU or on CUDA devices.
        attention: "refine", or "dense", which is exact and keeps a cache of its own too.
        plan: in place of attention and the options below, each layer and head as a plan says, e.g. one of
            ``sluice tune`` for the same weights. It is followed at any length. Layers that it leaves exact
            stay with sdpa.
        delta: a query reads the members of a cluster where the error of reading its mean is estimated at
            delta or more; 0.005 if not given. 0 reads all. A sequence has one for each layer; None in it
            leaves a layer to sdpa.
        strict, window, sinks: as in :meth:`sluice.Plan.uniform`.

    Returns:
        What undoes it, and tells how many keys are read.

    Raises:
        sluice.Error: for a model without attention layers that can be replaced, for options out of range,
            and for a plan that does not fit the model.
    """
    if attention not in ("refine", "dense"):
        raise Error(f"there is no attention '{attention}' for transformers", "refine or dense")
    disable(model)
    modules = list(_attention_modules(model))
    if not modules:
        raise Error("this model has no attention layers that know their place", "a decoder of transformers")
    n_layers = 1 + max(module.layer_idx for module in modules)
    if plan is not None:
        if delta is not None or strict or window is not None or sinks is not None:
            raise Error("a plan says all of delta, strict, window and sinks", "give a plan, or these")
        of_layers = _options_of_plan(model, plan, n_layers)
    else:
        delta = 0.005 if delta is None else delta
        deltas = [delta] * n_layers if isinstance(delta, (int, float)) else list(delta)
        if len(deltas) != n_layers:
            raise Error(f"delta has {len(deltas)} values for {n_layers} layers", "one number, or one for each")
        of_layers = _options_of_deltas(
            deltas, {"mode": attention, "strict": strict, "window": window, "sinks": sinks})
    set_threads(torch.get_num_threads())  # where both use one OpenMP, its number is one too
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    shared, layers, hooks = Shared(), [], []
    for module in modules:
        options = of_layers[module.layer_idx]
        if options is None:
            continue
        layer = Layer(module.layer_idx, options, shared)
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
