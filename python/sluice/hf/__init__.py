"""Refined attention inside models of transformers, on the CPU and on CUDA devices.

    import sluice.hf
    sluice.hf.enable(model, delta=0.01)
    model.generate(...)  # as before

The model, its weights, its cache and ``generate()`` stay transformers' own; only attention is replaced,
through transformers' AttentionInterface. Each layer of each sequence of a cache has a
:class:`sluice.Attention`, whose keys and values grow with the cache. A ``DynamicCache`` keeps its own copy
of them, for its lengths, for layers that fall back, and to start again from where it was cropped or
reordered; a :class:`Cache` keeps none.

Tensors of float32 and bfloat16 go in and out without a copy where the heads of a token follow each other,
as the projections of most models leave them; those that a ``DynamicCache`` hands out are copied once, token by
token. float16 is converted (docs/python.md has the cost). On a GPU attention runs on torch's current stream;
nothing goes to the host, and nobody waits.

A layer, or a call, that this attention does not serve falls back to sdpa; a warning says so, once.
"""

from ._cache import Cache
from ._enable import NAME, Enabled, disable, enable
from ._tune import DELTAS, measure, profile, tune

__all__ = ["Cache", "DELTAS", "NAME", "Enabled", "disable", "enable", "measure", "profile", "tune"]
