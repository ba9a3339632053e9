"""The live page and the documentation: files that a browser gets as they are."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from pie_py.config.shipped_files import shipped_folder

FILES = Path(__file__).parent / "files"
# Nothing is loaded from other servers, and no other page shows this one.
POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"


async def index(request: Request) -> Response:
    """The page."""
    headers = {"content-security-policy": POLICY, "cache-control": "no-cache"}
    return FileResponse(FILES / "index.html", headers=headers)


def routes() -> list[BaseRoute]:
    """Those of the page and its files."""
    docs = StaticFiles(directory=shipped_folder("docs"))
    return [Route("/", index), Mount("/page", StaticFiles(directory=FILES)), Mount("/docs", docs)]
