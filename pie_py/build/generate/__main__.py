"""The command: `python -m pie_py.build.generate [--check]`."""

from __future__ import annotations

import argparse
import sys

from pie_py.build.generate import stale, write


def main() -> None:
    """Writes the generated files, or only says which ones are not up to date (status 1 then)."""
    parser = argparse.ArgumentParser(prog="python -m pie_py.build.generate", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file is stale"
    )
    if not parser.parse_args().check:
        for path in write():
            print(f"wrote {path}")
        return
    paths = list(stale())
    for path in paths:
        print(f"{path} is stale: run `python -m pie_py.build.generate`", file=sys.stderr)
    sys.exit(bool(paths))


if __name__ == "__main__":
    main()
