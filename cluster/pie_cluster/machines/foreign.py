"""A Ray that was there before the cluster: how it is found."""

from __future__ import annotations

import subprocess

from ray._common.usage.usage_lib import get_cluster_metadata
from ray._private.utils import check_version_info
from ray._raylet import GcsClient  # type: ignore[attr-defined]

from pie_cluster.machines.settings import ClusterProblem, WrongSettings
from pie_py.config.endpoint import BadEndpoint, answers, parse_endpoint
from pie_py.config.processes import python_command


def find_ray(address: str) -> str:
    """Where the head is, as HOST:PORT, of a Ray of which this machine is a node; `auto` stands for
    the Ray of this machine. Raises `WrongSettings` for an address that is none, or one of Ray's
    server for clients, and `ClusterProblem` if this process cannot be a driver there.
    """
    if address.startswith("ray://"):
        raise WrongSettings(
            f"{address} is for drivers outside of Ray, and nodes need a folder on a machine of it:"
            " call this on one, and name the head of Ray instead (HOST:6379) or auto"
        )
    try:
        if address != "auto" and not answers(parse_endpoint(f"tcp://{address}")):
            raise ClusterProblem(
                f"no Ray answers at {address}: start one with `ray start --head`, or leave"
                " --address out"
            )
    except BadEndpoint:
        raise WrongSettings(f"{address} is no address of Ray: give HOST:PORT or auto") from None
    try:
        if address != "auto":  # what is no Ray is waited for, for minutes, by a driver
            check_version_info(get_cluster_metadata(GcsClient(address=address)), "this machine")
    except Exception as error:  # noqa: BLE001  Ray raises what it likes
        raise _not_taken(address, str(error)) from None
    # A process of its own: a driver takes over signals, for good.
    command = [*python_command(), "-c", _FIND, address]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise _not_taken(address, (asked.stderr.strip() or "it says nothing").splitlines()[-1])
    return asked.stdout.splitlines()[-1]


_FIND = """
import logging, sys, ray
with ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR) as driver:
    print(driver.address_info["gcs_address"])
"""


def _not_taken(address: str, why: str) -> ClusterProblem:
    return ClusterProblem(
        f"the Ray at {address} does not take this machine: is it one, with the same versions of Ray"
        f" and Python, and is this machine a node of it? {why}"
    )
