"""The command line: parses, calls, prints; no logic of its own."""
