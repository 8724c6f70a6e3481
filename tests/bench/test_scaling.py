"""The series over sizes: the line, and that one model at a time is on the disk."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest

from goinfer.bench import ceilings, scaling, synthetic
from goinfer.bench.scaling import fit_line
from goinfer.bundle_format.errors import UsageError
from goinfer.cli.main import main
from tests.conftest import native_target


def test_the_line_through_exact_points() -> None:
    """3 ms + bytes / 20 GB/s. Seen red with the intercept left in seconds."""
    sizes = [1e8, 4e8, 1e9, 2e9]
    fit = fit_line("abcd", sizes, [3e-3 + size / 20e9 for size in sizes])
    assert fit.gb_per_s == pytest.approx(20) and fit.intercept_ms == pytest.approx(3)
    assert fit.r_squared == pytest.approx(1) and abs(fit.largest_residual) < 1e-9


def test_the_largest_distance_is_relative_and_signed() -> None:
    """Least squares over (1, 1), (2, 2), (3, 3), (4, 3): y = 0.5 + 0.7 x, R^2 2.45 / 2.75; 1 lies the farthest off."""
    fit = fit_line("abcd", [1e9, 2e9, 3e9, 4e9], [1, 2, 3, 3])
    assert fit.intercept_ms == pytest.approx(500) and fit.gb_per_s == pytest.approx(1 / 0.7)
    assert fit.r_squared == pytest.approx(2.45 / 2.75)
    assert (fit.at, fit.largest_residual) == ("a", pytest.approx(-0.2))


def test_a_line_that_does_not_rise_has_no_rate() -> None:
    fit = fit_line("ab", [1e9, 2e9], [2, 1])
    assert math.isnan(fit.gb_per_s)
    assert math.isnan(fit_line("ab", [1e9, 2e9], [1, 1]).r_squared)


def test_a_series(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    """Two tiny shapes through the command. Seen red with the source kept until the bundle has been measured."""
    monkeypatch.setattr(ceilings, "STREAM_BYTES", 1 << 22)
    monkeypatch.setattr(ceilings, "_DOT_PRODUCTS", 1 << 16)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shapes = {name: synthetic.Shape("llama", n, 64, 2, 1, 96, 300, True, 1024) for name, n in (("s", 1), ("t", 2))}
    monkeypatch.setattr(synthetic, "SHAPES", shapes)
    held: list[list[str]] = []
    measure = scaling._rounds

    def watched(*args: Any) -> dict[str, Any]:
        held.append(sorted(path.name for path in tmp_path.glob("goinfer-bench-*/*")))
        return measure(*args)

    monkeypatch.setattr(scaling, "_rounds", watched)
    out = tmp_path / "s.json"
    assert main(["bench", "--sizes", "s,t", "--rounds", "2", "--target", native_target(), "-o", str(out)]) == 0
    assert held == [["s.giw"], ["t.giw"]] and not list(tmp_path.glob("goinfer-bench-*"))
    found, text = json.loads(out.read_text()), capsys.readouterr().out
    small, large = found["scaling"]["sizes"]
    assert small["bytes"] < large["bytes"] and len(small["samples"]["decode at 16"]) == 2
    assert set(small["shares"]) == {"decode at 16", "prefill 512"}
    assert set(found["scaling"]["fit"]) == {"gb_per_s", "intercept_ms", "r_squared", "largest_residual", "at"}
    assert "the bar is for four sizes" in text and "the machine's reading differed by" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--sizes", "135m"], "--sizes: a line needs two shapes"),
        (["--sizes", "135m,135m"], "--sizes: a line needs two shapes"),
        (["--sizes", "135m,9b"], "shape 9b: unknown"),
        (["--sizes", "135m,1b", "--quick"], "--sizes: makes its own models"),
        (["--sizes", "135m,1b", "--target", "z80"], "unknown target 'z80'"),
    ],
)
def test_bad_usage(args: list[str], message: str, capsys: Any) -> None:
    assert main(["bench", *args]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_bad_shape_is_refused_before_the_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "Meter", lambda *_: pytest.fail("measured first"))
    with pytest.raises(UsageError, match="shape 9b"):
        scaling.run(["135m", "9b"], 2, 1, None, lambda _: None)
