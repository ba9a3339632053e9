"""The command: `python -m codegen [--check]`."""

from __future__ import annotations

import argparse
import sys

from codegen import stale, write


def main() -> None:
    """Writes the generated files, or only says which ones are not up to date (status 1 then)."""
    parser = argparse.ArgumentParser(prog="python -m codegen", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file is stale"
    )
    if not parser.parse_args().check:
        for path in write():
            print(f"wrote {path}")
        return
    paths = list(stale())
    for path in paths:
        print(f"{path} is stale: run `python -m codegen`", file=sys.stderr)
    sys.exit(bool(paths))


if __name__ == "__main__":
    main()
