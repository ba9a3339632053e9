"""What the operator lets inferlets reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network

from pie_control.errors import ApiError
from pie_control.http.addresses import Address, hidden_addresses, special_range
from pie_py.config.host_rule import HostRule
from pie_py.config.http import HttpConfig


class HttpPolicy:
    """Allows a host by its name and port, and then the addresses that the name stands for."""

    def __init__(self, config: HttpConfig) -> None:
        self._rules = [HostRule.parse(text) for text in config.allow]
        self._networks = config.allow_networks
        self._denied = config.deny_networks

    @property
    def enabled(self) -> bool:
        """Whether there is anything that may be reached."""
        return bool(self._rules)

    def check_host(self, host: str, port: int) -> None:
        """Lets a canonical host and a port pass.

        Raises:
            ApiError: `permission-denied`.
        """
        if not self._rules:
            raise ApiError(
                "permission-denied",
                "this server makes no HTTP requests; its operator allows hosts with `pie-py serve"
                " --allow-http HOST` or `allow` in [http] of its configuration",
            )
        if self._matching(host, port):
            return
        shown = f"[{host}]" if ":" in host else host
        if any(rule.covers(host) for rule in self._rules):
            what = f"port {port} of {shown} is not on this server's allow-list"
        else:
            what = f"{shown} is not on this server's allow-list"
        raise ApiError(
            "permission-denied",
            f"{what}; its operator adds it with `--allow-http {shown}:{port}` or `allow` in [http]",
        )

    def check_address(self, host: str, port: int, address: Address) -> None:
        """Lets an address pass that a host's name stands for.

        Raises:
            ApiError: `permission-denied`.
        """
        allowed = [*self._networks]
        for rule in self._matching(host, port):
            allowed += rule.networks
        for part in (address, *hidden_addresses(address)):
            if _is_in(part, self._denied):
                raise ApiError(
                    "permission-denied",
                    f"{host} is {part}, which this server's operator denies (`deny_networks`)",
                )
            name = special_range(part)
            if name is not None and not _is_in(part, allowed):
                via = "" if part is address else f" behind {address}"
                raise ApiError(
                    "permission-denied",
                    f"{host} is {part}{via}, an address that is not public ({name}); the server's"
                    f" operator allows it with `--allow-http-network {ipaddress.ip_network(part)}`"
                    " or `allow_networks` in [http]",
                )

    def _matching(self, host: str, port: int) -> list[HostRule]:
        return [rule for rule in self._rules if rule.matches(host, port)]


def _is_in(address: Address, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(address.version == n.version and address in n for n in networks)
