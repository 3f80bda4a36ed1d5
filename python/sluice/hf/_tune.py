"""Deltas for models of transformers: what they lose and read, and the largest within a contract."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch
from transformers import PreTrainedModel

from .._errors import Error
from ._enable import disable, enable

# Each reads fewer keys than the one before. Steps of about two: the loss is about proportional to delta.
DELTAS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def _checked(texts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Token ids of each text, (1, n_tokens), two tokens or more."""
    ids = [text.reshape(1, -1) if text.dim() == 1 else text for text in texts]
    if not ids:
        raise Error("there are no texts", "give token ids of one or more")
    for each in ids:
        if each.dim() != 2 or each.shape[0] != 1 or each.shape[1] < 2:
            raise Error(f"token ids of shape {tuple(each.shape)} are no text",
                        "a tensor of (n_tokens) or (1, n_tokens) for each text, two tokens or more")
    return ids


def _log_probabilities(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """(n_tokens, vocab), float32."""
    with torch.no_grad():
        return model(ids).logits[0].float().log_softmax(-1)


def _loss(model: PreTrainedModel, ids: torch.Tensor, own: torch.Tensor,
          options: dict[str, Any]) -> tuple[torch.Tensor, dict[int, list[float]]]:
    """The KL of each token, (n_tokens), and the share of keys that each head read; 1 where sdpa served it."""
    with enable(model, **options) as enabled:
        ours = _log_probabilities(model, ids)
        shares = {layer: [1.0] if read is None else read
                  for layer, read in enabled.keys_read_by_head().items()}
    # Round-off alone may give less than 0.
    return (own.exp() * (own - ours)).sum(-1).double().clamp_min(0), shares


def measure(model: PreTrainedModel, texts: Sequence[torch.Tensor], **options: Any) -> dict[str, Any]:
    """What attention with these options of :func:`enable` loses on some texts.

    Args:
        model: of transformers, on the device of the texts. Its own attention is sdpa's, or what its config says.
        texts: token ids, (n_tokens) or (1, n_tokens) each.

    Returns:
        A dict: "kl" (nats per token, KL(own || ours)), "kl_stderr" with the tokens taken as independent,
        "kl_p99", "keys_read", "keys_read_by_head" (lists by layer) and "n_tokens".
    """
    disable(model)
    kls, shares, n_tokens = [], [], []
    for ids in _checked(texts):
        kl, read = _loss(model, ids, _log_probabilities(model, ids), options)
        kls.append(kl)
        shares.append(read)
        n_tokens.append(ids.shape[1])
    kl = torch.cat(kls)
    n = sum(n_tokens)
    # Dense attention reads n (n + 1) / 2 keys of a text, so long texts weigh more.
    weights = [m * (m + 1) / 2 for m in n_tokens]
    by_head = {layer: [sum(w * share for w, share in zip(weights, of_head)) / sum(weights)
                       for of_head in zip(*(each[layer] for each in shares))] for layer in shares[0]}
    by_layer = [sum(heads) / len(heads) for heads in by_head.values()]
    return {"kl": kl.mean().item(), "kl_stderr": (kl.std() / math.sqrt(n)).item(),
            "kl_p99": kl.quantile(0.99).item(), "keys_read": sum(by_layer) / len(by_layer),
            "keys_read_by_head": by_head, "n_tokens": n}


def profile(model: PreTrainedModel, texts: Sequence[torch.Tensor],
            deltas: Sequence[float] = (0.01, 0.1), **options: Any) -> list[dict[str, Any]]:
    """What each head would read of some texts, for each delta.

    Args:
        model: of transformers, on the device of the texts.
        texts: token ids, (n_tokens) or (1, n_tokens) each.
        deltas: of :func:`enable`, the same in all layers.
        **options: of :func:`enable`, without delta.

    Returns:
        Flat dicts of "delta", "layer", "head" and "keys_read", which pandas takes as they are.
    """
    return [{"delta": delta, "layer": layer, "head": head, "keys_read": share}
            for delta in deltas
            for layer, shares in measure(model, texts, delta=delta, **options)["keys_read_by_head"].items()
            for head, share in enumerate(shares)]


def _holds(found: dict[str, Any], max_kl: float) -> bool:
    return found["kl"] + 2 * found["kl_stderr"] <= max_kl


def tune(model: PreTrainedModel, texts: Sequence[torch.Tensor], *, max_kl: float,
         held_out: Sequence[torch.Tensor] = (), **options: Any) -> dict[str, Any]:
    """The largest delta of ``DELTAS``, the same in all layers, whose loss stays within a contract.

    The mean KL is held with two standard errors added: on ``texts``, by which delta is chosen, and on
    ``held_out``, on which smaller ones are taken until it holds.

    Args:
        model: of transformers, on the device of the texts.
        texts: token ids, (n_tokens) or (1, n_tokens) each, as long as those that it is to be used on.
        max_kl: nats per token that may be lost.
        held_out: more token ids, which must be others than ``texts`` to prove something.
        **options: of :func:`enable`, without delta.

    Returns:
        The dict of :func:`measure` for that delta, with "delta", "max_kl", "tried": the same for every
        delta that was measured, and "held_out": the same on the texts held out, or None without them.

    Raises:
        sluice.Error: for a contract that not even delta 0 keeps, which reads every key.
    """
    if not max_kl > 0:
        raise Error(f"max_kl of {max_kl} is no loss to be held", "above 0 nats per token")
    tried: dict[float, dict[str, Any]] = {}

    def holds(delta: float) -> bool:
        tried[delta] = {"delta": delta, **measure(model, texts, delta=delta, **options)}
        return _holds(tried[delta], max_kl)

    low, high = -1, len(DELTAS)  # the last that holds, the first that does not
    while high - low > 1:
        middle = (low + high) // 2
        if holds(DELTAS[middle]):
            low = middle
        else:
            high = middle
    judged = None
    while low >= 0 and len(held_out) > 0:
        judged = measure(model, held_out, delta=DELTAS[low], **options)
        if _holds(judged, max_kl):
            break
        low -= 1
    if low < 0:
        left = tried[0.0] if judged is None else judged
        raise Error(f"a KL of {left['kl']:.2g} nats remains with every key read, above {max_kl:g}",
                    "a larger max_kl: numbers of this dtype are rounded")
    if DELTAS[low] not in tried:  # those held out asked for it
        holds(DELTAS[low])
    return {**tried[DELTAS[low]], "max_kl": max_kl, "held_out": judged,
            "tried": [tried[delta] for delta in sorted(tried)]}
