"""Comparisons on real data: what the pages in docs/evidence show, from the runs behind them.

Each module trains what its page needs, appends every finished run to a file in docs/evidence/runs
(where a run is found there, it is not repeated), and writes the tables and pictures of the page.
"""
