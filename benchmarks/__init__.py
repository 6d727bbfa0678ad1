"""Measurements beside the goals; each module is `python -m benchmarks.NAME [--json] [--only FIGURE]`."""
