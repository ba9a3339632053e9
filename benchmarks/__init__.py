"""Benchmarks that hold pie_py against papers and peers; run from a checkout, no part of the
package.
"""
