"""The machine that measures: its processor, and which of its cores threads run on."""

import os
import pathlib
import platform
import subprocess


def processor():
    """The model name of the CPU, or else its architecture. On Arm lscpu alone knows it."""
    environment = dict(os.environ, LC_ALL="C")
    try:
        text = subprocess.run(["lscpu"], env=environment, capture_output=True, text=True,
                              check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.machine()
    return model_name(text) or platform.machine()


def model_name(lscpu):
    """Of what lscpu prints."""
    for line in lscpu.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model name":
            return value.strip()
    return None


def first_siblings(cpus, siblings_of):
    """Of CPUs that share a core, the first alone."""
    taken, chosen = set(), []
    for cpu in sorted(cpus):
        if cpu not in taken:
            chosen.append(cpu)
            taken.update(siblings_of(cpu))
    return chosen


def parse_list(text):
    """The numbers of a list as the kernel writes it: 0-3,8."""
    numbers = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def kernel_siblings(cpu):
    path = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return parse_list(path.read_text(encoding="utf-8")) if path.exists() else {cpu}


def cores():
    """A CPU of each core that this process may use."""
    return first_siblings(os.sched_getaffinity(0), kernel_siblings)


def describe():
    return {"cpu": processor(), "cores": len(cores()), "architecture": platform.machine(),
            "system": f"{platform.system()} {platform.release()}",
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
