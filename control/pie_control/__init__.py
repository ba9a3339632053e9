"""pie_control: the control process. Runs inferlets as fibers on one trio thread and batches their
calls.
"""
