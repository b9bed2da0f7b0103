"""Our answers and times compared with other packages, in one run: `python -m benchmarks`."""
