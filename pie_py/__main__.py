"""`python -m pie_py`: the command line, as `pie-py`."""

from pie_py.cli import run

if __name__ == "__main__":
    run()
