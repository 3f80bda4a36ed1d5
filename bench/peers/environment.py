"""The virtual environment with the pinned peers."""

import os
import pathlib
import shutil
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


def compilers():
    """Clang for llama.cpp where it is there: GCC before 12.4 forgets the shapes of AMX's tiles (its bug
    114098), and the program ends with an illegal instruction. Clang before 16 names AMX's macros otherwise."""
    if not (shutil.which("clang") and shutil.which("clang++")):
        return {}
    macros = subprocess.run(["clang", "-march=native", "-dM", "-E", "-x", "c", "/dev/null"],
                            capture_output=True, text=True, check=False).stdout
    flags = " ".join(f"-D__AMX_{part}__=1" for part in ("INT8", "TILE", "BF16")
                     if f"__AMX{part}__" in macros and f"__AMX_{part}__" not in macros)
    return {"CC": "clang", "CXX": "clang++"} | ({"CFLAGS": flags, "CXXFLAGS": flags} if flags else {})


def install(folder, pins):
    """Installs what a file of pins names. Returns why that failed, or nothing."""
    environment = dict(os.environ)
    # llama.cpp is compiled for this machine's processor, and never taken from a wheel.
    environment.setdefault("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF")
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(len(os.sched_getaffinity(0))))
    for key, value in compilers().items():
        environment.setdefault(key, value)
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
