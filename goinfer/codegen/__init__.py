"""Plan to machine code: targets, MLIR kernels, LLVM back end, code images."""
