"""Settings of a cluster's processes, and the keys that its members share."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field, NonNegativeInt

from pie_py.config.keys import KeyPair, KeyProblem
from pie_py.config.plugins import ExtensionConfig
from pie_py.config.section import Section
from pie_py.config.server import ServerConfig

NODE_NAME = "[a-z][a-z0-9-]{0,31}"
EXTENSION = "cluster"  # its entry point, and the command


class MemberConfig(Section):
    """Makes a server a node of a cluster; a gateway has no node and no incarnation."""

    directory: str  # its endpoint, which is a gateway's own
    folder: Path | None = None  # of a gateway: with the numbers of lives
    models: str = ""  # of a gateway: a hash of those that all nodes serve
    gateway: str = ""  # where programs come from that this node does not have
    gateway_key: str = ""  # its public key, off loopback
    node: str = Field(default="", pattern=f"^({NODE_NAME})?$")
    incarnation: NonNegativeInt = 0
    policy: str = "cached"  # where a gateway's launches go
    keys: Path | None = None  # of the members' file; None where all of the cluster is on loopback
    # Whether the data folder is that of the whole cluster: if not, and without a database, there is
    # no store here.
    shares_data: bool = True
    rank_machines: int = 1  # on which the worker's ranks are, as many on each

    @property
    def life(self) -> str:
        """`n7.3`: the node and its incarnation."""
        return f"{self.node}.{self.incarnation}"

    def extension(self) -> ExtensionConfig:
        """What a `ServerConfig` has of it."""
        return ExtensionConfig(name=EXTENSION, settings=self.model_dump(mode="json"))

    def pair(self) -> KeyPair | None:
        """The key pair that all members of the cluster have; None on loopback. Raises `KeyProblem`
        if its file cannot be read.
        """
        return read_member_pair(self.keys)


def member_of(config: ServerConfig) -> MemberConfig:
    """What makes this process one of a cluster, which it is."""
    assert config.extension is not None, "a member of a cluster"
    return MemberConfig.model_validate(config.extension.settings)


def read_member_pair(path: Path | None) -> KeyPair | None:
    """The members' key pair; None on loopback, where there is no file. Raises `KeyProblem` if it
    cannot be read.
    """
    if path is None:
        return None
    try:
        return KeyPair(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise KeyProblem(f"the members' keys {path} cannot be read: {error}") from None
