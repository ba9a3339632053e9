"""The network between ranks on several machines."""

from __future__ import annotations

import os

import psutil

from pie_inference.errors import LoadError


def use_interface_of(address: str) -> None:
    """Has this process, and those that it starts, reach other ranks by an address of this machine.
    The host's name may lead elsewhere.

    Raises:
        LoadError: if the machine has no such address.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
            return
    raise LoadError(f"ranks on several machines: {address} is no address of this machine")
