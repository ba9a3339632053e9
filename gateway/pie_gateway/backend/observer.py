"""What is told of a generation while it runs: for limits, metrics and logs."""

from __future__ import annotations

from typing import Protocol

from pie_gateway.backend.events import End, Piece, Prompt


class Observer(Protocol):
    """Is told of one generation."""

    def launched(self, instance: str) -> None:
        """Its instance runs."""

    def prompt(self, event: Prompt) -> None:
        """The prompt has been read."""

    def piece(self, event: Piece) -> None:
        """A choice goes on."""

    def end(self, event: End) -> None:
        """A choice has ended."""
