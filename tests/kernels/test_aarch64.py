"""The conformance tests of matmul, qkv_post and attention once more, with aarch64 kernels under qemu.

Every test of those modules that takes a target runs here: the first of its cases always, all of them under the marker
heavy. The row kernels' own tests name the aarch64 target themselves.
"""

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.kernels import emulator, test_attention, test_matmul, test_matmul_gated, test_qkv_post
from tests.kernels.harness import run

TARGETS = ("aarch64-dotprod", "aarch64-i8mm")
COMPILE_ONLY = {"test_every_target_compiles"}

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=f"aarch64 kernels: {emulator.missing()}")


def arguments_of(test: Callable[..., None]) -> list[dict[str, Any]] | None:
    """Keyword arguments of every case of a parametrised test, target left out; None if it takes no target."""
    columns: list[list[dict[str, Any]]] = []
    takes_target = False
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names = [n.strip() for n in mark.args[0].split(",")] if isinstance(mark.args[0], str) else list(mark.args[0])
        if names == ["target"]:
            takes_target = True
            continue
        rows = [[row] if len(names) == 1 else row for row in mark.args[1]]
        columns.append([dict(zip(names, row, strict=True)) for row in rows])
    if not takes_target:
        return None
    return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*columns)]


def cases() -> Iterator[Any]:
    """One parameter set for each case of each test; i8mm differs from dotprod in products alone."""
    for module in (test_matmul, test_matmul_gated, test_qkv_post, test_attention):
        assert isinstance(module, ModuleType)
        for name, test in vars(module).items():
            found = arguments_of(test) if name.startswith("test_") and name not in COMPILE_ONLY else None
            for i, arguments in enumerate(found or []):
                label = f"{module.__name__.rsplit('_', 1)[-1]}-{name}-{i}"
                for target in TARGETS if module in (test_matmul, test_matmul_gated) else TARGETS[:1]:
                    marks = [pytest.mark.heavy] if i else []
                    yield pytest.param(test, target, arguments, id=f"{label}-{target}", marks=marks)


@pytest.mark.parametrize("test, target, arguments", list(cases()))
def test_on_aarch64(test: Callable[..., None], target: str, arguments: dict[str, Any]) -> None:
    test(target=target, **arguments)


@pytest.mark.parametrize("fmt", ["int8int8", "int4", "int4min"])
def test_i8mm_gives_the_bytes_of_dotprod(fmt: str) -> None:
    """Both sum exactly in int32 and add the groups alike. Seen red with: the two rows of a pair swapped."""
    results = []
    for target in TARGETS:
        call, *_ = test_matmul.case(fmt, 40, 160, 11, seed=2)
        run(call, target)
        results.append(call.pointers[2].tobytes())
    assert results[0] == results[1]


def test_the_modules_were_found() -> None:
    """A renamed parameter must not silently empty this file."""
    assert len(list(cases())) > 200


def test_a_crash_of_emulated_code_is_an_error() -> None:
    block = emulator.Block(1)
    with pytest.raises(RuntimeError, match="emulated call failed"):
        emulator.call(b"\0" * 64, 0, block, [[0] * 5])
