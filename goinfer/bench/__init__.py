"""Measuring: the machine's ceilings, a bundle, and peers on the same machine, interleaved in one run."""
