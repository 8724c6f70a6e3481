"""A picture of results files: where the time of a forward goes, model by model, and the line of time over size.

    python -m goinfer.bench.picture OUT.svg RESULTS.json ...

The same files give the same bytes. Files of models need a profile (`goinfer bench --profile -o`); a file of a series
over sizes (`goinfer bench --sizes -o`) adds the line.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from goinfer.bench.bars import Data
from goinfer.bench.profile import OUTSIDE
from goinfer.bench.read_results import label, read_results
from goinfer.bench.scaling import DECODE, Fit, line_text
from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.bundle_format.output import Output

KINDS = {
    "ffn_gated": "#0072b2", "ffn_down": "#56b4e9", "attn_qkv": "#009e73", "attn_output": "#8fd3bd",
    "attn": "#d55e00", "lm_head": "#e69f00", "other": "#999999", OUTSIDE: "#333333", "waiting": "#e8e8e8",
}  # fmt: skip
"""Kinds of steps that are drawn apart, with their colours. All other steps are `other`; the time that thread 0 waits at
barriers is taken out of every kind and drawn as `waiting`."""

_WIDTH, _LEFT, _BAR, _ROW = 860, 210, 550, 24
_PLOT_HEIGHT = 240


def draw(files: Sequence[Data]) -> str:
    """The SVG text."""
    models = [data for data in files if data.get("profiles")]
    series = next((data for data in files if "scaling" in data), None)
    if not models and series is None:
        raise UsageError("nothing to draw: none of the files has a profile or a series over sizes")
    parts: list[str] = []
    y = 24.0
    if models:
        y = _legend(parts, y)
        for title in dict.fromkeys(title for data in models for title in data["profiles"]):
            y = _bars(parts, title, [data for data in models if title in data["profiles"]], y + 14)
    if series is not None:
        y = _line(parts, series, y + 20)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 10:.0f}" width="{_WIDTH}"'
        f' height="{y + 10:.0f}" font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{y + 10:.0f}" fill="#ffffff"/>', *parts, "</svg>"]) + "\n"


def times(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds by kind of step, in the order of KINDS; they sum to the whole forward."""
    out = dict.fromkeys(KINDS, 0.0)
    for line in lines:
        out[line["name"] if line["name"] in KINDS else "other"] += line["seconds"] - line["waiting"]
        out["waiting"] += line["waiting"]
    return out


def _legend(parts: list[str], y: float) -> float:
    x = 20.0
    for kind, colour in KINDS.items():
        parts += [_rect(x, y - 10, 12, 12, colour), _text(x + 16, y, kind)]
        x += 30 + 6.5 * len(kind)
    return y + 6


def _bars(parts: list[str], title: str, models: Sequence[Data], y: float) -> float:
    parts.append(_text(20, y + 12, f"{title}: share of the time", weight="bold"))
    y += 20
    for data in models:
        taken = times(data["profiles"][title])
        total = sum(taken.values())
        parts.append(_text(_LEFT - 8, y + 15, label(data), anchor="end"))
        x = float(_LEFT)
        for kind, seconds in taken.items():
            width = _BAR * seconds / total
            parts.append(_rect(x, y, width, _ROW - 4, KINDS[kind], f"{kind}: {seconds / total:.1%}"))
            if width > 30:
                ink = "#000000" if kind in ("waiting", "attn_output", "ffn_down", "lm_head") else "#ffffff"
                parts.append(_text(x + width / 2, y + 15, f"{seconds / total:.0%}", anchor="middle", fill=ink))
            x += width
        parts.append(_text(_LEFT + _BAR + 8, y + 15, f"{1e3 * total:.1f} ms"))
        y += _ROW
    return y


def _line(parts: list[str], series: Data, y: float) -> float:
    """Points of (bytes, seconds) of a token and the line through them, both axes from 0."""
    sizes, fit = series["scaling"]["sizes"], Fit(**series["scaling"]["fit"])
    points = [(size["bytes"], 1 / size["rates"][DECODE]["median"]) for size in sizes]
    right, top = 1.08 * max(b for b, _ in points), 1.15 * max(s for _, s in points)
    bottom = y + 20 + _PLOT_HEIGHT

    def place(size: float, seconds: float) -> tuple[float, float]:
        return _LEFT + _BAR * size / right, bottom - _PLOT_HEIGHT * seconds / top

    parts.append(_text(20, y + 12, "time of a token over the bytes it reads", weight="bold"))
    parts += [_segment((_LEFT, bottom), (_LEFT + _BAR, bottom)), _segment((_LEFT, bottom), (_LEFT, y + 20))]
    ends = [place(size, fit.intercept_ms / 1e3 + size / fit.gb_per_s / 1e9) for size in (0.0, right)]
    parts.append(_segment(ends[0], ends[1], "#0072b2"))
    for (size, seconds), measured in zip(points, sizes, strict=True):
        x, at = place(size, seconds)
        parts.append(f'<circle cx="{x:.1f}" cy="{at:.1f}" r="4" fill="#d55e00"/>')
        parts.append(_text(x + 8, at + 14, f"{measured['name']}: {1e3 * seconds:.1f} ms"))
        parts.append(_text(x, bottom + 16, f"{size / 1e6:.0f} MB", anchor="middle"))
    parts.append(_text(_LEFT, bottom + 36, line_text(fit)))
    return bottom + 40


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    inner = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}">{inner}</rect>'


def _segment(start: tuple[float, float], end: tuple[float, float], colour: str = "#666666") -> str:
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {ends} stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal", fill: str = "#000000") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def main(args: Sequence[str]) -> int:
    """Write the picture; the return value is an exit code."""
    if len(args) < 2:
        print("usage: python -m goinfer.bench.picture OUT.svg RESULTS.json ...", file=sys.stderr)
        return 2
    try:
        svg = draw([read_results(Path(path)) for path in args[1:]])
        with Output(args[0], "picture").replacing() as file:
            file.write(svg.encode())
    except GoinferError as error:
        print(f"picture: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
