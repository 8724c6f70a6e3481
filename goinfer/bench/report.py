"""A run's results as JSON that stands on its own, and as a table for people that is made from that JSON."""

import json
from dataclasses import asdict
from typing import Any

from goinfer.bench.bars import Data, Outcome, judge, rows, summary
from goinfer.bench.place import place
from goinfer.bench.profile import Line, table
from goinfer.bench.rounds import Spread, as_dict
from goinfer.bench.shares import shares
from goinfer.bench.suite import OURS, Results


def data(results: Results) -> Data:
    """Everything, with the machine, the versions and the commit, and what it says about the bars."""
    found: Data = {
        **place(), **results.facts,
        "ceilings": results.machine, "token": asdict(results.work),
        "tokens_per_second": {work: _row(results, work) for work in results.rates},
        "lower_targets": {target: _lower(results, target) for target in results.lower},
        "seconds": {work: as_dict(samples, OURS) for work, samples in results.seconds.items()},
        "profiles": {title: [asdict(line) for line in lines] for title, lines in results.profiles.items()},
        "memory": results.memory, "not_measured": results.absent,
    }  # fmt: skip
    return {**found, "bars": [asdict(outcome) for outcome in judge(found)]}


def _row(results: Results, work: str) -> dict[str, Any]:
    samples, ceilings = results.rates[work], results.ceilings[work]
    row = {**as_dict(samples, OURS), "ceilings": [float(f"{v:.5g}") for v in ceilings]}
    taken = shares(results.work, work, samples[OURS], ceilings)
    return {**row, "share": _share(*taken)} if taken else row


def _share(of: str, samples: list[float]) -> dict[str, Any]:
    return {"of": of, "samples": [float(f"{v:.5g}") for v in samples], **Spread.of(samples).as_dict()}


def _lower(results: Results, target: str) -> dict[str, Any]:
    """A lower target: its own dot products, its rates over the best target's, its shares of its own ceilings."""
    found = results.lower[target]
    out: dict[str, Any] = {"dot_loops": found["dot_loops"], "work": {}}
    for work, samples in found["rates"].items():
        taken = shares(results.work, work, samples[target], found["ceilings"][work])
        out["work"][work] = {**as_dict(samples, target), **({"share": _share(*taken)} if taken else {})}
    return out


def as_json(found: Data) -> str:
    """The text of a results file."""
    return json.dumps(found, indent=1) + "\n"


def text(found: Data) -> str:
    """The table, from `data` or a results file."""
    lines = [*_head(found), "", *columns(_rate_rows(found)), ""]
    lines += [*_second_lines(found), *_memory_lines(found), *_lower_lines(found)]
    read, dots = found["ceilings"]["read_gb_per_s"], found["ceilings"]["dot_gmac_per_s"]
    for title, parts in found["profiles"].items():
        lines += ["", *columns(table(title, [Line(**part) for part in parts], read, dots))]
    outcomes = [Outcome(**outcome) for outcome in found["bars"]]
    lines += ["", *columns(rows(outcomes)), summary(outcomes)]
    lines += [f"not measured: {reason}" for reason in found["not_measured"]]
    return "\n".join(lines)


def _head(found: Data) -> list[str]:
    ceilings, token = found["ceilings"], found["token"]
    best = {name: max(ceilings[name], key=ceilings[name].get) for name in ("readers", "dot_loops")}
    return [
        f"{found['bundle']['name']}: {found['recipe']}, {found['target']}, {found['threads']} threads,"
        f" kv {found['kv']}; {found['rounds']} rounds: median (least..largest); ratios pair by pair",
        f"machine: {found['machine']['processor']}, {found['machine']['cores']} cores",
        f"ceilings: reads {ceilings['read_gb_per_s']:.1f} GB/s ({best['readers']});"
        f" int8 dot products of {ceilings['target']} {ceilings['dot_gmac_per_s']:.0f} GMAC/s ({best['dot_loops']})",
        f"a token reads {token['bytes'] / 1e6:.1f} MB of weights and makes {token['products'] / 1e6:.0f} M products;"
        f" keys and values: {sum(size for _, size in token['kv']) / 1e3:.1f} kB a position",
        *(f"{name} reads {peer['name']}: {peer['type']}, {peer['bytes'] / 1e6:.1f} MB"
          for name, peer in found["peers"].items()),
    ]  # fmt: skip


def _rate_rows(found: Data) -> list[list[str]]:
    peers = list(found["peers"])
    table_rows = [["work", "goinfer tok/s", "share of ceiling", *(t for p in peers for t in (f"{p} tok/s", "ratio"))]]
    for work, row in found["tokens_per_second"].items():
        cells = [work, spread(row["rates"][OURS]), _share_text(row)]
        for peer in peers:
            there = peer in row["rates"]
            cells += [spread(row["rates"][peer]), spread(row["ratios"][peer], 2)] if there else ["", ""]
        table_rows.append(cells)
    return table_rows


def _share_text(row: dict[str, Any]) -> str:
    share = row.get("share")
    return f"{share['median']:.0%} of {share['of']}" if share else ""


def spread(values: dict[str, float], digits: int | None = None) -> str:
    """`median (low..high)` of a spread in a results file; digits as the size asks for, or as given."""
    if digits is None:
        digits = 0 if values["median"] >= 1000 else 1
    return Spread(values["median"], values["low"], values["high"]).text(digits)


def _second_lines(found: Data) -> list[str]:
    lines = []
    for work, row in found["seconds"].items():
        parts = [f"{n} {spread({k: 1e3 * v for k, v in r.items()})} ms" for n, r in row["rates"].items()]
        parts += [f"ratio to {name} {spread(ratio, 2)}" for name, ratio in row["ratios"].items()]
        if work == "prequant" and found["source"]:
            parts.append(f"{found['source']['bytes'] / 1e6 / row['rates'][OURS]['median']:.0f} MB/s of source")
        if work == "open and verify":
            parts.append(f"{found['bundle']['bytes'] / 1e6:.0f} MB")
        lines.append(f"{work}: {', '.join(parts)}")
    return lines


def _memory_lines(found: Data) -> list[str]:
    memory = found["memory"]
    if not memory:
        return []
    rest = memory["rss"] - found["token"]["bytes"] - memory["kv"]
    return [
        f"resident: {memory['rss'] / 1e6:.0f} MB at most, which is weights read + KV"
        f" ({memory['kv'] / 1e6:.0f} MB) + {rest / 1e6:.0f} MB"
    ]


def _lower_lines(found: Data) -> list[str]:
    lines = []
    for target, lower in found["lower_targets"].items():
        parts = [
            f"{work} {spread(row['rates'][target])} tok/s,"
            f" {spread(row['ratios'][found['target']], 2)} of {found['target']}, {_share_text(row)}"
            for work, row in lower["work"].items()
        ]
        lines.append(f"target {target} ({max(lower['dot_loops'].values()):.0f} GMAC/s): {'; '.join(parts)}")
    return lines


def columns(table_rows: list[list[str]]) -> list[str]:
    """Cells in columns of equal width."""
    widths = [max(len(row[i]) for row in table_rows) for i in range(len(table_rows[0]))]
    return ["  ".join(c.ljust(width) for c, width in zip(row, widths, strict=True)).rstrip() for row in table_rows]

