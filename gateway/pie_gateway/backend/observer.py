"""What is told of a generation while it runs: for limits, metrics and logs."""

from __future__ import annotations

from pie_gateway.backend.events import End, Piece, Prompt


class Observer:
    """Is told of one generation; does nothing with what it does not care for."""

    def launched(self, instance: str) -> None:
        """Its instance runs."""

    def prompt(self, event: Prompt) -> None:
        """The prompt has been read."""

    def piece(self, event: Piece) -> None:
        """A choice goes on."""

    def end(self, event: End) -> None:
        """A choice has ended."""

    def over(self, instance: str) -> None:
        """Its instance has ended."""
