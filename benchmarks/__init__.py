"""Measurements side by side with others and with the link's limit. Each module prints one JSON object with --json."""
