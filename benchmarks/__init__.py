"""Benchmarks of pie_py against papers and peers; run from a checkout, not in the wheel."""
