"""Inferlets in both languages make HTTP requests, from a real server to a real site."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.javascript import require_javascript
from support.outside_programs import LANGUAGES, Site, run, web_site
from support.servers import Server, until

from pie_py.client.errors import InferletFailed
from pie_py.client.sync import Client
from pie_py.testing.script import replaying
from pie_py.wire.javascript import pack

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with web_site() as running:
        yield running


@pytest.fixture(scope="module")
def reaching(site: Site) -> Iterator[Server]:
    """A server whose inferlets may reach the site, and the public internet."""
    allowed = ["*", site.url.removeprefix("http://")]
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        settings = replaying(Path(folder))
        with Server(Path(folder), **settings, http={"allow": allowed}) as running:
            yield running


@pytest.fixture
def client(reaching: Server) -> Iterator[Client]:
    with reaching.client() as connected:
        yield connected


@pytest.mark.parametrize("language", LANGUAGES)
def test_requests_and_answers(client: Client, site: Site, language: str) -> None:
    assert run(client, language, "get", f"{site.url}/a") == "200 text/plain page /a Ã¼"
    assert run(client, language, "post", site.url, "größe") == "200 text/x größe"
    assert run(client, language, "json", f"{site.url}/json") == "Ada"
    assert run(client, language, "stream", f"{site.url}/large") == "3000000"
    pages = [f"page /{i} " for i in range(10)]
    assert run(client, language, "many", f"{site.url}/", "10") == ",".join(pages)
    with pytest.raises(InferletFailed, match="timed-out"):
        run(client, language, "hurry", f"{site.url}/slow", "300")


@pytest.mark.parametrize("language", LANGUAGES)
def test_lines_and_bad_statuses(client: Client, site: Site, language: str) -> None:
    assert run(client, language, "lines", f"{site.url}/lines") == "4 one||two|größe"
    many = "|".join(["x" * 100_000, *["ab"] * 5_000])
    assert run(client, language, "lines", f"{site.url}/many-lines") == f"5001 {many}"
    assert run(client, language, "lines", f"{site.url}/cookies") == "0 "
    with pytest.raises(InferletFailed, match=f"{site.url}/missing: status 404"):
        run(client, language, "lines", f"{site.url}/missing")


def test_what_the_python_library_adds(client: Client, site: Site) -> None:
    assert run(client, "python", "library", site.url) == "größe"


def test_a_body_is_read_once_and_kept_in_javascript(client: Client, site: Site) -> None:
    require_javascript()
    source = """import { http } from "inferlet";
export async function main([url]) {
  const answer = await http.get(url);
  const told = await Promise.allSettled([answer.bytes(), answer.text()]);
  let size = 0;
  for await (const part of answer.stream(1000)) size += part.length;
  return [told[0].value.length, told[1].reason.code, size];
}"""
    program = client.upload(pack({"it.js": source.encode()}), "it")
    told = client.launch(program, [f"{site.url}/large"]).result()
    assert told == '[3000000,"invalid-handle",3000000]'


def test_the_example(client: Client, site: Site) -> None:
    instance = client.launch(client.upload(EXAMPLES / "web_page.py"), [site.url])
    said = "".join(str(message) for message in instance)
    assert said.startswith(f"{site.url}\npage /\n"), said
    assert instance.result() == ""


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_given_up_or_left_is_closed(
    client: Client, reaching: Server, site: Site, language: str
) -> None:
    site.gone.clear()
    assert run(client, language, "give-up", f"{site.url}/slow") == "given up"
    assert site.gone.wait(10)
    port = site.server_address[1]

    def connections() -> int:
        found = psutil.Process(reaching.process.pid).net_connections("tcp")
        return sum(1 for c in found if c.raddr and c.raddr.port == port)

    kept = connections()  # idle ones, for requests to come
    assert run(client, language, "leave", f"{site.url}/large") == "left 1"
    until(lambda: connections() <= kept, 10)


def test_a_server_makes_no_requests_unless_told(server: Server, site: Site) -> None:
    with (
        server.client() as connected,
        pytest.raises(InferletFailed, match=r"permission-denied: .*--allow-http"),
    ):
        run(connected, "python", "get", site.url)
