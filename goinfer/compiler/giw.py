"""The module MLIR's Python bindings look for when they meet a `giw` op.

It is empty, since ops are handled generically, but it must exist: without it the bindings search the import path
again for every single op (ten times the run time of the passes).
"""
