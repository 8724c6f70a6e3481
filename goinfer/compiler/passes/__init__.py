"""Graph rewrites, one a file; each takes and leaves a verified graph."""
