"""The kernels, one kind a file, written as MLIR for every target."""
