"""What the API functions reach through an instance: the server's shared parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pie_control.errors import ApiError
from pie_control.grammar import GrammarService
from pie_control.http import HttpClient
from pie_control.interception.history import Durations
from pie_control.mcp import McpServers
from pie_control.messaging.bus import Bus
from pie_py.config.http import HttpConfig
from pie_py.config.mcp import McpConfig
from pie_py.config.services import GrammarConfig, MessagingConfig

if TYPE_CHECKING:
    from pie_control.instances.registry import Lifecycle
    from pie_control.instances.timers import Timers
    from pie_control.instances.turns import Executor
    from pie_control.models.adapter_loading import AdapterLoader
    from pie_control.models.model import ModelService
    from pie_control.models.tokenizer import TextCodec
    from pie_control.store.service import StoreService


@dataclass
class Host:
    """The server's parts, filled in by `server.serve` before the first instance starts."""

    executor: Executor
    timers: Timers
    lifecycle: Lifecycle
    services: dict[str, ModelService] = field(default_factory=dict)  # by model, default first
    codecs: dict[str, TextCodec] = field(default_factory=dict)  # by model
    durations: Durations = field(default_factory=Durations)  # of waits for what is outside
    messaging: Bus = field(default_factory=lambda: Bus(MessagingConfig()))
    adapters: AdapterLoader = field(init=False)  # set by the server
    store: StoreService = field(init=False)  # set by the server
    grammars: GrammarService = field(default_factory=lambda: GrammarService(GrammarConfig()))
    http: HttpClient = field(default_factory=lambda: HttpClient(HttpConfig()))
    mcp: McpServers = field(default_factory=lambda: McpServers(McpConfig()))

    def service(self, model: str) -> ModelService:
        """The service of a model.

        Raises:
            ApiError: `unknown-model`.
        """
        try:
            return self.services[model]
        except KeyError:
            raise self._unknown(model) from None

    def codec(self, model: str) -> TextCodec:
        """The tokenizer of a model.

        Raises:
            ApiError: `unknown-model`.
        """
        try:
            return self.codecs[model]
        except KeyError:
            raise self._unknown(model) from None

    def _unknown(self, model: str) -> ApiError:
        served = ", ".join(self.services) or "none at the moment (the worker is restarting)"
        return ApiError("unknown-model", f"no model is called {model!r}; served: {served}")
