"""Linking objects into a flat image: what is refused, and that code runs from any page-aligned address.

Seen red with: the PC-relative addend dropped; writable sections let through; undefined symbols taken as address 0.
"""

import ctypes
import mmap
import platform

import numpy as np
import pytest

from goinfer.codegen.emit_object import emit_object
from goinfer.codegen.errors import CompileError
from goinfer.codegen.image import link
from goinfer.codegen.target import TARGETS, target_named
from tests.conftest import native_target

X86 = target_named("x86-64-v3")

TABLE = """
@t = private unnamed_addr constant [4 x i32] [i32 11, i32 22, i32 33, i32 44], align 16
define i32 @pick(i64 %i) {
  %p = getelementptr [4 x i32], ptr @t, i64 0, i64 %i
  %v = load i32, ptr %p
  ret i32 %v
}
"""
CALLS = """
declare i32 @pick(i64)
define i32 @twice(i64 %i) {
  %a = call i32 @pick(i64 %i)
  %b = add i32 %a, %a
  ret i32 %b
}
"""


def test_code_and_constants_of_several_objects_run_from_two_addresses() -> None:
    target = target_named(native_target())
    image = link({"a": emit_object(TABLE, target), "b": emit_object(CALLS, target)})
    assert set(image.exports) == {"pick", "twice"}
    for shift in (0, mmap.PAGESIZE):
        area = mmap.mmap(-1, shift + len(image.code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        area[shift : shift + len(image.code)] = image.code
        base = int(np.frombuffer(area, np.uint8).ctypes.data) + shift
        for symbol, want in (("pick", [11, 22, 33, 44]), ("twice", [22, 44, 66, 88])):
            function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(base + image.exports[symbol])
            assert [function(i) for i in range(4)] == want


def test_an_undefined_symbol_is_refused_by_name() -> None:
    for target in TARGETS.values():
        with pytest.raises(CompileError, match="kernel b: undefined symbol 'pick'"):
            link({"b": emit_object(CALLS, target)})


def test_a_writable_section_is_refused() -> None:
    text = "@state = global i32 5\ndefine ptr @f() {\n  ret ptr @state\n}\n"
    with pytest.raises(CompileError, match=r"kernel a: section \.data is writable"):
        link({"a": emit_object(text, X86)})


def test_a_relocation_kind_outside_the_list_is_refused() -> None:
    """An absolute address inside constants would need a loader to fix it up."""
    text = (
        "define i32 @f() {\n  ret i32 1\n}\n"
        '@table = private constant [1 x i64] [i64 ptrtoint (ptr @f to i64)], section ".rodata"\n'
        "define i64 @g(i64 %i) {\n  %p = getelementptr [1 x i64], ptr @table, i64 0, i64 %i\n"
        "  %v = load i64, ptr %p\n  ret i64 %v\n}\n"
    )
    with pytest.raises(CompileError, match=r"relocation type \d+ at 'f' is not supported"):
        link({"a": emit_object(text, X86)})


def test_a_symbol_defined_twice_is_refused() -> None:
    obj = emit_object(TABLE, X86)
    with pytest.raises(CompileError, match="symbol pick is defined twice"):
        link({"a": obj, "b": obj})


def test_invalid_ir_is_a_typed_error() -> None:
    with pytest.raises(CompileError, match="x86-64-v3: LLVM rejected the IR"):
        emit_object("define i32 @f() { ret i64 1 }", X86)


def test_this_machine_is_covered() -> None:
    assert any(t.arch == platform.machine() for t in TARGETS.values())
