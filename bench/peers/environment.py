"""The virtual environment with the pinned peers."""

import os
import pathlib
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
# PyTorch's own index has builds without CUDA; where it cannot be reached, pip goes on to the others.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def python_of(folder):
    return folder / "bin" / "python"


def make(folder):
    """The environment, with what the driver itself needs."""
    if not python_of(folder).exists():
        venv.create(folder, with_pip=True)
    install(folder, HERE / "pins" / "common.txt")


def install(folder, pins):
    """Installs what a file of pins names. Returns why that failed, or nothing."""
    environment = dict(os.environ)
    # llama.cpp is compiled for this machine's processor, and never taken from a wheel.
    environment.setdefault("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF")
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(len(os.sched_getaffinity(0))))
    command = [python_of(folder), "-m", "pip", "install", "--quiet", "--retries", "1",
               "--no-binary", "llama-cpp-python", "--extra-index-url", TORCH_INDEX, "-r", pins]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip failed"]
    return errors[-1][:200]


def install_peers(folder, names):
    """Installs each of these peers; {name: reason} of those that cannot be had."""
    failed = {}
    for name in names:
        print(f"installing {name}", file=sys.stderr, flush=True)
        reason = install(folder, HERE / "pins" / f"{name}.txt")
        if reason:
            failed[name] = reason
    return failed
