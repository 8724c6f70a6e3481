"""Where and with what results were taken: the machine, versions, the commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from goinfer.version import VERSION


def place() -> dict[str, Any]:
    """All of it, for the head of a results file."""
    return {"machine": machine(), "versions": versions(), "commit": commit()}


def machine() -> dict[str, Any]:
    """Processor, cores and memory, as far as the system says."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return {
        "processor": name, "cores": len(os.sched_getaffinity(0)), "system": f"{platform.system()} {platform.release()}",
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Of goinfer, Python, what makes the code, and the peers that are installed."""
    out = {"goinfer": VERSION, "python": platform.python_version()}
    for package in ("llvmlite", "xtc-mlir-python-bindings", "numpy", "llama-cpp-python", "openvino-genai"):
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            continue
    return out


def commit() -> str:
    """The source's commit, with a + when files have changed; empty outside a checkout."""
    folder = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True,
                              check=True).stdout.strip()  # fmt: skip
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=folder, capture_output=True, text=True,
                                 check=True).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + "+" * bool(changed)
