"""Causal attention on queries, keys and values of the caller's own, without a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._plan import Plan, core_of


class Attention:
    """The keys and values of one layer of one sequence, which grows."""

    def __init__(self, *, n_heads: int, head_dim: int, capacity: int, n_kv_heads: int | None = None,
                 scale: float = 0, mode: str = "dense", delta: float = 0.01, strict: bool = False,
                 window: int | None = None, sinks: int | None = None, plan: Plan | None = None,
                 layer: int = 0, device: str = "cpu", dtype: str = "f32") -> None:
        """
        Args:
            n_heads: of queries.
            head_dim: numbers of a head.
            capacity: tokens that the sequence may have.
            n_kv_heads: divides n_heads; query heads in equal groups share a key head. None: n_heads.
            scale: of scores; 0: 1 / sqrt(head_dim).
            mode: "dense" or "refine".
            delta, strict, window, sinks: as in :meth:`Plan.uniform`.
            plan, layer: instead of mode and its options, those of a layer of a plan, counted from 0.
            device: "cpu", "cuda" or "reference".
            dtype: "f32" or "bf16", of the cache.
        """
        options: dict[str, Any] = {
            "n_heads": n_heads, "n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads,
            "head_dim": head_dim, "capacity": capacity, "scale": scale, "device": device, "dtype": dtype}
        if plan is not None:
            options.update({"plan": core_of(plan), "layer": layer})
        else:
            options.update({"mode": mode, "delta": delta, "strict": strict, "window": window,
                            "sinks": sinks})
        self._core = _core.Attention(options)

    def append(self, q: Any, k: Any, v: Any, out: Any = None) -> Any:
        """Takes in the next n tokens, and answers their queries over all tokens up to each.

        Args:
            q: (n, n_heads, head_dim), float32, rotary embedding applied: a NumPy array, a torch tensor on
                the CPU, or whatever else speaks DLPack. Contiguous ones are read in place.
            k, v: (n, n_kv_heads, head_dim), the same.
            out: (n, n_heads, head_dim), contiguous float32, to be written; None: a new NumPy array.

        Returns:
            out.
        """
        if out is None:
            out = np.empty(tuple(q.shape), dtype=np.float32)
        self._core.append(q, k, v, out)
        return out

    def __len__(self) -> int:
        return self._core.length

    @property
    def is_dense(self) -> bool:
        """Whether it is exact for any input."""
        return self._core.is_dense

    @property
    def keys_read(self) -> float:
        """Keys that all queries so far read, as a share of those that dense attention reads."""
        return self._core.keys_read

    @property
    def keys_read_by_head(self) -> list[float]:
        """The same of each query head."""
        return self._core.keys_read_by_head

    def clear(self) -> None:
        """Forgets everything."""
        self._core.clear()
