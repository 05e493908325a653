"""Open Harness flows."""
