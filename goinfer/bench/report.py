"""A run's results as a table for people and as JSON that stands on its own."""

import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from goinfer.bench.profile import table
from goinfer.bench.rounds import Samples, Spread, as_dict, ratios
from goinfer.bench.suite import Results
from goinfer.version import VERSION

FIRST = "goinfer"


def text(results: Results) -> str:
    """The table."""
    facts = results.facts
    lines = [
        f"{facts['bundle']}: {facts['recipe']}, {facts['target']}, {facts['threads']} threads, kv {facts['kv']};"
        f" {facts['rounds']} rounds: median (least..largest)",
        f"machine: reads {results.read_gbs:.1f} GB/s, int8 dot products {results.dot_gmacs:.0f} GMAC/s;"
        f" a token reads {results.work.bytes / 1e6:.1f} MB of weights, {results.work.products / 1e6:.0f} M products",
        "",
    ]
    rows = [["work", "goinfer tok/s", "share of ceiling", *_peer_titles(results)]]
    rows += [_rate_row(results, work, samples) for work, samples in results.rates.items()]
    lines += _columns(rows)
    lines += ["", *_second_lines(results), *_memory_lines(results)]
    for title, parts in results.profiles.items():
        lines += ["", *_columns(table(title, parts, results.read_gbs, results.dot_gmacs))]
    lines += [f"not measured: {reason}" for reason in results.absent]
    return "\n".join(lines)


def _peer_titles(results: Results) -> list[str]:
    return [title for name in _peers(results) for title in (f"{name} tok/s", "ratio")]


def _peers(results: Results) -> list[str]:
    names = dict.fromkeys(name for samples in results.rates.values() for name in samples)
    return [name for name in names if name != FIRST]


def _rate_row(results: Results, work: str, samples: Samples) -> list[str]:
    row = [work, Spread.of(samples[FIRST]).text(), share(results, work)]
    for name in _peers(results):
        if name in samples:
            row += [Spread.of(samples[name]).text(), ratios(samples, FIRST, name).text(2)]
        else:
            row += ["", ""]
    return row


def share(results: Results, work: str) -> str:
    """Of the read bandwidth for decoding one sequence, of the dot-product peak for a prefill of 128 and more."""
    rate = Spread.of(results.rates[work][FIRST]).median
    if work.startswith("decode at"):
        return f"{results.work.bytes * rate / 1e9 / results.read_gbs:.0%} of reading"
    if work.startswith("prefill") and int(work.split()[1]) >= 128:
        return f"{results.work.row_products * rate / 1e9 / results.dot_gmacs:.0%} of dot products"
    return ""


def _second_lines(results: Results) -> list[str]:
    lines = []
    for work, samples in results.seconds.items():
        parts = [f"{name} {Spread.of([1e3 * s for s in values]).text()} ms" for name, values in samples.items()]
        others = [name for name in samples if name != FIRST]
        parts += [f"ratio {ratios(samples, FIRST, name).text(2)}" for name in others]
        lines.append(f"{work}: {', '.join(parts)}")
    source = results.facts.get("source_bytes")
    if source:
        seconds = Spread.of(results.seconds["prequant"][FIRST]).median
        lines[-1] += f", {source / 1e6 / seconds:.0f} MB/s of source"
    return lines


def _memory_lines(results: Results) -> list[str]:
    if not results.memory:
        return []
    rest = results.memory["rss"] - results.work.bytes - results.memory["kv"]
    return [
        f"resident: {results.memory['rss'] / 1e6:.0f} MB at most, which is weights read + KV"
        f" ({results.memory['kv'] / 1e6:.0f} MB) + {rest / 1e6:.0f} MB"
    ]


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def data(results: Results) -> dict[str, Any]:
    """Everything, with the machine, the versions and the commit."""
    return {
        "machine": machine(), "versions": versions(), "commit": commit(), **results.facts,
        "ceilings": {"read_gb_per_s": round(results.read_gbs, 2), "dot_gmac_per_s": round(results.dot_gmacs, 1)},
        "token": vars(results.work),
        "tokens_per_second": {work: as_dict(samples, FIRST) for work, samples in results.rates.items()},
        "seconds": {work: as_dict(samples, FIRST) for work, samples in results.seconds.items()},
        "profiles": {title: [vars(line) for line in lines] for title, lines in results.profiles.items()},
        "memory": results.memory, "not_measured": results.absent,
    }  # fmt: skip


def as_json(results: Results) -> str:
    """`data` as the text of a results file."""
    return json.dumps(data(results), indent=1) + "\n"


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
