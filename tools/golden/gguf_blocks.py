"""Random GGUF blocks of every supported type and the float32 values they stand for.

  blocks/<type>.bin  raw blocks, back to back
  blocks/<type>.f32  their values, little-endian float32

The values come from the loops below, written from the definition of each format, one element at a
time; gguf-py, which works on whole arrays, must give the same bits. Every product and sum is
rounded to float32: a fused multiply-add gives other last bits for the types with a minimum.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from golden.models import rng_for

F32 = np.float32

# float16 scales that tests should not miss: zeros, subnormals and their limits, the largest.
SPECIAL_SCALES = (0.0, -0.0, 2**-24, -(2**-24), 2**-14 - 2**-24, 2**-14, 1.0, -1.0, 65504.0, -2.5)


@dataclass(frozen=True)
class Format:
    """Layout of one block type."""

    n_values: int  # per block
    n_bytes: int
    scale_offsets: tuple[int, ...]  # of float16 fields
    expand: Callable[[bytes], list[np.float32]]


def half(block: bytes, offset: int) -> np.float32:
    """The float16 at a byte offset."""
    return F32(np.frombuffer(block, "<f2", count=1, offset=offset)[0])


def nibble(quants: bytes, i: int) -> int:
    """Value i of 32: the low halves of 16 bytes, then the high halves."""
    return quants[i] & 15 if i < 16 else quants[i - 16] >> 4


def signed(byte: int) -> int:
    """Two's complement."""
    return byte - 256 if byte > 127 else byte


def expand_q8_0(block: bytes) -> list[np.float32]:
    """d, 32 x int8."""
    d = half(block, 0)
    return [d * F32(signed(block[2 + i])) for i in range(32)]


def expand_q4_0(block: bytes) -> list[np.float32]:
    """d, 16 bytes of nibbles around 8."""
    d = half(block, 0)
    return [d * F32(nibble(block[2:], i) - 8) for i in range(32)]


def expand_q4_1(block: bytes) -> list[np.float32]:
    """d, m, 16 bytes of nibbles."""
    d, m = half(block, 0), half(block, 2)
    return [d * F32(nibble(block[4:], i)) + m for i in range(32)]


def expand_q5_0(block: bytes) -> list[np.float32]:
    """d, 32 fifth bits, 16 bytes of nibbles, around 16."""
    d, high = half(block, 0), int.from_bytes(block[2:6], "little")
    return [d * F32((nibble(block[6:], i) | (high >> i & 1) << 4) - 16) for i in range(32)]


def expand_q5_1(block: bytes) -> list[np.float32]:
    """d, m, 32 fifth bits, 16 bytes of nibbles."""
    d, m, high = half(block, 0), half(block, 2), int.from_bytes(block[4:8], "little")
    return [d * F32(nibble(block[8:], i) | (high >> i & 1) << 4) + m for i in range(32)]


def scale_and_min(packed: bytes, j: int) -> tuple[int, int]:
    """The 6-bit scale and minimum of sub-block j of 8, from 12 bytes."""
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4
    minimum = packed[j + 4] >> 4 | (packed[j] >> 6) << 4
    return scale, minimum


def expand_k_with_min(block: bytes, high: bytes, low: bytes) -> list[np.float32]:
    """Q4_K and Q5_K: 8 sub-blocks of 32; pairs of them share 32 bytes of nibbles."""
    d, d_min = half(block, 0), half(block, 2)
    values = []
    for j in range(8):
        scale, minimum = scale_and_min(block[4:16], j)
        for i in range(32):
            q = low[32 * (j // 2) + i] >> 4 * (j % 2) & 15
            if high:
                q |= (high[i] >> j & 1) << 4
            values.append(d * F32(scale) * F32(q) - d_min * F32(minimum))
    return values


def expand_q4_k(block: bytes) -> list[np.float32]:
    """d, dmin, 12 bytes of scales, 128 bytes of nibbles."""
    return expand_k_with_min(block, b"", block[16:])


def expand_q5_k(block: bytes) -> list[np.float32]:
    """d, dmin, 12 bytes of scales, 32 bytes of fifth bits, 128 bytes of nibbles."""
    return expand_k_with_min(block, block[16:48], block[48:])


def expand_q6_k(block: bytes) -> list[np.float32]:
    """128 bytes of nibbles, 64 of bit pairs, 16 x int8 scales, d; around 32."""
    low, high, scales, d = block[:128], block[128:192], block[192:208], half(block, 208)
    values = []
    for i in range(256):
        part, quarter, column = i // 128, i % 128 // 32, i % 32
        q = low[64 * part + 32 * (quarter % 2) + column] >> 4 * (quarter // 2) & 15
        q |= (high[32 * part + column] >> 2 * quarter & 3) << 4
        values.append(d * F32(signed(scales[i // 16])) * F32(q - 32))
    return values


def expand_float(block: bytes) -> list[np.float32]:
    """F32."""
    return [np.frombuffer(block, "<f4")[0]]


def expand_half(block: bytes) -> list[np.float32]:
    """F16, from its bits: sign, 5 bits of exponent, 10 of fraction."""
    bits = int.from_bytes(block, "little")
    exponent, fraction = bits >> 10 & 31, bits & 1023
    magnitude = fraction * 2.0**-24 if exponent == 0 else (1024 + fraction) * 2.0 ** (exponent - 25)
    return [F32(-magnitude if bits >> 15 else magnitude)]


def expand_bf16(block: bytes) -> list[np.float32]:
    """BF16: the upper half of a float32."""
    return [np.frombuffer(b"\0\0" + block, "<f4")[0]]


FORMATS = {
    "F32": Format(1, 4, (), expand_float),
    "F16": Format(1, 2, (), expand_half),
    "BF16": Format(1, 2, (), expand_bf16),
    "Q8_0": Format(32, 34, (0,), expand_q8_0),
    "Q4_0": Format(32, 18, (0,), expand_q4_0),
    "Q4_1": Format(32, 20, (0, 2), expand_q4_1),
    "Q5_0": Format(32, 22, (0,), expand_q5_0),
    "Q5_1": Format(32, 24, (0, 2), expand_q5_1),
    "Q4_K": Format(256, 144, (0, 2), expand_q4_k),
    "Q5_K": Format(256, 176, (0, 2), expand_q5_k),
    "Q6_K": Format(256, 210, (208,), expand_q6_k),
}


def random_scales(rng: np.random.Generator, n: int, shift: int) -> np.ndarray:
    """The special scales, rotated by shift, then magnitudes from subnormal to 4."""
    special = np.roll(np.array(SPECIAL_SCALES), shift)
    sign = rng.choice([-1.0, 1.0], n)
    scales = sign * np.exp2(rng.uniform(-20, 2, n))
    scales[: len(special)] = special
    return scales


def random_blocks(rng: np.random.Generator, type_name: str, scales: list[np.ndarray]) -> np.ndarray:
    """Random bits with given float16 scales, one array (n_blocks) per scale of the format."""
    layout = FORMATS[type_name]
    blocks = rng.integers(0, 256, (len(scales[0]), layout.n_bytes), dtype=np.uint8)
    for offset, values in zip(layout.scale_offsets, scales, strict=True):
        blocks[:, offset : offset + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks


def random_floats(rng: np.random.Generator, type_name: str, n: int) -> np.ndarray:
    """Random bit patterns of a float type, infinities and NaNs left out."""
    n_bytes = FORMATS[type_name].n_bytes
    exponent_mask = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}[type_name]
    sign = 1 << (8 * n_bytes - 1)
    smallest_normal = exponent_mask & -exponent_mask
    special = [0, sign, 1, sign | 1, smallest_normal - 1, smallest_normal, exponent_mask - 1]
    bits = np.concatenate([special, rng.integers(0, 1 << (8 * n_bytes), n)]).astype(np.uint64)
    bits = bits[(bits & exponent_mask) != exponent_mask]
    return bits.astype(f"<u{n_bytes}").view(np.uint8).reshape(-1, n_bytes)


def blocks_of(type_name: str) -> np.ndarray:
    """The blocks of a golden file, (n_blocks, n_bytes)."""
    rng = rng_for(f"blocks/{type_name}")
    layout = FORMATS[type_name]
    if not layout.scale_offsets:
        return random_floats(rng, type_name, 2048)
    n_blocks = 24 if layout.n_values == 256 else 64
    # Different shifts pair every special scale with another special minimum.
    scales = [random_scales(rng, n_blocks, shift) for shift in range(len(layout.scale_offsets))]
    return random_blocks(rng, type_name, scales)


def make(out_dir: Path) -> None:
    """Writes the files under out_dir/blocks."""
    root = out_dir / "blocks"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, layout in FORMATS.items():
        blocks = blocks_of(name)
        values = np.array([layout.expand(block.tobytes()) for block in blocks], dtype="<f4")
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
        assert np.isfinite(values).all(), name
        assert values.tobytes() == np.ascontiguousarray(expected, "<f4").tobytes(), name
        (root / f"{name}.bin").write_bytes(blocks.tobytes())
        (root / f"{name}.f32").write_bytes(values.tobytes())
        print(f"blocks/{name}: {len(blocks)} blocks, same bits as gguf-py", flush=True)
