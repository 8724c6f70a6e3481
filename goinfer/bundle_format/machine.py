"""What the processor of this machine can do, in the names that targets use."""

from functools import cache
from pathlib import Path


@cache
def cpu_flags() -> frozenset[str]:
    """CPU features as Linux names them ("avx2", "asimddp"); empty where the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
