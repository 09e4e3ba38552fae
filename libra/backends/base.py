"""What a backend is: it owns truth and time, pumps events into the controller and carries out commands."""

from __future__ import annotations

from typing import Protocol

from libra.core.commands import Command
from libra.runtime.controller import Controller


class Backend(Protocol):
    """A simulated or a real cluster."""

    def run(self, controller: Controller) -> None:
        """Drive the whole run; returns when every training step is done."""
        ...

    def apply(self, command: Command) -> None:
        """Carry out one command; acknowledged by an event through the controller, now or later."""
        ...

    def close(self) -> None:
        """Give back everything; safe to call twice and after an error."""
        ...
