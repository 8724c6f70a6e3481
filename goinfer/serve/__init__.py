"""HTTP server over the runtime."""
