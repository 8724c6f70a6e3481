"""Tables of a document, filled from results files so that no figure is typed by hand.

    python -m goinfer.bench.tables docs/performance.md

A table stands between a line `<!-- table KIND FILE ... -->` and a line `<!-- end -->`; FILEs are relative to the
document. Tables of files that do not exist yet say so. Kinds: see KINDS.
"""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from goinfer.bench.bars import Data
from goinfer.bench.profile import Line
from goinfer.bench.read_results import label, read_results
from goinfer.bench.report import spread
from goinfer.bench.scaling import DECODE, PREFILL, Fit, drift_text, line_text
from goinfer.bench.suite import OURS
from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.bundle_format.output import Output

Rows = list[list[str]]

_BLOCK = re.compile(r"(<!-- table (\w+) ([^>]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_MISSING = "*Not measured yet.*\n"


def ceilings(files: Sequence[Data]) -> Rows:
    """Every reader and every dot-product loop of the first file's machine."""
    found = files[0]["ceilings"]
    lower = [(target, part["dot_loops"]) for target, part in files[0].get("lower_targets", {}).items()]
    table = [["what", "loop: rate"], ["reading, GB/s", _loops(found["readers"], "{:.1f}")]]
    loops = [(found["target"], found["dot_loops"]), *lower]
    return table + [[f"int8 products of {target}, GMAC/s", _loops(part, "{:.0f}")] for target, part in loops]


def _loops(rates: dict[str, float], form: str) -> str:
    return ", ".join(f"{name}: {form.format(rate)}" for name, rate in rates.items())


def rates(files: Sequence[Data]) -> Rows:
    """Rates, shares of ceilings and ratios to the peers of one run."""
    (found,) = files
    peers = list(found["peers"])
    table = [["work", "tokens/s", "share of ceiling", *(f"goinfer / {peer}" for peer in peers)]]
    for work, row in found["tokens_per_second"].items():
        share = row.get("share")
        cells = [work, spread(row["rates"][OURS]), f"{share['median']:.0%} of {share['of']}" if share else ""]
        table.append([*cells, *(spread(row["ratios"][p], 2) if p in row["ratios"] else "" for p in peers)])
    for work, row in found["seconds"].items():
        milliseconds = {name: 1e3 * value for name, value in row["rates"][OURS].items()}
        ratios = [spread(row["ratios"][p], 2) if p in row["ratios"] else "" for p in peers]
        table.append([f"{work} (time)", f"{spread(milliseconds)} ms", "", *ratios])
    return table


def bars(files: Sequence[Data]) -> Rows:
    """Every number to reach, with what each run says."""
    table = [["number to reach", "required", *(label(data) for data in files)]]
    for i, bar in enumerate(files[0]["bars"]):
        cells = []
        for data in files:
            outcome = data["bars"][i]
            cells.append(", ".join(part for part in (outcome["value"], outcome["status"], outcome["why"]) if part))
        table.append([bar["bar"], bar["required"], *cells])
    return table


def steps(files: Sequence[Data]) -> Rows:
    """Kinds of steps: bytes, products, the floors that they give, and how near to them one run came."""
    (found,) = files
    read, dots = found["ceilings"]["read_gb_per_s"], found["ceilings"]["dot_gmac_per_s"]
    runs = {title: {part["name"]: Line(**part) for part in parts} for title, parts in found["profiles"].items()}
    (prefill,) = [lines for title, lines in runs.items() if title.startswith("prefill")]
    (decode,) = [lines for title, lines in runs.items() if title.startswith("decode")]
    rows = max(runs, key=lambda title: title.startswith("prefill")).split()[1]
    table = [["step", "MB that 1 row reads", "M products a row", "floor of 1 row, ms", f"floor of {rows} rows, ms",
              "1 row: ms, of floor, waiting", f"{rows} rows: ms, of floor, waiting"]]  # fmt: skip
    absent = {name: Line(name, 0, 0.0, 0, 0) for name in (*prefill, *decode)}  # only greedy forwards have `greedy`
    for name in dict.fromkeys([*decode, *prefill]):
        one, many = decode.get(name, absent[name]), prefill.get(name, absent[name])
        floors = [f"{1e3 * line.floor(read, dots):.3f}" if line.bytes else "" for line in (one, many)]
        table.append([
            name, f"{one.bytes / 1e6:.2f}" if one.bytes else "", f"{one.products / 1e6:.2f}" if one.products else "",
            *floors, *(_measured(line, read, dots) for line in (one, many)),
        ])  # fmt: skip
    return table


def _measured(line: Line, read: float, dots: float) -> str:
    if not line.seconds:
        return ""
    floor = f", {line.floor(read, dots) / line.seconds:.0%}" if line.bytes else ""
    return f"{1e3 * line.seconds:.3f}{floor}, {line.waiting / line.seconds:.0%}"


def lower(files: Sequence[Data]) -> Rows:
    """The lower targets beside the best, of every run."""
    table = [["model", "target", "work", "tokens/s", "of the best target", "share of its own ceiling"]]
    for data in files:
        for target, part in data["lower_targets"].items():
            for work, row in part["work"].items():
                share = f"{row['share']['median']:.0%} of {row['share']['of']}" if "share" in row else ""
                ratio = spread(row["ratios"][data["target"]], 2)
                table.append([label(data), target, work, spread(row["rates"][target]), ratio, share])
    return table


def sizes(files: Sequence[Data]) -> Rows:
    """A series over sizes."""
    (found,) = files
    table = [["shape", "MB a token", "decode tokens/s", "of reading", "prefill 512 tokens/s", "of dot products"]]
    for size in found["scaling"]["sizes"]:
        table.append([
            size["name"], f"{size['bytes'] / 1e6:.1f}", spread(size["rates"][DECODE]),
            f"{size['shares'][DECODE]['median']:.0%}", spread(size["rates"][PREFILL]),
            f"{size['shares'][PREFILL]['median']:.0%}",
        ])  # fmt: skip
    return table


def line(files: Sequence[Data]) -> Rows:
    """The line of a series, and the drift, in words."""
    (found,) = files
    return [["line", line_text(Fit(**found["scaling"]["fit"]))], ["drift", drift_text(found)]]


def run(files: Sequence[Data]) -> Rows:
    """What was run, and where."""
    table = [["model", "recipe, target", "rounds", "machine", "versions", "commit"]]
    for data in files:
        versions = ", ".join(f"{package} {version}" for package, version in data["versions"].items())
        kind = f"{data['recipe']}, {data['target']}" if "recipe" in data else data["target"]
        machine = f"{data['machine']['processor']}, {data['machine']['cores']} cores, {data['threads']} threads"
        table.append([label(data), kind, str(data["rounds"]), machine, versions, data["commit"]])
    return table


KINDS: dict[str, Callable[[Sequence[Data]], Rows]] = {
    f.__name__: f for f in (ceilings, rates, bars, steps, lower, sizes, line, run)
}


def filled(text: str, folder: Path) -> str:
    """A document with its tables made anew. Raises UsageError for an unknown kind or a broken results file."""
    return _BLOCK.sub(lambda found: found[1] + _block(found[2], found[3].split(), folder) + found[5], text)


def _block(kind: str, names: list[str], folder: Path) -> str:
    if kind not in KINDS:
        raise UsageError(f"table {kind}: unknown kind: use one of {', '.join(KINDS)}")
    paths = [folder / name for name in names]
    if not all(path.is_file() for path in paths):
        return _MISSING
    head, *body = KINDS[kind]([read_results(path) for path in paths])
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *body))


def main(args: Sequence[str]) -> int:
    """Fill the documents in place; the return value is an exit code."""
    if not args:
        print("usage: python -m goinfer.bench.tables DOCUMENT.md ...", file=sys.stderr)
        return 2
    try:
        for name in args:
            path = Path(name)
            if not path.is_file():
                raise UsageError(f"{path}: no such file")
            text = filled(path.read_text(), path.parent)
            with Output(path, "document").replacing() as file:
                file.write(text.encode())
    except GoinferError as error:
        print(f"tables: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
