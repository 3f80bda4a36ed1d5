"""Causal attention on queries, keys and values of the caller's own, without a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._plan import Plan, core_of


class AttentionDevice:
    """Where attention runs, and what the attentions of all layers and sequences share there."""

    def __init__(self, device: str = "cpu", dtype: str = "f32", *, ordinal: int = 0,
                 stream: int | None = None) -> None:
        """
        Args:
            device: "cpu", "cuda" or "reference".
            dtype: "f32" or "bf16", of the cache and the products.
            ordinal: of the GPU, as CUDA counts them; with a stream only.
            stream: a CUDA stream of yours, e.g. ``torch.cuda.current_stream().cuda_stream``, which all
                work goes to; None: one of its own. It must exist as long as it is in use.

        Raises:
            sluice.Error: for a device that is not there.
        """
        self._core = _core.AttentionDevice({"device": device, "dtype": dtype, "ordinal": ordinal,
                                            "stream": stream})

    def use_stream(self, stream: int) -> None:
        """Sends work to this stream from now on, after all that was asked for before. Waits for nothing."""
        self._core.use_stream(stream)

    @property
    def kind(self) -> str:
        """"cpu", "cuda" or "reference"."""
        return self._core.kind

    @property
    def ordinal(self) -> int:
        """Of the GPU; 0 for others."""
        return self._core.ordinal

    @property
    def dtype(self) -> str:
        """"f32" or "bf16"."""
        return self._core.dtype


class Attention:
    """The keys and values of one layer of one sequence, which grows."""

    def __init__(self, *, n_heads: int, head_dim: int, capacity: int, n_kv_heads: int | None = None,
                 scale: float = 0, mode: str = "dense", delta: float = 0.005, strict: bool = False,
                 window: int | None = None, sinks: int | None = None, plan: Plan | None = None,
                 layer: int = 0, device: str | AttentionDevice = "cpu", dtype: str = "f32") -> None:
        """
        Args:
            n_heads: of queries.
            head_dim: numbers of a head.
            capacity: tokens that the sequence may have. Memory is taken as they come.
            n_kv_heads: divides n_heads; query heads in equal groups share a key head. None: n_heads.
            scale: of scores; 0: 1 / sqrt(head_dim).
            mode: "dense" or "refine".
            delta, strict, window, sinks: as in :meth:`Plan.uniform`.
            plan, layer: instead of mode and its options, those of a layer of a plan, counted from 0.
            device: "cpu", "cuda", "reference", or an :class:`AttentionDevice` that several share.
            dtype: "f32" or "bf16", of the cache; an :class:`AttentionDevice` has its own.
        """
        on = device if isinstance(device, AttentionDevice) else AttentionDevice(device, dtype)
        options: dict[str, Any] = {
            "n_heads": n_heads, "n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads,
            "head_dim": head_dim, "capacity": capacity, "scale": scale}
        if plan is not None:
            options.update({"plan": core_of(plan), "layer": layer})
        else:
            options.update({"mode": mode, "delta": delta, "strict": strict, "window": window,
                            "sinks": sinks})
        self._core = _core.Attention(on._core, options)

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

    def append_rows(self, q: Any, k: Any, v: Any, out: Any) -> None:
        """The same of tensors on the attention's device in its dtype, which are read and written in place.

        On a GPU it only asks for the work: it is done in the order of the device's stream, and nobody
        waits.

        Args:
            q, out: (n, n_heads, head_dim), of any library that speaks DLPack, or its capsules. The heads of
                a token follow each other; tokens may be further apart.
            k, v: (n, n_kv_heads, head_dim), the same.

        Raises:
            sluice.Error: for tensors of another device, dtype, shape or layout.
        """
        self._core.append_rows(q, k, v, out)

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

    def reads(self) -> Any:
        """``keys_read`` and ``by_head``, to be looked at later, also when the attention is gone.

        On a GPU looking at them waits for the work so far; asking for them does not.
        """
        return self._core.reads()

    def clear(self) -> None:
        """Forgets everything."""
        self._core.clear()
