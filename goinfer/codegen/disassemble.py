"""Machine code of one kernel as text, for people who want to see what was generated. Needs the compiler extra."""

import importlib.util
import subprocess
from pathlib import Path

from goinfer.bundle_format.errors import UsageError, install_hint
from goinfer.codegen.errors import CompileError
from goinfer.codegen.target import Target


def disassemble(code: bytes | memoryview, exports: dict[str, int], symbol: str, target: Target) -> list[str]:
    """Instructions of an exported function, one a line, in Intel syntax on x86.

    `code` is a whole image. An image keeps no sizes: a function ends where the next one starts, and what follows the
    last function (read-only data) is cut at the last return before it.
    """
    if symbol not in exports:
        raise UsageError(f"no kernel {symbol}; this image has {', '.join(sorted(exports))}")
    start = exports[symbol]
    later = [offset for offset in exports.values() if offset > start]
    body = bytes(code[start : min(later, default=len(code))]).rstrip(b"\0")
    lines = _run_llvm_mc(body, target)
    if not later:
        returns = [i for i, line in enumerate(lines) if line.split()[0] in ("ret", "retq")]
        lines = lines[: returns[-1] + 1] if returns else lines
    return lines


def _run_llvm_mc(body: bytes, target: Target) -> list[str]:
    command = [
        str(_llvm_mc()), "--disassemble", f"--triple={target.triple}", f"--mcpu={target.cpu}",
        "--output-asm-variant=1" if target.arch == "x86_64" else "--output-asm-variant=0",
    ]  # fmt: skip
    if target.features:
        command.append(f"--mattr={target.features}")
    text = " ".join(f"0x{byte:02x}" for byte in body)
    # an unknown byte (data after the last function) ends with status 1 and a warning, after all output
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    lines = [line.strip().replace("\t", " ") for line in done.stdout.splitlines()]
    lines = [line for line in lines if line and not line.startswith(".")]
    if not lines:
        raise CompileError(f"llvm-mc: cannot read this code: {' '.join(done.stderr.split())[:200]}")
    return lines


def _llvm_mc() -> Path:
    spec = importlib.util.find_spec("llvm")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        tool = Path(folder) / "bin" / "llvm-mc"
        if tool.exists():
            return tool
    raise CompileError(f"disassembly needs llvm-mc: {install_hint('compiler')}")
