"""`python -m pie_py`: the command line, as `pie-py`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The folder one stands in, which `-m` puts before the standard library; `pie-py` does not.
        del sys.path[0]

    from pie_py.cli import run

    run()
