"""Refined attention inside models of transformers, on the CPU.

    import sluice.hf
    sluice.hf.enable(model, delta=0.01)
    model.generate(...)  # as before

The model, its weights, its cache and ``generate()`` stay transformers' own; only attention is replaced,
through transformers' AttentionInterface. Each layer of each sequence of a cache has a
:class:`sluice.Attention`, whose keys and values grow with the cache. A ``DynamicCache`` keeps its own copy
of them, for its lengths, for layers that fall back, and to start again from where it was cropped or
reordered; a :class:`Cache` keeps none.

Tensors of float32 go in and out without a copy where they are contiguous by token, as the projections of
most models are; keys and values of a cache are copied once, token by token. bfloat16 and float16 are
converted: three tensors of a layer to float32, and one back (docs/python.md has the cost).

A layer, or a call, that this attention does not serve falls back to sdpa; a warning says so, once.
"""

from ._cache import Cache
from ._enable import NAME, Enabled, disable, enable
from ._tune import DELTAS, measure, profile, tune

__all__ = ["Cache", "DELTAS", "NAME", "Enabled", "disable", "enable", "measure", "profile", "tune"]
