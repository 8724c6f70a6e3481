"""The .giw file: layout, writer, reader, verify. Knows bytes, not models."""
