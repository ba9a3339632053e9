"""The client under asyncio and trio; `pie_py.client.sync` has the same names for plain code."""

from pie_py.client.client import Client
from pie_py.client.errors import (
    ClientError,
    ConnectionLost,
    InferletFailed,
    RpcError,
    ServerUnreachable,
    UsageError,
)
from pie_py.client.functions import Function
from pie_py.client.instance import Instance
from pie_py.client.remote.call import Call, Remote
from pie_py.client.remote.reach import inferlet
from pie_py.client.remote.values import CannotTravel
from pie_py.config.keys import ClientKey

__all__ = [
    "Call",
    "CannotTravel",
    "Client",
    "ClientError",
    "ClientKey",
    "ConnectionLost",
    "Function",
    "InferletFailed",
    "Instance",
    "Remote",
    "RpcError",
    "ServerUnreachable",
    "UsageError",
    "inferlet",
]
