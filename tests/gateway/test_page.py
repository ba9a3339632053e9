"""The live page: its files, what it is told, and what a browser makes of it."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import websockets
import websockets.sync.client
from click.testing import CliRunner
from support.gateways import Gateway
from support.servers import Server, until

from pie_gateway.backend.catalog import REFRESH_SECONDS, Snapshot
from pie_gateway.backend.job import Piece
from pie_gateway.metrics.requests import RequestMetrics
from pie_gateway.page import FILES
from pie_gateway.watching import View, percentiles
from pie_py.cli import main as pie_py

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

LONG_NAME = "forks_of_one_prompt"
FORKS = """
from inferlet import Context, Model, runtime

async def main(args):
    context = Context(Model.load()).fill("Once upon a time " * 20)
    await context.flush()
    branches = [context.fork().fill(text) for text in ("One.", "Two.")]
    for branch in branches:
        await branch.flush()
    print("ready")
    await runtime.sleep(1000)
"""

WRITER = '''
"""Writes on, and answers a message."""
from inferlet import Context, Model, Sampler, session

async def main(prompt: str = "Once upon a time", most: int = 200, loud: bool = False):
    """Writes.

    Args:
        most: tokens.
    """
    generation = Context(Model.load()).fill(prompt).generate(Sampler.greedy(), max_tokens=most)
    await generation.send_text()
    said = await session.receive()
    session.send(f"[{said.upper() if loud else said}]")
    await session.receive()
    return f"{generation.tokens_generated} tokens"
'''

ENDLESS = """
from inferlet import Context, Model

async def main():
    while True:
        await Context(Model.load()).fill("Once upon a time").generate(max_tokens=64).collect_text()
"""


def launched(http: httpx2.Client, program: str, source: str, *args: str, **how: Any) -> str:
    """The path of an instance of a program that is uploaded for it."""
    http.post("/v1/programs", params={"name": program}, content=source.encode())
    made = http.post("/v1/instances", json={"program": program, "args": args, **how}).json()
    return f"/v1/instances/{made['id']}"


@pytest.fixture(scope="module")
def sharers(gateway: Gateway) -> Iterator[list[str]]:
    """Two instances whose prompts begin alike."""
    with gateway.http() as http:
        paths = []
        for _ in range(2):
            paths.append(launched(http, LONG_NAME, FORKS))
            until(lambda: http.get(f"{paths[-1]}/log").json()["lines"])
        yield [path.rpartition("/")[2] for path in paths]
        for path in paths:
            http.delete(path)


def test_the_page_loads_nothing_from_elsewhere(http: httpx2.Client) -> None:
    page = http.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="(page/[^"]+)"', page.text):
        assert http.get(f"/{name}").status_code == 200, name
    assert http.get("/page/../app.py").status_code == 404
    sources = "".join(file.read_text() for file in FILES.iterdir() if file.is_file())
    assert set(re.findall(r"https?://[^/\"]+", sources)) == {"http://www.w3.org"}, "names of XML"


def test_a_view_each_second(gateway: Gateway, sharers: list[str]) -> None:
    with watching(gateway) as told:
        views = [next(told)["server"] for _ in range(2)]
    assert {each["id"] for each in views[1]["instances"]} >= set(sharers)
    model, _ = views[1]["models"]
    assert model["pages"] > model["pages_free"]
    assert views[1]["uptime"] > views[0]["uptime"]
    shown = next(each for each in views[1]["instances"] if each["id"] == sharers[0])
    assert shown["waits"] == ["sleep"]
    assert shown["tokens"] > 20


@contextmanager
def watching(gateway: Gateway, *instances: str) -> Iterator[Iterator[Any]]:
    """What a page is told that looks at some instances."""
    url = gateway.url.replace("http", "ws") + "/v1/live"
    with websockets.sync.client.connect(url) as socket:
        if instances:
            socket.send(json.dumps({"watch": {each: {} for each in instances}}))
        yield map(json.loads, socket)


def test_an_instance_over_the_same_connection(gateway: Gateway, sharers: list[str]) -> None:
    with watching(gateway, sharers[0], "none") as told:
        found: dict[str, Any] = {}
        while len(found) < 3:
            each = next(told)
            found[each.get("instance", "server")] = each
        later: list[Any] = []
        while sum("server" in each for each in later) < 3:
            later.append(next(told))
    assert not [each for each in later if each.get("instance") == "none"], "it has not changed"
    mine = found[sharers[0]]
    assert mine["told"]["waits"] == ["sleep"]
    assert [line["text"] for line in mine["log"]["lines"]] == ["ready"]
    assert mine["trace"]["spans"]
    assert found["none"]["gone"]
    assert "none" in found["none"]["error"]


@pytest.mark.parametrize("sent", ['{"wach": {}}', b'{"wach": {}}', b"\xff"])
def test_what_is_no_watch_is_refused(gateway: Gateway, sent: str | bytes) -> None:
    url = gateway.url.replace("http", "ws") + "/v1/live"
    with websockets.sync.client.connect(url) as socket:
        socket.send(sent)
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            list(socket)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert "watch" in closed.value.rcvd.reason or "JSON" in closed.value.rcvd.reason


CHATTERBOX = """
from inferlet import session

async def main(most: int = 6000, asked: bool = False) -> str:
    if asked:
        await session.receive()
    for number in range(most):
        session.send(f"{number}\\n{1000 * asked * '.'}")
    return "said all"
"""


def test_what_nobody_reads_gives_way_or_waits_for_a_reader(http: httpx2.Client) -> None:
    newest = launched(http, "chatterbox", CHATTERBOX, keep_newest=True)
    held = launched(http, "chatterbox", CHATTERBOX)
    assert http.get(f"{newest}/result").json()["text"] == "said all"

    def texts(path: str) -> list[str]:
        with http.stream("GET", f"{path}/events") as stream:
            return [line for line in stream.iter_lines() if '"type":"text"' in line]

    lines = texts(newest)
    assert len(lines) == 4096
    assert "5999" in lines[-1]
    until(lambda: http.get(held).json()["waits"] == ["reader"])
    assert len(texts(held)) == 6000


def test_a_reader_that_leaves_holds_up_nobody(http: httpx2.Client) -> None:
    args = ("--most", "60000", "--asked")
    path = launched(http, "chatterbox", CHATTERBOX, *args, keep_newest=True)

    def card() -> Any:
        return http.get(path).json()

    with (
        http.stream("GET", f"{path}/events") as left,
        http.stream("GET", f"{path}/events") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines), "and what is read no further stays open"
        assert '"error"' in "".join(left.iter_lines()), "another one reads now"
        http.post(f"{path}/messages", json={"text": "go"})
        until(lambda: card()["waits"] == ["reader"])
        assert card()["attached"]
    assert http.get(f"{path}/result").json()["text"] == "said all"
    assert not card()["attached"]


def test_an_instance_from_the_inside(http: httpx2.Client, sharers: list[str]) -> None:
    told = http.get(f"/v1/instances/{sharers[1]}/inspect").json()
    assert http.get("/v1/instances/none/inspect").status_code == 404
    assert (told["state"], told["waits"], told["queued_commands"]) == ("running", ["sleep"], 0)
    model, _ = told["models"]
    [other] = model["sharers"]
    assert other["instance"] == sharers[0]
    assert other["places"] == list(range(len(other["places"])))
    assert 0 < len(other["places"]) <= model["pages"]
    trunk, *branches = [set(each["places"]) for each in model["contexts"]]
    assert len(branches) == 2
    assert branches[0] != branches[1]
    full = min(trunk & branches[0] & branches[1], default=None)
    assert full == 0, "forks begin with the same pages"
    assert set.union(trunk, *branches) == set(range(model["pages"]))
    first, *forks = model["contexts"]
    assert (first["parent"], first["shared"]) == (None, 0)
    assert first["text"].endswith("upon a time ")
    assert [(each["parent"], each["shared"]) for each in forks] == 2 * [(1, first["tokens"])]
    assert [each["text"] for each in forks] == ["One.", "Two."]


GROWING = """
from inferlet import Context, Model, Sampler

async def main():
    trunk = Context(Model.load()).fill("Once upon a time there was a cat. ")
    await trunk.flush()
    left = trunk.fork()
    await left.generate(Sampler.greedy(), max_tokens=9).collect_text()
    inner = left.fork()
    text = await inner.generate(Sampler.greedy(), max_tokens=7).collect_text()
    inner.release()
    right = trunk.fork().fill("It was red")
    await right.flush()
    await trunk.fill("The end.").flush()
    return text
"""


def test_the_tree_of_contexts_is_kept_to_the_end_and_after(http: httpx2.Client) -> None:
    path = launched(http, "growing", GROWING)
    said = http.get(f"{path}/result").json()["text"]
    [model] = [m for m in http.get(f"{path}/inspect").json()["models"] if m["contexts"]]
    found = {each["queue"]: each for each in model["contexts"]}
    inner = http.get(f"{path}/inspect", params={"context": 3}).json()["context_tokens"]
    words = http.post("/detokenize", json={"model": "pie-tiny", "tokens": inner}).json()
    assert {number: each["parent"] for number, each in found.items()} == {1: None, 2: 1, 3: 2, 4: 1}
    assert found[4]["text"] == "It was red"
    assert found[1]["text"].endswith("cat. The end.")
    assert "Once upon a time there was a cat. " in words["prompt"]
    # The token that a generation ends with is run by it, or by what goes on with its context.
    assert said[:10] in found[3]["text"]
    assert all(each["released_ns"] >= each["created_ns"] for each in found.values())
    assert len(inner) == found[3]["tokens"] > found[3]["shared"] > found[2]["shared"]


def test_tokens_of_a_program_are_counted_while_it_runs_and_after(http: httpx2.Client) -> None:
    before = program_tokens(http)
    path = launched(http, "writer", WRITER)
    while (told := http.get(path).json())["waits"] != ["client of writer"]:
        time.sleep(0.02)
    assert told["generated_tokens"] > 1
    assert told["prompt_tokens"] > 1
    # Those that a run has put into its pages, though it is not over for the pool.
    assert told["tokens"] >= told["prompt_tokens"]
    assert told["uses"] == ["pie-tiny"]
    for text in ("well", "bye"):
        http.post(f"{path}/messages", json={"text": text})
    count = int(http.get(f"{path}/result").json()["text"].split()[0])
    ended, inside = http.get(path).json(), http.get(f"{path}/inspect").json()
    after = program_tokens(http)
    assert ended["generated_tokens"] >= count
    assert (ended["pages"], ended["most_pages"] > 0, ended["uses"]) == (0, True, ["pie-tiny"])
    assert inside["sent"].endswith("[well]")
    assert inside["sent_total"] == len(inside["sent"])
    assert inside["end"] == f"{count} tokens"
    assert after["generation"] - before["generation"] >= count
    assert after["prompt"] - before["prompt"] >= ended["prompt_tokens"]


def program_tokens(http: httpx2.Client) -> dict[str, float]:
    time.sleep(REFRESH_SECONDS)  # or an older snapshot would be shown
    text = http.get("/metrics").text
    found = re.findall(r'pie_program_tokens_total{kind="(\w+)",model_name="pie-tiny"} (.*)', text)
    return {kind: float(value) for kind, value in found}


def test_the_library_runs_without_an_upload(http: httpx2.Client) -> None:
    names = {each["name"] for each in http.get("/v1/library").json()["data"]}
    assert {"best_of_n", "tree_of_thought"} <= names
    assert "http_answer" not in names, "a component, for the gateway"
    asked = {"args": ["--pie-options"]}
    told = http.post("/v1/inferlets/best_of_n", json=asked).json()["result"]
    assert "--answers" in {each["option"] for each in told["options"]}
    missing = http.post("/v1/inferlets/no_such_one", json=asked)
    assert missing.status_code == 404


def test_a_former_version_becomes_the_current_one_again(http: httpx2.Client) -> None:
    def upload(number: int) -> str:
        source = f"async def main() -> str:\n    return 'version {number}'\n"
        made = http.post("/v1/programs", params={"name": "versioned"}, content=source.encode())
        return str(made.json()["hash"])

    def says() -> str:
        return str(http.post("/v1/inferlets/versioned", json={}).json()["result"])

    former, _ = upload(1), upload(2)
    assert says() == "version 2"
    assert http.post(f"/v1/programs/{former}/current").json()["hash"] == former
    assert says() == "version 1"
    assert http.post("/v1/programs/none/current").status_code == 404


def test_what_was_used_is_told_over_http_as_to_clients(gateway: Gateway, server: Server) -> None:
    with gateway.http() as http, server.client() as client:
        path = launched(http, "writer", WRITER, "--most=4")
        for text in "ab":
            http.post(f"{path}/messages", json={"text": text})
        assert http.get(f"{path}/result").json()["text"] == "4 tokens"
        wanted = [each for each in client.usage(2, all_users=True) if each["program"] == "writer"]
        assert wanted
        found = http.get("/v1/usage", params={"days": 2}).json()["data"]
        assert [each for each in found if each["program"] == "writer"] == wanted
        for days, status in (("31", 200), ("32", 400), ("x", 400)):
            assert http.get("/v1/usage", params={"days": days}).status_code == status


def test_a_model_that_is_new_has_rates_all_the_same() -> None:
    view, stats = View(RequestMetrics(lambda: 0.0)), defaultdict(int, generated_tokens=30)
    info: dict[str, Any] = defaultdict(int)
    view.of(Snapshot(1.0, info, {}, []))
    [model] = view.of(Snapshot(3.0, info, {"new": stats}, []))["models"]
    assert model["tokens_per_second"] == 15.0
    assert model["prompt_tokens_per_second"] == 0.0


def test_percentiles() -> None:
    assert percentiles([]) is None
    assert percentiles(range(1, 101)) == {"p50": 50, "p90": 90, "p99": 99}
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "p99": 3.0}


def test_times_of_what_was_streamed() -> None:
    now = 0.0
    metrics = RequestMetrics(lambda: now)
    meter = metrics.generation("m", "ann", streams=True)
    for now, tokens in ((2.0, 1), (2.5, 1), (4.0, 3)):  # noqa: B007  the clock reads it
        meter.piece(Piece(0, "x", tokens))
    shown = View(metrics).of(Snapshot(1.0, defaultdict(int), {}, []))
    assert shown["first"] == percentiles([2.0])
    assert shown["between"] == percentiles([0.5, 0.5])  # each of several tokens took a part


def test_top_shows_the_same_and_has_rates_at_once(
    server: Server, http: httpx2.Client, sharers: list[str]
) -> None:
    path = launched(http, "endless", ENDLESS)
    rate = 0
    while not rate:
        told = CliRunner().invoke(
            pie_py, ["top", "--once", "--endpoint", server.endpoint], env={"COLUMNS": "80"}
        )
        assert sharers[0] in told.output, "`pie-py kill` takes no part of an id"
        row = next(line for line in told.output.splitlines() if "pie-tiny" in line)
        rate = int(row.split()[-2])
    http.delete(path)


@pytest.mark.nightly
def test_a_browser_shows_it(gateway: Gateway, sharers: list[str]) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium here; Debian's package has that name")
    from playwright.sync_api import sync_playwright

    with gateway.http() as http:
        http.post("/v1/programs", params={"name": "writer"}, content=WRITER.encode())
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        faults: list[str] = []
        for width in (390, 1200):
            page = browser.new_page(viewport={"width": width, "height": 800})
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on(
                "console", lambda line: faults.append(line.text) if line.type == "error" else None
            )
            page.goto(gateway.url)
            page.get_by_text("tokens per second").first.wait_for()
            page.locator("svg.chart path.line").first.wait_for(state="attached")
            page.keyboard.press("Alt+3")
            page.get_by_role("link", name=sharers[0]).wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            list_of = "document.querySelector('.scroll')"
            assert page.evaluate(f"{list_of}.scrollWidth <= {list_of}.clientWidth")
            page.goto(f"{gateway.url}/#instance/{sharers[0]}")
            page.get_by_text("waits for sleep").wait_for()
            page.locator("svg.map rect.shared").first.wait_for()
            label = page.locator(".scroll svg.map text").first
            assert (label.text_content() or "").startswith(sharers[0])
            end = label.evaluate("text => text.getBBox().x + text.getBBox().width")
            assert end < float(page.locator(".scroll svg.map rect").first.get_attribute("x") or 0)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.get_by_role("button", name="Tokens of context 2").click()
            page.locator(".branch .token").first.wait_for()
            assert page.locator(".branch pre").first.inner_text() == "One."
            if width == 390:  # where what is to be pressed has the least room
                talk_with_a_model(page, gateway)
                use_a_program(page, gateway)
            page.goto(f"{gateway.url}/#usage")
            used = page.get_by_role("row").filter(has_text="writer").first
            used.wait_for()
            assert used.locator("td.number:visible").nth(-1).inner_text().endswith("s")
            page.get_by_label("Days").select_option("7")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.goto(f"{gateway.url}/#docs/running")
            page.get_by_role("heading", name="Run programs and servers").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.close()
        assert not faults
        many_tabs(browser.new_context(), gateway.url)
        two_tabs_chat(browser.new_context(), gateway.url)
        browser.close()


def talk_with_a_model(page: Page, gateway: Gateway) -> None:
    """Asks, looks at what is kept, and stops a question that has no answer yet."""
    page.goto(f"{gateway.url}/#chat")
    page.locator("select[name=model] option").first.wait_for(state="attached")
    assert page.get_by_label("Model").input_value() == "pie-tiny"
    where = page.get_by_role("button", name="Send").bounding_box()
    assert where is not None
    assert where["y"] > 500
    page.get_by_label("Temperature").fill("0")  # at 0.7 it says something else, at times
    message = page.get_by_label("Message")
    message.fill("Hi")
    page.keyboard.press("Enter")
    page.get_by_text("Hello!").wait_for()
    page.get_by_text("from the cache").wait_for()
    page.route("**/chat/completions", lambda route: None, times=1)  # it never answers
    message.fill("second")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Stop").wait_for(state="hidden")
    assert message.input_value() == "second"
    assert page.locator(".message").count() == 2
    page.reload()
    page.get_by_label("Conversation").locator("option").nth(1).wait_for(state="attached")
    page.get_by_label("Conversation").select_option("0")
    assert page.locator(".message").count() == 2
    with page.expect_request("**/chat/completions") as asked:
        page.get_by_role("button", name="Regenerate").click()
    assert len(json.loads(asked.value.post_data or "")["messages"]) == 1
    page.get_by_text("from the cache").wait_for()
    message.fill("third")
    page.get_by_role("button", name="Edit").click()
    assert message.input_value() == "Hi\nthird", "what was written is not lost for it"
    kept = page.get_by_label("Conversation").locator("option")
    assert kept.all_inner_texts() == ["New conversation"], "nothing is left of the other"
    page.keyboard.press("Enter")
    page.get_by_text("from the cache").wait_for()
    assert kept.count() == 2
    page.get_by_role("button", name="Delete").click()
    assert kept.count() == 1
    page.reload()
    page.locator("select[name=model] option").first.wait_for(state="attached")
    assert kept.count() == 1


def many_tabs(context: BrowserContext, url: str) -> None:
    """More than a browser has connections for requests; one loses its own, and comes back."""
    sockets: list[Any] = []

    def passed_on(socket: Any) -> None:
        sockets.append(socket)
        socket.connect_to_server()

    for _ in range(8):
        page = context.new_page()
        page.route_web_socket("**/v1/live", passed_on)
        page.goto(url)
        page.locator("#state.well").wait_for()
    sockets[-1].close(code=1011, reason="a test")
    page.get_by_text("lost: a test").wait_for()
    page.locator("#state.well").wait_for()
    assert len(sockets) == 9


def two_tabs_chat(context: BrowserContext, url: str) -> None:
    """Each keeps its conversation, and forgets the one that it is told to."""
    tabs = [context.new_page() for _ in range(2)]
    for page in tabs:  # both, before one of them keeps anything
        page.goto(f"{url}/#chat")
        page.locator("select[name=model] option").first.wait_for(state="attached")
    for name, page in zip(("first", "second"), tabs, strict=True):
        page.get_by_label("Message").fill(name)
        page.keyboard.press("Enter")
        page.get_by_text("from the cache").wait_for()
    kept = tabs[1].get_by_label("Conversation").locator("option")
    assert kept.all_inner_texts() == ["New conversation", "second", "first"]
    tabs[0].get_by_role("button", name="Delete").click()
    tabs[1].reload()
    kept.nth(1).wait_for(state="attached")
    assert kept.all_inner_texts() == ["New conversation", "second"]


def use_a_program(page: Page, gateway: Gateway) -> None:
    """Writes one; runs another by its form, talks with it, and stops it in the list."""
    page.goto(f"{gateway.url}/#write")
    source = "async def main(args):\n    return 'it runs: ' + args[0]"
    page.get_by_label("Python source").fill(source)
    page.get_by_label("Arguments").fill("yes")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("it runs: yes").wait_for()
    page.goto(f"{gateway.url}/#programs")
    page.get_by_role("link", name="Run best_of_n", exact=True).wait_for()
    page.get_by_role("link", name="Run writer", exact=True).click()
    page.get_by_label("most").fill("5")
    page.get_by_label("loud").check()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("waits for a message").wait_for()
    page.get_by_text("1 page of 16").first.wait_for()
    page.get_by_text("--most=5 --loud").wait_for()
    page.reload()
    page.get_by_text("waits for a message").wait_for()
    page.get_by_label("Message").fill("<b>hi</b>")
    page.keyboard.press("Enter")
    page.get_by_text("[<B>HI</B>]").wait_for()
    name = page.locator("h1").inner_text()
    page.goto(f"{gateway.url}/#instances")
    page.get_by_role("button", name=f"Stop {name}").click()
    page.get_by_role("row").filter(has_text=name).filter(has_text="killed").wait_for()
    with gateway.http() as http:
        asked = {"program": "writer", "args": ["--most=3"], "durable": True}
        name = http.post("/v1/instances", json=asked).json()["id"]
    page.get_by_role("row").filter(has_text=name).filter(has_text="asleep").wait_for()
    page.get_by_text("1 asleep;").wait_for()
    page.get_by_role("button", name=f"Stop {name}").click()
    page.get_by_role("row").filter(has_text=name).filter(has_text="killed").wait_for()
