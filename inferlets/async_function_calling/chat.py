"""Answers one request of the HTTP gateway with function calls that run while the model writes on.

Its argument and what it tells are those of the library's `http_answer` (docs/http.md).
"""


async def main(args: list[str]) -> None:
    """Answers the request."""
    from asynclm.calling.job import serve

    if len(args) != 1:
        raise SystemExit("one argument is wanted: a request of the HTTP gateway, in JSON")
    await serve(args[0])
