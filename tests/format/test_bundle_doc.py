"""docs/format.md and spec.py state the same numbers; the second reader shares no code with goinfer."""

import ast
import re
import struct
from pathlib import Path

import second_reader

from goinfer.bundle_format import errors, index, spec

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "format.md").read_text("utf-8")


def table(header):
    """Rows of the table of the page that begins with `header`, as lists of cells."""
    lines = PAGE.split(header, 1)[1].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_constants():
    documented = {name: value for name, value, _ in table("| name | value | meaning |")}
    assert bytes.fromhex(documented.pop("MAGIC")) == spec.MAGIC
    numbers = {name: int(value) for name, value in documented.items()}
    assert numbers == {name: value for name, value in vars(spec).items() if name.isupper() and type(value) is int}


def test_kinds_and_codecs():
    rows = table("| kind | number | | codec | number |")
    assert {row[0]: int(row[1]) for row in rows} == dict(spec.KINDS)
    assert {row[3]: int(row[4]) for row in rows if row[3]} == dict(spec.CODECS)
    assert [row[0] for row in table("| kind | name | contents |")] == list(spec.KINDS)


def test_header_fields():
    rows = table("| offset | bytes | field | rule |")
    sizes = [int(row[1]) for row in rows]
    assert [int(row[0]) for row in rows] == [sum(sizes[:i]) for i in range(len(sizes))]
    assert sum(sizes) == spec.HEADER_SIZE == struct.calcsize(spec.HEADER_STRUCT)
    letters = re.findall(r"(\d*)([sIQ])", spec.HEADER_STRUCT)
    assert sizes == [int(count) if letter == "s" else struct.calcsize(letter) for count, letter in letters]


def test_index_keys():
    assert tuple(row[0] for row in table("| key | type | meaning |")) == index._SECTION_KEYS


def test_name_characters():
    allowed = {chr(code) for code in range(0x300) if re.fullmatch(spec.NAME_PATTERN, chr(code))}
    assert allowed == second_reader.NAME_CHARACTERS


def test_second_reader_is_independent():
    tree = ast.parse((Path(__file__).parent / "second_reader.py").read_text("utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported == {"struct", "msgpack", "zstandard"}


def test_bundle_format_imports_nothing_of_ours_and_functions_are_short():
    owned = list((ROOT / "goinfer" / "bundle_format").glob("*.py"))
    assert len(owned) > 10
    for path in owned:
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("goinfer"):
                assert node.module.startswith("goinfer.bundle_format"), (path.name, node.module)
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, (path.name, node.name)


def test_each_error_class_has_a_test():
    tests = "".join(p.read_text("utf-8") for p in Path(__file__).parent.glob("test_*.py"))
    classes = [n for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.BundleError)]
    assert [name for name in classes if name not in tests and name not in ("BundleError",)] == []
