"""An MCP server of the older, stateful protocol without the SDK, with manners that the SDK does not
have.

It lists its tools in pages (`endless`: without an end; `renames`: one page, of others each time),
answers with an image, asks its client for
a sample, chatters, answers with any bytes, ends its process and listens no more.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}}
AFTERWARDS: list[Callable[[], object]] = []  # what to do after the next answer
NUMBERS = itertools.count()
PAGES = {None: ("image", "second"), "second": ("ask", "third"), "third": ("chatter", None)}


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def receive() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    message: dict[str, Any] = json.loads(line)
    return message


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    match name:
        case "image":
            return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
        case "ask":
            message = {"role": "user", "content": {"type": "text", "text": "hi"}}
            params = {"messages": [message], "maxTokens": 5}
            send(id="mine", method="sampling/createMessage", params=params)
            while (answer := receive()).get("id") != "mine":
                pass
            return text(answer.get("error", {}).get("message", "no error"))
        case "chatter":
            for i in range(arguments["count"]):
                params = {"level": "info", "data": f"{i}"}
                send(method="notifications/message", params=params)
            return text("done")
        case "raw":
            answered = bytes.fromhex(arguments["answer"]).replace(b"ID", b"%d" % request["id"])
            sys.stdout.buffer.write(answered + b"\n")
            sys.stdout.buffer.flush()
            return None
        case "leave":
            subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)  # keeps the output open
            AFTERWARDS.append(lambda: os._exit(arguments["count"]))
            return text(str(os.getpid()))
        case "deafen":
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            AFTERWARDS.append(lambda: time.sleep(600))
            return text("deaf")
    return text("no such tool") | {"isError": True}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"},
            }
        case "tools/list":
            if sys.argv[1:] == ["renames"]:
                tool = {"name": f"tool{next(NUMBERS)}", "inputSchema": SCHEMA}
                return {"tools": [tool | {"annotations": {"readOnlyHint": True}}]}
            name, following = PAGES[params.get("cursor")]
            if sys.argv[1:] == ["endless"]:
                following = "second"
            page: dict[str, Any] = {"tools": [{"name": name, "inputSchema": SCHEMA}]}
            return page | ({"nextCursor": following} if following else {})
        case "tools/call":
            return call(params["name"], params.get("arguments", {}))
    return None


while True:
    request = receive()
    if "id" not in request or "method" not in request:
        continue
    result = answer(request["method"], request.get("params") or {})
    if result is None and request["method"] != "tools/call":
        error = {"code": -32601, "message": f"no method {request['method']}"}
        send(id=request["id"], error=error)
    elif result is not None:
        send(id=request["id"], result=result)
    for do in AFTERWARDS:
        do()
