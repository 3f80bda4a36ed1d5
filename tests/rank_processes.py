"""The processes of mpirun that a test started, known by a folder that stands in their command lines."""

import os
import pathlib
import select

SECONDS = 60  # that a process may take to end


def processes_of(folder):
    """Numbers of the processes that have the folder in their command line, mpirun among them."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # it has ended
                continue
    return found


def pid_of_rank(rank, folder):
    """The process of Open MPI's rank, or None."""
    for pid in processes_of(folder):
        try:
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment:
            return pid
    return None


def left_after_waiting(folder):
    """Waits until the processes of the folder have ended. Returns those that have not within SECONDS."""
    for pid in processes_of(folder):
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        select.select([descriptor], [], [], SECONDS)
        os.close(descriptor)
    return processes_of(folder)
