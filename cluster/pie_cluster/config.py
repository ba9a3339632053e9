"""Settings of a cluster's processes, and the keys that its members share."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

from pydantic import Field, NonNegativeInt

from pie_py.config.keys import ClientKey, KeyPair, KeyProblem
from pie_py.config.plugins import ExtensionConfig
from pie_py.config.section import Section
from pie_py.config.server import ServerConfig

NODE_NAME = "[a-z][a-z0-9-]{0,31}"
EXTENSION = "cluster"  # its entry point, and the command
MEMBER = "member"  # what members call themselves; they have the rights of the operator


class ClusterProblem(Exception):
    """A cluster cannot be started, joined or reached; the text says why and how to mend it."""


class MemberConfig(Section):
    """Makes a server a node of a cluster; a gateway has no node and no incarnation."""

    folder: Path | None = None  # of a gateway: with the numbers of lives
    cluster: str = ""  # of a gateway: a hash of what tokens of this cluster say of it
    gateway: str = ""  # its endpoint, of a node
    gateway_key: str = ""  # its public key, off loopback
    node: str = Field(default="", pattern=f"^({NODE_NAME})?$")
    incarnation: NonNegativeInt = 0
    token: Path | None = None  # with the members' keys; None on loopback
    # Whether the data folder is that of the whole cluster: if not, and without a database, there is
    # no store here.
    shares_data: bool = True

    @property
    def life(self) -> str:
        """`n7.3`: the node and its incarnation."""
        return f"{self.node}.{self.incarnation}"

    def extension(self) -> ExtensionConfig:
        """The part of it that a `ServerConfig` has."""
        return ExtensionConfig(name=EXTENSION, settings=self.model_dump(mode="json"))

    @cached_property
    def pair(self) -> KeyPair | None:
        """The key pair that all members of the cluster have; None on loopback. Raises `KeyProblem`
        if its file cannot be read.
        """
        if self.token is None:
            return None
        try:
            told = json.loads(self.token.read_text(encoding="utf-8"))
            return KeyPair(told["member_public"], told["member_secret"])
        except (OSError, ValueError, KeyError) as error:
            raise KeyProblem(f"the token {self.token} cannot be read: {error}") from None

    def key(self, server: str) -> ClientKey | None:
        """The key by which a member connects to a gateway or node of a public key; None on
        loopback. Raises `KeyProblem` as `pair`.
        """
        pair = self.pair
        return None if pair is None else ClientKey(MEMBER, pair.public, pair.secret, server)


def member_of(config: ServerConfig) -> MemberConfig:
    """The settings of this process as a member of a cluster, which it is."""
    assert config.extension is not None, "a member of a cluster"
    return MemberConfig.model_validate(config.extension.settings)
