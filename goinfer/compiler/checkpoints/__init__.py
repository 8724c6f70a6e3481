"""Readers of checkpoints: GGUF files and safetensors directories."""
