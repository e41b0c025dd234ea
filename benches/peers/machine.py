"""The description of the measuring machine."""

import os
import platform
import re
from pathlib import Path


def machine():
    cpu = Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*: (.*)", cpu)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)", cpu, re.MULTILINE)
    return {
        "cpu": name[1] if name else platform.machine(),
        "features": [flag for flag in flags[1].split() if re.match("avx|f16c|fma|asimd|i8mm|bf16|sve|smei8i32", flag)] if flags else [],
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average_at_start": os.getloadavg(),
    }
