"""Our answers and times beside those of others, measured in one run: `python -m benchmarks`."""
