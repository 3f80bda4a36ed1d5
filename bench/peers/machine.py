"""The machine that measures: its processor, and which of its cores threads run on."""

import os
import pathlib
import platform


def processor():
    """The model name of the CPU, or else its architecture."""
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model name"):
            return value.strip()
    return platform.machine()


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
