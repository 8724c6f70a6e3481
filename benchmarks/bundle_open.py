"""Time to open and check a bundle of 300 MB, warm, against touching nothing. Interleaved A B A B; prints JSON.

Usage: python benchmarks/bundle_open.py [--mb 300] [--rounds 15]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from goinfer.bundle_format.reader import Bundle
from goinfer.bundle_format.verify import verify
from goinfer.bundle_format.writer import BundleWriter


def write_bundle(path: Path, megabytes: int) -> None:
    """Random weights of that size, one small code section and a manifest."""
    rng = np.random.default_rng(0)
    with BundleWriter(path) as w:
        w.add_manifest({"benchmark": "bundle_open"})
        w.add("code", "x86-64-v3", rng.integers(0, 256, 400_000, np.uint8))
        with w.stream("weights", "") as s:
            for _ in range(megabytes):
                s.write(rng.integers(0, 256, 1_000_000, np.uint8))


def main() -> None:
    """Run the arms in turn and print minimum, median and maximum of each in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.giw"
        write_bundle(path, options.mb)
        arms: dict[str, Callable[[], object]] = {
            "nothing": lambda: None,
            "open, weights unchecked": lambda: Bundle.open(path, "off").close(),
            "open, full check": lambda: Bundle.open(path, "full").close(),
            "open, full check, one thread": lambda: Bundle.open(path, "full", threads=1).close(),
            "open, full check through reads": lambda: Bundle.open(path, "full", resident=False).close(),
            "verify": lambda: verify(path).raise_if_bad(),
        }
        times: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(options.rounds):
            for name, arm in arms.items():
                start = time.perf_counter()
                arm()
                times[name].append((time.perf_counter() - start) * 1e3)
    rows = {
        name: {"min": round(min(t), 2), "median": round(statistics.median(t), 2), "max": round(max(t), 2)}
        for name, t in times.items()
    }
    print(json.dumps({"bytes": options.mb * 1_000_000, "milliseconds": rows}, indent=1))


if __name__ == "__main__":
    main()
