"""Times PyTorch's attention on the shapes of bench/cases/cuda, one backend after another.

    sdpa.py [FILE [HEADS]]     FILE: where to write the times for sluice_bench to read, which the
                               cases name as "pytorch"; HEADS: such as 32/32/128, those alone
"""

import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS = ((32, 32, 128), (16, 16, 256), (32, 8, 128), (32, 32, 64), (32, 32, 80), (32, 32, 96))
BACKENDS = (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION))


def milliseconds(run, repeats):
    """Median of repeats after a warm-up, by device events; short ones many at once."""

    def time_of(n):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(n):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / n

    time_of(3)
    at_once = 20 if time_of(3) < 0.5 else 1
    return sorted(time_of(at_once) for _ in range(repeats))[repeats // 2]


def time_shape(n, n_heads, n_kv_heads, head_dim, causal):
    """Yields (backend, milliseconds or the reason why there are none)."""
    q, k, v = (torch.randn(1, heads, n, head_dim, device="cuda", dtype=torch.bfloat16)
               for heads in (n_heads, n_kv_heads, n_kv_heads))
    for name, backend in BACKENDS:
        try:
            with sdpa_kernel(backend):
                yield name, milliseconds(
                    lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal,
                                                           enable_gqa=n_heads != n_kv_heads),
                    3 if n > 32768 else 7 if n == 32768 else 25)
        except RuntimeError as error:
            yield name, str(error)[:60]


def main():
    lines = []
    print(torch.cuda.get_device_name(0), "torch", torch.__version__, "cudnn",
          torch.backends.cudnn.version())
    print("\n| T | heads | head size | backend | | us | TFLOP/s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    only = sys.argv[2] if len(sys.argv) > 2 else None
    for n_heads, n_kv_heads, head_dim in HEADS:
        if only not in (None, f"{n_heads}/{n_kv_heads}/{head_dim}"):
            continue
        for n in (512, 2048, 8192, 32768, 131072):
            if n > 32768 and (n_heads, n_kv_heads, head_dim) != HEADS[0]:
                continue
            for causal in (True, False) if n <= 32768 else (True,):
                for name, time in time_shape(n, n_heads, n_kv_heads, head_dim, causal):
                    start = f"| {n} | {n_heads}/{n_kv_heads} | {head_dim} | {name} | "
                    if isinstance(time, str):
                        print(start + time.replace("|", " ").replace("\n", " ") + " | - | - |")
                        continue
                    flops = 4 * n * n * n_heads * head_dim * (0.5 if causal else 1)
                    print(start + f"{'causal' if causal else 'all keys'} | {1e3 * time:.1f} | "
                          f"{flops / time * 1e-9:.1f} |", flush=True)
                    if causal and n_heads == n_kv_heads:
                        lines.append(f"{n} {n_heads} {head_dim} {time:.6f} {name}\n")
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.writelines(lines)


main()
