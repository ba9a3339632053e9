"""`python -m pie_cluster.ranks.worker`: a worker whose ranks are on several machines."""

from __future__ import annotations

import sys
from functools import partial

import zmq

from pie_cluster.config import FurtherRanks, read_member_pair
from pie_cluster.ranks.remote import RemoteRanks, use_interface_of
from pie_cluster.wire.ranks import Start
from pie_inference.__main__ import main
from pie_inference.parallel.processes import RankProcesses
from pie_inference.parallel.ranks import Meeting
from pie_inference.parallel.team import Team
from pie_inference.serving.worker import WorkerConfig, run


def run_first(endpoint: str, config: WorkerConfig) -> int:
    """Runs the first rank. Where the others are is in the settings of the server's extension."""
    further = FurtherRanks.model_validate(config.extension["ranks"])
    config = config.model_copy(update={"machines": further.machines})
    return run(endpoint, config, partial(start_team, further))


def start_team(
    further: FurtherRanks, context: zmq.Context[zmq.Socket[bytes]], size: int, config: str
) -> Team:
    """Opens the meeting, starts the ranks of this machine, and has hosts start those of theirs, so
    many in all, with the worker's own configuration, as JSON. Raises `LoadError` if a host does not
    answer, and `KeyProblem` if the members' keys cannot be read.
    """
    each = size // further.machines
    use_interface_of(further.address)
    meeting = Meeting.open(further.address)
    pair = read_member_pair(further.keys)
    remote = []
    for number, endpoint in enumerate(further.hosts, 1):
        ranks = list(range(number * each, (number + 1) * each))
        remote.append(RemoteRanks(context, endpoint, pair, Start(ranks, config, meeting.place)))
    return Team(RankProcesses(context, range(1, each), config, meeting.place), meeting, remote)


if __name__ == "__main__":
    sys.exit(main(run_first))
