"""Starts a worker: `python -m pie_inference --connect ENDPOINT --config JSON`.

With `--follow ENDPOINT --meeting PLACE --rank N` it is a further rank of a worker, which its first
rank starts.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys

# Nothing of what is imported is ever freed: to look through it takes a tenth of a second.
gc.disable()

from pydantic import ValidationError  # noqa: E402

from pie_py.config.left_out import left_out  # noqa: E402
from pie_py.config.memory import bound_collections  # noqa: E402

# What PyTorch's compilers need, which import it themselves, takes a fifth of its own time. For
# "rich" see `set_up_logs`.
with left_out("torch._meta_registrations", "rich"):
    from pie_inference.serving.worker import WorkerConfig, follow, run


def main() -> int:
    """Reads the command line and runs the worker."""
    parser = argparse.ArgumentParser(prog="pie_inference", description="A pie_py inference worker.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--connect", help="ZeroMQ endpoint of the control process")
    where.add_argument("--follow", help="endpoint that passes on what the first rank is sent")
    parser.add_argument("--meeting", default="", help="where it meets the other ranks")
    parser.add_argument("--rank", type=int, default=0, help="of a further rank")
    parser.add_argument("--config", required=True, help="models and threads, as JSON")
    options = parser.parse_args()
    bound_collections()
    try:
        config = WorkerConfig.model_validate_json(options.config)
    except ValidationError as error:
        parser.error(f"--config: {error}")
    if options.follow is not None:
        return follow(options.follow, options.meeting, options.rank, config)
    return run(options.connect, config)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The system frees all at once. Python and PyTorch take up to seconds to do it one by one, for
    # which the control process, and who ends it, would wait.
    os._exit(status)
