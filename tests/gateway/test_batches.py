"""`/v1/files` and `/v1/batches`, as OpenAI's own client sees them."""

from __future__ import annotations

import errno
import json
import time
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from support.gateways import Gateway
from support.servers import Server, until

from pie_gateway.backend.together import AT_ONCE as IN_ONE
from pie_gateway.batches.running import AT_ONCE, Batches, _read
from pie_gateway.batches.store import Batch, Store, StoredFile
from pie_gateway.problems import Problem, fault
from pie_py.config.kept_files import BLOCK, bytes_on_disk, folder_of
from pie_py.config.keys import KeyStore, api_key

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def line(name: str, url: str = CHAT, **fields: Any) -> dict[str, Any]:
    body = {"model": "pie-tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    if url == COMPLETIONS:
        del body["messages"]
    return {"custom_id": name, "method": "POST", "url": url, "body": {**body, **fields}}


def upload(client: openai.OpenAI, *lines: dict[str, Any]) -> str:
    text = "\n".join(json.dumps(each, ensure_ascii=False) for each in lines)
    return client.files.create(file=("ä.jsonl", text.encode()), purpose="batch").id


def start(client: openai.OpenAI, file: str, endpoint: Any = CHAT) -> Any:
    return client.batches.create(
        input_file_id=file, endpoint=endpoint, completion_window="24h", metadata={"for": "test"}
    )


def ended(client: openai.OpenAI, batch: Any, *states: str) -> Any:
    states = states or ("completed", "failed", "cancelled", "expired")
    end = time.monotonic() + 60
    while batch.status not in states:
        assert time.monotonic() < end, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def results(client: openai.OpenAI, file: str) -> dict[str, Any]:
    lines = map(json.loads, client.files.content(file).text.splitlines())
    return {each["custom_id"]: each for each in lines}


def test_requests_of_a_file_are_answered(client: openai.OpenAI) -> None:
    asked = ([{"role": "user", "content": f"ä{i}"}] for i in range(9))
    lines = [line(f"r{i}", temperature=0, messages=said) for i, said in enumerate(asked)]
    file = upload(client, *lines, line("wrong", nonsense=1))
    assert client.files.retrieve(file).filename == "ä.jsonl"
    batch = start(client, file)
    assert batch.status == "validating"
    batch = ended(client, batch)
    assert (batch.status, batch.metadata) == ("completed", {"for": "test"})
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (10, 9, 1)
    found = results(client, batch.output_file_id)
    live = client.chat.completions.create(**lines[3]["body"])
    response = found["r3"]["response"]
    assert response["status_code"] == 200
    assert response["body"]["choices"][0]["message"]["content"] == live.choices[0].message.content
    wrong = results(client, batch.error_file_id)["wrong"]["response"]
    assert (wrong["status_code"], wrong["body"]["error"]["param"]) == (400, "nonsense")
    assert client.files.delete(file).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(file)


def test_other_endpoints_and_lists(client: openai.OpenAI) -> None:
    bodies = {COMPLETIONS: {"prompt": "Thessel is"}, "/v1/responses": {"input": "Hi"}}
    made = []
    for url, body in bodies.items():
        asked = {**line("a"), "url": url, "body": {"model": "pie-tiny", **body}}
        file = upload(client, asked)
        batch = ended(client, start(client, file, url))
        assert (batch.status, batch.request_counts.completed) == ("completed", 1), batch
        made.append(batch.id)
    first = client.batches.list(limit=1)
    assert [each.id for each in first.data] == made[1:]
    assert first.has_more
    assert [each.id for each in client.batches.list(limit=1)][:2] == made[::-1]  # page by page
    assert file in [each.id for each in client.files.list(purpose="batch")]


@pytest.mark.parametrize(
    ("lines", "code", "where", "param"),
    [
        ([line("a"), line("a")], "duplicate_custom_id", 2, "custom_id"),
        ([line("a", "/v1/completions")], "invalid_url", 1, "url"),
        ([line("a", stream=True)], "invalid_line", 1, "body.stream"),
        ([line("a"), {"custom_id": "b"}], "invalid_line", 2, "method"),
        ([{**line("a"), "custom_id": 1}], "invalid_line", 1, "custom_id"),
        ([], "invalid_file", None, None),
    ],
)
def test_a_wrong_file_fails(
    client: openai.OpenAI, lines: list[Any], code: str, where: int | None, param: str | None
) -> None:
    batch = ended(client, start(client, upload(client, *lines)))
    assert batch.status == "failed"
    told = [(each.code, each.line, each.param) for each in batch.errors.data]
    assert told == [(code, where, param)]


def test_what_there_is_not(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        start(client, "file-none")
    assert caught.value.param == "input_file_id"
    for name in ("batch_x", "file-x", "file-a%2f..%2fb"):
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(name)
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=b"x", purpose="fine-tune")
    for name in ("n" * 256, "n" * 100_000):
        with pytest.raises(openai.BadRequestError):
            client.files.create(file=(name, b"x"), purpose="batch")
    more = dict.fromkeys("abcdefghijklmn", "x")  # beside the file and its purpose
    client.files.create(file=b"x", purpose="batch", extra_body=more)
    with pytest.raises(openai.BadRequestError, match="more than 16 parts"):
        client.files.create(file=b"x", purpose="batch", extra_body={**more, "o": "x"})
    file = upload(client, line("a"))
    usual = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    wrong: Any
    for wrong in ({"metadata": {"k": "v" * 513}}, {"completion_window": "999d"}):
        asked: Any = {**usual, **wrong}
        with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
            client.batches.create(**asked)


def test_the_files_of_a_user_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_gateway.batches.store.MOST_KEPT", 3)
    store = Store(tmp_path, 5 * BLOCK, 60.0)
    first = store.add("ann", "a" * 255, "batch", b"1" * BLOCK)
    second = store.add("ann", "b", "batch", b"1")
    with pytest.raises(Problem) as refused:
        store.add("ann", "c", "batch", b"1")
    assert (refused.value.status, refused.value.code) == (413, "files_too_large")
    store.add("bob", "a", "batch", b"1" * (4 * BLOCK))
    store.remove("ann", first.id)
    store.add("ann", "c", "batch")
    store.add("ann", "d", "batch")
    with pytest.raises(Problem, match="3 files and batches"):
        store.add("ann", "e", "batch")
    assert [each.filename for each in store.all("ann", StoredFile)] == ["d", "c", "b"]
    oldest = store.all("ann", StoredFile, second.id, newest=False)
    assert [each.filename for each in oldest] == ["c", "d"]

    def taken() -> list[int]:
        return [bytes_on_disk(folder_of(tmp_path, user)) for user in ("ann", "bob")]

    store.forget_old(time.time() + 30)
    assert taken() == [4 * BLOCK, 5 * BLOCK]
    store.forget_old(time.time() + 90)
    assert taken() == [0, 0]


def test_a_full_disk_is_told_and_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write = Store(tmp_path, 1 << 20, 60.0), Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.suffix:
            return write(path, data)
        write(path, data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left") as raised:
        store.add("ann", "a", "batch", b"123")
    assert [*store.all("ann", StoredFile)] == []
    assert [*folder_of(tmp_path, "ann").iterdir()] == []
    told = fault(raised.value)
    assert (told.status, told.code) == (503, "out_of_resources")
    assert "No space left on device; the operator has to make room" in told.message
    assert fault(OSError(errno.EIO, "Input/output error")).status == 500


def test_facts_that_a_crash_has_left_half_hide_no_others(tmp_path: Path) -> None:
    store = Store(tmp_path, 1 << 20, 60.0)
    first, second = (store.add("ann", name, "batch", b"x") for name in "ab")
    store.path("ann", f"{first.id}.json").write_bytes(b"")
    with pytest.raises(Problem, match="no file is called"):
        store.find("ann", first.id, StoredFile)
    assert [each.id for each in store.all("ann", StoredFile)] == [second.id]


async def test_a_batch_that_the_disk_does_not_take_is_refused_and_ends_no_others(
    tmp_path: Path,
) -> None:
    (tmp_path / "of-eve").touch()  # no folder, which the sweep of old files stumbles over
    batches = Batches(Store(tmp_path, 1 << 20, 60.0))
    batch = Batch("batch_1", CHAT, "file-1", "24h", 0, 1)
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: batches.run(task_status=task_status))
        await anyio.sleep(0.2)
        with pytest.raises(FileNotFoundError):
            batches.start(Starlette(), "ann", batch, Headers())
        with pytest.raises(Problem, match="no batch is called"):
            batches.cancel("ann", batch.id)
        tasks.cancel_scope.cancel()


def test_so_many_requests_of_all_batches_run_at_once(server: Server) -> None:
    long = [line(f"{i}", ignore_eos=True, max_tokens=300) for i in range(100)]
    with Gateway(server) as gateway, server.client() as control:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        file = upload(client, *long)
        both = [start(client, file), start(client, file)]
        end, most = time.monotonic() + 60, 0
        while most < AT_ONCE:
            assert time.monotonic() < end, most
            most = max(most, control.stats()["pie-tiny"]["queues"])  # one of each request
        assert most == AT_ONCE
        running = [each["program"] for each in control.instances()]
        assert running.count("gateway-chat") <= 2 * (AT_ONCE // IN_ONE)
        for each in both:
            client.batches.cancel(each.id)
            ended(client, each)


def test_requests_of_an_instance_that_ends_are_made_again(server: Server) -> None:
    more: dict[str, Any] = {"max_tokens": 150, "temperature": 0, "ignore_eos": True}
    lines = [line(f"{i}", COMPLETIONS, prompt=f"Item {i}:", **more) for i in range(30)]
    wrong = line("wrong", COMPLETIONS, prompt="x", max_tokens=5, stop_token_ids=[1 << 30])
    long = line("long", COMPLETIONS, prompt="x " * 9000)
    with Gateway(server) as gateway, server.client() as control:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        batch = start(client, upload(client, *lines, wrong, long), COMPLETIONS)

        def running() -> list[str]:
            found = control.instances()
            return [each["id"] for each in found if each["program"] == "gateway-chat"]

        until(lambda: len(running()) >= 2)
        for each in running():
            control.kill(each)
        batch = ended(client, batch)
        counts = batch.request_counts
        assert (batch.status, counts.completed, counts.failed) == ("completed", 30, 2)
        found = results(client, batch.output_file_id)
        for name_of in ("0", "29"):
            body: dict[str, Any] = lines[int(name_of)]["body"]
            more = {"ignore_eos": body.pop("ignore_eos")}
            live = client.completions.create(**body, extra_body=more)
            assert found[name_of]["response"]["body"]["choices"][0]["text"] == live.choices[0].text
        errors = results(client, batch.error_file_id)
        assert errors["long"]["response"]["body"]["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("most", "size", "instances"), [(20_000, 900, 50), (140_000, 3000, 6)])
def test_requests_that_are_too_large_together_go_apart(
    short_folder: Path, most: int, size: int, instances: int
) -> None:
    """Each in an instance of its own, or in several messages."""
    lines = [
        line(f"{i}", COMPLETIONS, prompt=f"{i}", max_tokens=1, stop=["x" * size] * 4)
        for i in range(40)
    ]
    with (
        Server(short_folder, limits={"message_bytes": most}) as server,
        Gateway(server, short_folder) as gateway,
    ):
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        batch = ended(client, start(client, upload(client, *lines), COMPLETIONS))
        assert (batch.status, batch.request_counts.completed) == ("completed", 40)
        with server.client() as control:
            assert control.server_info()["launched"] <= instances


def test_an_answer_that_is_too_large_fails_alone(short_folder: Path) -> None:
    lines = [
        line("short", COMPLETIONS, prompt="a", max_tokens=1),
        line("long", COMPLETIONS, prompt="a " * 300, max_tokens=1, echo=True, logprobs=5),
    ]
    with (
        Server(short_folder, limits={"message_bytes": 20_000}) as server,
        Gateway(server, short_folder) as gateway,
    ):
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        batch = ended(client, start(client, upload(client, *lines), COMPLETIONS))
        assert results(client, batch.output_file_id).keys() == {"short"}
        error = results(client, batch.error_file_id)["long"]["response"]["body"]["error"]
        assert "20000 at most" in error["message"]


def test_requests_that_begin_alike_go_together(tmp_path: Path) -> None:
    prompts = ["b 1", "a 1", "b 2", "a 2"]
    lines = [line(f"{i}", "/v1/completions", prompt=text) for i, text in enumerate(prompts)]
    path = tmp_path / "in"
    path.write_text("\n".join(map(json.dumps, lines)))
    found, wrong = _read(path, "/v1/completions")
    assert ([each.custom_id for each in found], wrong) == (["1", "3", "0", "2"], [])


def test_batches_of_one_user_stop_no_others(short_folder: Path) -> None:
    store = KeyStore(short_folder / "data")
    keys = {user: api_key(store.add(user)) for user in ("mallory", "eve")}
    with (
        Server(short_folder, endpoint="tcp://0.0.0.0:*") as server,
        Gateway(server, short_folder) as gateway,
    ):
        mallory, eve = (
            openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=keys[user], max_retries=0)
            for user in ("mallory", "eve")
        )
        long = [line(f"{i}", ignore_eos=True, max_tokens=400) for i in range(400)]
        file = upload(mallory, *long)
        many = [start(mallory, file) for _ in range(2)]
        gone = start(mallory, upload(mallory, *long[:2]))
        ended(mallory, many[0], "in_progress")
        assert ended(eve, start(eve, upload(eve, line("a")))).status == "completed"
        assert mallory.batches.retrieve(gone.id).status == "validating"
        mallory.files.delete(gone.input_file_id)
        for each in many:
            mallory.batches.cancel(each.id)
        [error] = ended(mallory, gone).errors.data
        assert error.code == "not_found_error"
        assert error.message == f"no file is called {gone.input_file_id!r}"


def test_a_batch_is_given_up_or_left_by_its_server(server: Server, short_folder: Path) -> None:
    long = [line(f"{i}", ignore_eos=True, max_tokens=200) for i in range(400)]
    with Gateway(server, short_folder) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        file = upload(client, *long)
        given_up, left = start(client, file), start(client, file)
        ended(client, left, "in_progress")
        assert client.batches.cancel(given_up.id).status == "cancelling"
        given_up = ended(client, given_up)
        assert given_up.status == "cancelled"
        done = given_up.request_counts.completed
        assert done < 400
        assert not done or len(results(client, given_up.output_file_id)) == done
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(given_up.id)
        live: Any = client.completions.create(model="pie-tiny", prompt="x", max_tokens=2)
        assert live.usage.completion_tokens == 2
    with server.client() as control:
        assert all(each["program"] != "gateway-chat" for each in control.instances())
    with Gateway(server, short_folder) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        left = ended(client, left, "failed")
        assert (left.status, left.errors.data[0].code) == ("failed", "server_stopped")
        assert client.files.retrieve(file).bytes > 10_000
