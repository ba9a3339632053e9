"""Gives processes that a test starts the simulated GPU. Python reads this file when it starts."""

import sys

MODULES = ("pie_inference", "benchmarks.gpu", "benchmarks.gpu.run")

if any(name in sys.orig_argv for name in MODULES):
    from simulated_gpu import driver, interpreted, kernels

    interpreted.install()
    driver.install()
    kernels.install()
