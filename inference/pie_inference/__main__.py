"""Starts a worker: `python -m pie_inference --connect ENDPOINT --config JSON`."""

from __future__ import annotations

import argparse
import sys

from pydantic import ValidationError

from pie_inference.worker import WorkerConfig, run


def main() -> int:
    """Reads the command line and runs the worker."""
    parser = argparse.ArgumentParser(prog="pie_inference", description="A pie_py inference worker.")
    parser.add_argument("--connect", required=True, help="ZeroMQ endpoint of the control process")
    parser.add_argument("--config", required=True, help="models and threads, as JSON")
    options = parser.parse_args()
    try:
        config = WorkerConfig.model_validate_json(options.config)
    except ValidationError as error:
        parser.error(f"--config: {error}")
    return run(options.connect, config)


if __name__ == "__main__":
    sys.exit(main())
