"""What a measurement was made on: processor, cores, memory and versions."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import malstrom_py


def processor() -> str:
    """The model of the processor, as the system names it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> str:
    """Machine, how busy it is, and versions, in two lines."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return (
        f"{processor()}, {cores()} cores, {memory_gib:.0f} GiB, {sys.platform}, load {os.getloadavg()[0]:.1f}\n"
        f"{python}, malstrom-py {malstrom_py.__version__}, pyarrow {metadata.version('pyarrow')}"
    )
