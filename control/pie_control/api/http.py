"""Traits `http` and `mcp`: requests to hosts that the operator allows, and tools of MCP servers."""

from __future__ import annotations

from pie_control.api.binder import implement
from pie_control.http import HttpClient
from pie_control.http.exchange import Head
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.mcp import McpServers
from pie_control.wasm import HostFunction


class HttpCalls:
    """Requests through one client, for all instances."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    def functions(self) -> tuple[HostFunction, ...]:
        """The interface's functions."""
        return implement(
            "http",
            self.http_get,
            self.http_post,
            self.http_request,
            self.take_response,
            self.read_body,
            self.response_url,
            self.close_body,
        )

    def http_get(self, instance: Instance, url: str, headers: list[tuple[str, str]]) -> int:
        """Starts a GET and opens a future of its answer."""
        return self.http_request(instance, "GET", url, headers, b"", 0)

    def http_post(
        self, instance: Instance, url: str, headers: list[tuple[str, str]], body: bytes
    ) -> int:
        """Starts a POST and opens a future of its answer."""
        return self.http_request(instance, "POST", url, headers, body, 0)

    def http_request(
        self,
        instance: Instance,
        method: str,
        url: str,
        headers: list[tuple[str, str]],
        body: bytes,
        timeout_ms: int,
    ) -> int:
        """Starts a request and opens a future of its answer."""
        return self._http.request(instance, method, url, headers, body, timeout_ms)

    def take_response(
        self, instance: Instance, future: int
    ) -> tuple[int, list[tuple[str, str]], int]:
        """Consumes a future of an answer: status, headers, handle of the body."""
        head: Head = instance.futures.take(future, FutureKind.RESPONSE)
        return head.status, head.headers, self._http.open_body(instance, head.exchange)

    def read_body(self, instance: Instance, body: int, most: int) -> int:
        """Opens a future of the next bytes of a body."""
        return self._http.read_body(instance, body, most)

    def response_url(self, instance: Instance, body: int) -> str:
        """Where a body came from."""
        return self._http.url(instance, body)

    def close_body(self, instance: Instance, body: int) -> None:
        """Gives the rest of a body up."""
        self._http.close_body(instance, body)


class McpCalls:
    """Calls of tools, for all instances."""

    def __init__(self, mcp: McpServers) -> None:
        self._mcp = mcp

    def functions(self) -> tuple[HostFunction, ...]:
        """The interface's functions."""
        return implement("mcp", self.mcp_servers, self.mcp_list_tools, self.mcp_call_tool)

    def mcp_servers(self, instance: Instance) -> list[str]:
        """Names of the servers that the user may use."""
        return self._mcp.names(instance.user)

    def mcp_list_tools(self, instance: Instance, server: str) -> int:
        """Opens a future of a server's tools."""
        return self._mcp.list_tools(instance, server)

    def mcp_call_tool(self, instance: Instance, server: str, tool: str, arguments: str) -> int:
        """Calls a tool and opens a future of its answer."""
        return self._mcp.call_tool(instance, server, tool, arguments)
