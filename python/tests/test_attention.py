"""Attention on arrays of the caller's own."""

import numpy as np
import pytest

import sluice


def dense(q, k, v):
    """Causal attention in float64; query heads in groups share a key head."""
    n, n_heads, dim = q.shape
    group = n_heads // k.shape[1]
    k, v = (np.repeat(x, group, axis=1).astype("float64") for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q.astype("float64"), k) / np.sqrt(dim)
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v)


@pytest.fixture
def qkv():
    random = np.random.default_rng(7)
    return [random.standard_normal((600, heads, 32), dtype=np.float32) for heads in (4, 2, 2)]


def make(**options):
    return sluice.Attention(n_heads=4, n_kv_heads=2, head_dim=32, capacity=600, **options)


@pytest.mark.parametrize("options", [{}, {"mode": "refine", "delta": 0}])
def test_attention_that_reads_everything_is_dense(qkv, options):
    q, k, v = qkv
    attention = make(**options)
    parts = [attention.append(q[:500], k[:500], v[:500])]
    parts += [attention.append(q[i:i + 1], k[i:i + 1], v[i:i + 1]) for i in range(500, 600)]
    assert len(attention) == 600
    # Weighted means of values up to 5 in float32, in another order than NumPy's.
    assert np.abs(np.concatenate(parts) - dense(q, k, v)).max() < 1e-5


def test_refined_attention_reads_fewer_keys(qkv):
    attention = make(mode="refine", delta=float("inf"), window=64)
    attention.append(*qkv)
    assert attention.keys_read < 1
    assert np.mean(attention.keys_read_by_head) == pytest.approx(attention.keys_read)
    attention.clear()
    assert len(attention) == 0 and attention.keys_read == 1
    assert attention.keys_read_by_head == [1] * 4


def test_out_is_written_in_place(qkv):
    out = np.empty_like(qkv[0])
    assert make().append(*qkv, out=out) is out
    assert np.array_equal(out, make().append(*qkv))


def test_what_does_not_fit_is_refused(qkv):
    q, k, v = qkv
    with pytest.raises(sluice.Error, match="capacity"):
        attention = make()
        attention.append(q, k, v)
        attention.append(q, k, v)
    with pytest.raises(sluice.Error, match="no tokens"):
        make().append(q, k[:1], v)
    with pytest.raises(sluice.Error, match="groups"):
        sluice.Attention(n_heads=3, n_kv_heads=2, head_dim=8, capacity=8)
    with pytest.raises(TypeError):
        make().append(q, k, v, out=np.empty_like(q)[::2])


def test_attentions_share_a_device(qkv):
    device = sluice.AttentionDevice("cpu")
    assert (device.kind, device.ordinal, device.dtype) == ("cpu", 0, "f32")
    first, second = make(device=device), make(device=device, mode="refine", delta=0)
    assert np.abs(first.append(*qkv) - second.append(*qkv)).max() < 1e-5
    with pytest.raises(sluice.Error, match="no stream"):
        device.use_stream(0)
    with pytest.raises(sluice.Error, match="only a GPU"):
        sluice.AttentionDevice("cpu", stream=0)


def test_rows_of_a_fused_projection_are_read_in_place(qkv):
    fused = np.concatenate(qkv, axis=1)
    q, k, v = fused[:, :4], fused[:, 4:6], fused[:, 6:]
    out = np.zeros((600, 8, 32), dtype=np.float32)
    attention = make(mode="refine", delta=0.02)
    attention.append_rows(q, k, v, out[:, 2:6])
    reads = attention.reads()
    expected = make(mode="refine", delta=0.02)
    assert np.array_equal(out[:, 2:6], expected.append(*qkv))
    assert not out[:, :2].any() and not out[:, 6:].any()
    attention.clear()
    assert reads.keys_read == expected.keys_read and reads.by_head == expected.keys_read_by_head


def test_rows_that_do_not_fit_are_refused(qkv):
    q, k, v = qkv
    out, attention = np.empty_like(q), make()
    for rows, message in [((q, k[:9], v, out), "no tokens"), ((q, q, q, out), "no tokens"),
                          ((q.astype("float64"), k, v, out), "dtype"),
                          ((q, k, v, np.empty((4, 600, 32), np.float32).transpose(1, 0, 2)), "follow")]:
        with pytest.raises(sluice.Error, match=message):
            attention.append_rows(*rows)
    assert len(attention) == 0
