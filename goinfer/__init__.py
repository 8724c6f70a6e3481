"""goinfer: an ahead-of-time compiler for language-model checkpoints, and the runtime of its bundles."""

__version__ = "0.1.0"
