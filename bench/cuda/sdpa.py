"""Times PyTorch's attention on the shapes of dense.cpp, one backend after another."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def milliseconds(run, repeats):
    """Median of repeats after a warm-up, by device events."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def main():
    print(torch.cuda.get_device_name(0), "torch", torch.__version__, "cudnn",
          torch.backends.cudnn.version())
    print(f"{'tokens':>6} {'heads':>5} {'dim':>4} {'backend':<8} {'':<8} {'us':>10} {'TFLOP/s':>8}")
    for n_heads, head_dim in ((32, 128), (16, 256), (32, 64), (32, 80)):
        for n in (2048, 8192, 32768):
            q, k, v = (torch.randn(1, n_heads, n, head_dim, device="cuda", dtype=torch.bfloat16)
                       for _ in range(3))
            for causal in (True, False):
                for name, backend in (("flash", SDPBackend.FLASH_ATTENTION),
                                      ("cudnn", SDPBackend.CUDNN_ATTENTION)):
                    try:
                        with sdpa_kernel(backend):
                            time = milliseconds(
                                lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
                                7 if n >= 32768 else 25)
                    except RuntimeError as error:
                        print(f"{n:>6} {n_heads:>5} {head_dim:>4} {name:<8} {str(error)[:60]}")
                        continue
                    flops = 4 * n * n * n_heads * head_dim * (0.5 if causal else 1)
                    print(f"{n:>6} {n_heads:>5} {head_dim:>4} {name:<8} "
                          f"{'causal' if causal else 'all keys':<8} {1e3 * time:>10.1f} "
                          f"{flops / time * 1e-9:>8.1f}")


main()
