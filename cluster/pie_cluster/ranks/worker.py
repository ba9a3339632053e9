"""`python -m pie_cluster.ranks.worker`: a worker whose ranks are on several machines."""

from __future__ import annotations

import sys
from functools import partial

from pie_cluster.config import FurtherRanks
from pie_cluster.ranks.remote import start_team
from pie_inference.__main__ import main
from pie_inference.serving.worker import WorkerConfig, run


def run_first(endpoint: str, config: WorkerConfig) -> int:
    """Runs the first rank. Where the others are is in the settings of the server's extension."""
    further = FurtherRanks.model_validate(config.extension["ranks"])
    config = config.model_copy(update={"machines": further.machines})
    return run(endpoint, config, partial(start_team, further))


if __name__ == "__main__":
    sys.exit(main(run_first))
