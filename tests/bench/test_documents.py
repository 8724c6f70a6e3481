"""The picture and the tables that are made from results files, and the tables in docs/performance.md."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from goinfer.bench import picture, tables
from goinfer.bench.bars import judge
from goinfer.bundle_format.errors import UsageError

DOCUMENT = Path(__file__).parents[2] / "docs" / "performance.md"
SPREAD = {"median": 10.0, "low": 9.0, "high": 11.0}


def line(name: str, seconds: float, waiting: float = 0.0, nbytes: int = 0) -> dict[str, Any]:
    return {"name": name, "steps": 1, "seconds": seconds, "bytes": nbytes, "products": nbytes, "waiting": waiting}


def model_run(name: str = "m.Q4_0.giw") -> dict[str, Any]:
    row = {"rates": {"goinfer": SPREAD}, "ratios": {"llama.cpp": SPREAD}, "samples": {"goinfer": [10.0]},
           "share": {"of": "reading", "samples": [0.8], **SPREAD, "median": 0.8}}  # fmt: skip
    profile = [line("ffn_down", 0.006, 0.001, 40_000_000), line("attn", 0.003), line("argmax", 0.001)]
    data = {
        "bundle": {"name": name, "bytes": 1e8, "weights": 1e8}, "source": {"type": "Q4_0"}, "shape": None,
        "recipe": "int4", "target": "best", "threads": 2, "rounds": 1, "commit": "abc", "versions": {"goinfer": "1"},
        "machine": {"processor": "P", "cores": 2}, "token": {"bytes": 1e8}, "peers": {"llama.cpp": {"type": "Q4_0"}},
        "ceilings": {"target": "best", "read_gb_per_s": 10.0, "dot_gmac_per_s": 100.0, "readers": {"1 stream": 10.0},
                     "dot_loops": {"4 chains": 100.0}},
        "tokens_per_second": {"decode at 16": row}, "seconds": {}, "memory": {}, "not_measured": [],
        "profiles": {"prefill 512": profile, "decode at 16": profile},
        "lower_targets": {"low": {"dot_loops": {"4 chains": 50.0}, "work": {
            "decode at 16": {"rates": {"low": SPREAD}, "ratios": {"best": SPREAD}}}}},
    }  # fmt: skip
    data["bars"] = [vars(outcome) for outcome in judge(data)]
    return data


def series() -> dict[str, Any]:
    sizes = [{"name": n, "bytes": b, "rates": {"decode at 16": {**SPREAD, "median": r}, "prefill 512": SPREAD,
              "reading": SPREAD}, "shares": {"decode at 16": SPREAD, "prefill 512": SPREAD},
              "samples": {"decode at 16": [r]}} for n, b, r in (("s", 1e8, 100.0), ("t", 2e8, 50.0))]  # fmt: skip
    fit = {"gb_per_s": 10.0, "intercept_ms": 0.0, "r_squared": 1.0, "largest_residual": 0.0, "at": "s"}
    data = {"target": "best", "threads": 2, "rounds": 1, "scaling": {"sizes": sizes, "fit": fit}}
    return {**data, "bars": [vars(outcome) for outcome in judge(data)]}


def test_the_same_files_give_the_same_picture(tmp_path: Path) -> None:
    """Well-formed, every model and size named, and the bars as wide as the whole. Seen red with waiting added twice."""
    paths = []
    for i, data in enumerate((model_run("a<b.giw"), model_run(), series())):
        paths.append(str(tmp_path / f"{i}.json"))
        Path(paths[-1]).write_text(json.dumps(data))
    assert picture.main([str(tmp_path / "1.svg"), *paths]) == 0 == picture.main([str(tmp_path / "2.svg"), *paths])
    text = (tmp_path / "1.svg").read_text()
    assert text == (tmp_path / "2.svg").read_text()
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    words = [element.text for element in root.iter(f"{space}text")]
    assert {"a<b Q4_0", "m Q4_0", "prefill 512: share of the time", "s: 10.0 ms", "10.0 ms"} <= set(words)
    widths = [float(r.get("width", 0)) for r in root.iter(f"{space}rect") if r.find(f"{space}title") is not None]
    assert sum(widths) == pytest.approx(4 * picture._BAR, abs=2)
    assert len(list(root.iter(f"{space}circle"))) == 2


def test_times_by_kind_sum_to_the_forward() -> None:
    taken = picture.times(model_run()["profiles"]["decode at 16"])
    assert taken["ffn_down"] == pytest.approx(0.005) and taken["waiting"] == pytest.approx(0.001)
    assert taken["other"] == pytest.approx(0.001) and sum(taken.values()) == pytest.approx(0.010)


def test_nothing_to_draw_is_an_error(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        picture.draw([{"bars": []}])
    (tmp_path / "x.json").write_text("[1]")
    for name in ("x.json", "none.json"):
        assert picture.main([str(tmp_path / "o.svg"), str(tmp_path / name)]) == 1
        assert "no results file" in capsys.readouterr().err
    assert picture.main([]) == 2 and not (tmp_path / "o.svg").exists()


def test_tables_are_filled_from_files(tmp_path: Path) -> None:
    """Every kind, twice with the same outcome; a file that is not there yet is said."""
    (tmp_path / "m.json").write_text(json.dumps(model_run()))
    (tmp_path / "s.json").write_text(json.dumps({**series(), "machine": {"processor": "P", "cores": 2},
                                                 "versions": {}, "commit": ""}))  # fmt: skip
    files = {"bars": "m.json m.json", "sizes": "s.json", "line": "s.json", "run": "m.json s.json"}
    blocks = [f"<!-- table {kind} {files.get(kind, 'm.json')} -->\nold\n<!-- end -->\n" for kind in tables.KINDS]
    document = tmp_path / "d.md"
    document.write_text("\n".join(["before\n", *blocks, "<!-- table run no.json -->\n<!-- end -->\n", "after\n"]))
    assert tables.main([str(document)]) == 0
    text = document.read_text()
    assert tables.main([str(document)]) == 0 and document.read_text() == text
    assert text.startswith("before") and text.endswith("after\n") and "old" not in text
    assert "| ffn_down | 40.00 | 40.00 | 4.000 | 4.000 | 6.000, 67%, 17% | 6.000, 67%, 17% |" in text
    assert "| decode at 16 | 10.0 (9.0..11.0) | 80% of reading | 10.00 (9.00..11.00) |" in text
    assert "| s | 100.0 | 100.0 (9.0..11.0) |" in text and "R^2 1.0000" in text
    assert "not measured, llama.cpp reads" not in text and "*Not measured yet.*" in text


def test_an_unknown_table_is_an_error(tmp_path: Path, capsys: Any) -> None:
    document = tmp_path / "d.md"
    document.write_text("<!-- table odd m.json -->\n<!-- end -->\n")
    assert tables.main([str(document)]) == 1 and tables.main([str(tmp_path / "none.md")]) == 1
    errors = capsys.readouterr().err
    assert "table odd: unknown kind: use one of ceilings" in errors and "none.md: no such file" in errors
    assert document.read_text() == "<!-- table odd m.json -->\n<!-- end -->\n"


def test_the_tables_of_the_document_are_those_of_its_files() -> None:
    """Run python -m goinfer.bench.tables docs/performance.md where this fails. Seen red with one word changed."""
    text = DOCUMENT.read_text()
    assert "<!-- table bars" in text and tables.filled(text, DOCUMENT.parent) == text
