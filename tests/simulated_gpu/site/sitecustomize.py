"""Gives processes that a test starts the simulated GPU. Python reads this file when it starts."""

import sys

if "pie_inference" in sys.orig_argv:  # a worker
    from simulated_gpu import driver, interpreted, kernels

    interpreted.install()
    driver.install()
    kernels.install()
