"""Batches under way: each line is a request to this very application, behind all live ones."""

from __future__ import annotations

import math
import time
from codecs import BOM_UTF8
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message

from pie_gateway.backend.together import Together
from pie_gateway.batches.store import Batch, Store, StoredFile, new_id
from pie_gateway.http.aside import Aside
from pie_gateway.http.reading import encode, explain
from pie_gateway.problems import Problem, fault
from pie_py.config.child import first_error

AT_ONCE = 64  # requests, of all batches of a user: no user waits for another one
BATCHES = 2  # of a user that are read and run at once
MOST_LINES = 50_000
CHECKED_BYTES = 1 << 20  # of results, behind which it is seen whether the user has room for more
SWEEP_SECONDS = 3600.0  # from one look for what is old to the next
PRIORITY = -100  # the lowest there is
_STOPPED = "the server ended before the batch; what was done is in its files: ask for the rest"
_CREDENTIALS = (b"authorization", b"x-api-key", b"api-key", b"host")


_Result = tuple[Literal["output", "error"], bytes]  # the file that a line goes to, and the line


class Line(msgspec.Struct):
    """A request of a batch."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: msgspec.Raw  # an object; as it came, it takes least memory


class _Body(msgspec.Struct):
    stream: Any = False
    prompt: msgspec.Raw = msgspec.Raw()  # one of these it has
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()

    @property
    def asked(self) -> bytes:
        """The text that the model is to read."""
        return bytes(self.prompt) + bytes(self.messages) + bytes(self.input)


class _Of:
    """A user's share of this process."""

    def __init__(self) -> None:
        self.requests = anyio.Semaphore(AT_ONCE)
        self.turns = anyio.Semaphore(BATCHES)


class Batches:
    """The batches that this process runs."""

    def __init__(self, store: Store) -> None:
        """Takes where they are kept."""
        self.store = store
        self._running: dict[str, tuple[Batch, anyio.CancelScope]] = {}
        self._of: defaultdict[str, _Of] = defaultdict(_Of)
        self._aside = Aside()
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Runs what is started, until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            task_status.started()
            while True:
                with suppress(OSError):  # of the disk, which tells requests, too
                    await to_thread.run_sync(self.store.forget_old, time.time())
                await anyio.sleep(SWEEP_SECONDS)

    def start(self, app: ASGIApp, user: str, batch: Batch, headers: Headers) -> None:
        """Runs a batch with the credentials of a request."""
        assert self._tasks is not None
        with ExitStack() as mark:
            mark.enter_context(self.store.running(user, batch.id))
            self.store.save(user, batch)
            self._running[batch.id] = (batch, anyio.CancelScope())
            client = _Client(app, [each for each in headers.raw if each[0] in _CREDENTIALS])
            self._tasks.start_soon(self._run, mark.pop_all(), client, user, batch)

    def find(self, user: str, name: str) -> Batch:
        """A batch of a user; one whose process has ended has failed. Raises `Problem`: 404."""
        found = self.store.find(user, name, Batch)
        if name in self._running:
            return self._running[name][0]
        if not found.has_ended:
            with self.store.running(user, name) as is_mine:
                if is_mine:
                    found.become("failed", {"code": "server_stopped", "message": _STOPPED})
                    self.store.save(user, found)
        return found

    def cancel(self, user: str, name: str) -> Batch:
        """Gives a batch up. Raises `Problem`: 404; 409 if it has ended, or is another process's."""
        batch = self.find(user, name)
        if name not in self._running:
            why = batch.status if batch.has_ended else "run by another server"
            raise Problem(409, f"the batch {name} is {why}", code="batch_ended")
        batch.become("cancelling")
        self._running[name][1].cancel()
        return batch

    async def _run(self, mark: ExitStack, client: _Client, user: str, batch: Batch) -> None:
        with mark:
            try:
                with self._running[batch.id][1] as scope:
                    with anyio.move_on_after(batch.expires_at - time.time()) as waits:
                        async with self._of[user].turns:
                            waits.deadline = math.inf  # from here on each request has an answer
                            await self._answer(client, user, batch)
                    if waits.cancelled_caught:
                        batch.become("expired")
                if scope.cancelled_caught:
                    batch.become("cancelled")
            except* Exception as group:  # noqa: BLE001  `fault` logs it
                error = first_error(group)
                assert isinstance(error, Exception), "none of others is in such a group"
                problem = error if isinstance(error, Problem) else fault(error)
                code = problem.code or problem.kind
                batch.become("failed", {"code": code, "message": problem.message})
            finally:
                del self._running[batch.id]
                with suppress(OSError):  # the disk is full, as has been logged
                    self.store.save(user, batch)

    async def _answer(self, client: _Client, user: str, batch: Batch) -> None:
        file = self.store.find(user, batch.input_file_id, StoredFile)  # unless it was deleted
        path = self.store.path(user, file.id)
        lines, wrong = await self._aside.run(user, _read, path, batch.endpoint)
        batch.request_counts["total"] = len(lines)
        if wrong:
            batch.become("failed", *wrong)
            return
        batch.become("in_progress")
        self.store.save(user, batch)
        waiting = iter(lines)
        send, results = anyio.create_memory_object_stream[_Result](AT_ONCE)

        async def work() -> None:
            for line in waiting:
                await send.send(await self._asked(client, user, batch, line))

        async with results, anyio.create_task_group() as writing:
            writing.start_soon(self._write_all, user, batch, results)
            async with send, anyio.create_task_group() as reading:
                client.together = Together(reading)
                async with anyio.create_task_group() as tasks:
                    for _ in range(AT_ONCE):
                        tasks.start_soon(work)
                await client.together.close()
        batch.become("finalizing")
        batch.become("completed" if time.time() < batch.expires_at else "expired")

    async def _asked(self, client: _Client, user: str, batch: Batch, line: Line) -> _Result:
        """The line that answers a request, once it is answered or its time is over."""
        name, seconds = new_id("batch_req_"), 0.0
        answer: dict[str, Any] = {"id": name, "custom_id": line.custom_id, "response": None}
        answer["error"] = {"code": "batch_expired", "message": "it was not its turn in time"}
        status = 503
        while status in (429, 503) and time.time() < batch.expires_at:
            await anyio.sleep(seconds)
            async with self._of[user].requests:
                status, seconds, body = await client.post(line, name)
            facts = {"status_code": status, "request_id": name, "body": msgspec.Raw(body)}
            answer.update(response=facts, error=None)
        return ("error" if status >= 400 else "output"), encode(answer) + b"\n"

    async def _write_all(
        self, user: str, batch: Batch, results: MemoryObjectReceiveStream[_Result]
    ) -> None:
        """Writes lines until the last, as many at once as have come, also once it is given up."""
        with anyio.CancelScope(shield=True):
            async for first in results:
                some = [first]
                while results.statistics().current_buffer_used:
                    some.append(results.receive_nowait())
                await self._aside.run(user, self._write, user, batch, some)

    def _write(self, user: str, batch: Batch, results: list[_Result]) -> None:
        """Adds lines to results or errors. Raises `Problem`: 413, the user has no room for them."""
        for kind in ("output", "error"):
            lines = [line for its, line in results if its == kind]
            if lines:
                self._add(user, batch, kind, b"".join(lines))
                done = "completed" if kind == "output" else "failed"
                batch.request_counts[done] += len(lines)
        self.store.save(user, batch)

    def _add(self, user: str, batch: Batch, kind: str, lines: bytes) -> None:
        field = f"{kind}_file_id"
        found = getattr(batch, field)
        if found is None or not self.store.path(user, f"{found}.json").exists():  # it was deleted
            file = self.store.add(user, f"{batch.id}_{kind}.jsonl", "batch_output")
            setattr(batch, field, file.id)
        path = self.store.path(user, getattr(batch, field))
        with path.open("ab") as out:
            before = out.tell()
            if before // CHECKED_BYTES < (before + len(lines)) // CHECKED_BYTES:
                self.store.check_room(user, len(lines), 0)
            out.write(lines)


def _read(path: Path, endpoint: str) -> tuple[list[Line], list[dict[str, Any]]]:
    """The requests of a file, and what is wrong with it. Those that begin alike go together, so
    that the prefix cache still has what they share.
    """
    lines: dict[str, Line] = {}
    texts: dict[str, bytes] = {}  # that the model is to read
    wrong: list[dict[str, Any]] = []

    def note(code: str, message: str, number: int | None = None, param: str | None = None) -> None:
        wrong.append({"code": code, "message": message, "line": number, "param": param})

    for number, text in enumerate(path.read_bytes().removeprefix(BOM_UTF8).split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=Line)
            body = msgspec.json.decode(line.body, type=_Body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = explain(str(error))
            note("invalid_line", problem.message, number, problem.param)
            continue
        if line.custom_id in lines:
            note("duplicate_custom_id", line.custom_id[:100], number, "custom_id")
        if line.url != endpoint:
            note("invalid_url", f"not the batch's, {endpoint}", number, "url")
        if body.stream:
            note("invalid_line", "nothing is streamed", number, "body.stream")
        lines[line.custom_id] = line
        texts[line.custom_id] = body.asked
    if not wrong and not MOST_LINES >= len(lines) > 0:
        note("invalid_file", f"the file has {len(lines)} requests; 1 to {MOST_LINES} are taken")
    return [lines[name] for name in sorted(texts, key=texts.__getitem__)], wrong[:100]


class _Client:
    """Asks the application itself."""

    def __init__(self, app: ASGIApp, headers: list[tuple[bytes, bytes]]) -> None:
        self._app, self._headers = app, headers
        self.together: Together | None = None  # what its requests share

    async def post(self, line: Line, name: str) -> tuple[int, float, bytes]:
        """The status, seconds after which to ask again, and the body."""
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": line.url,
            "raw_path": line.url.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [*self._headers, (b"x-request-id", name.encode())],
            "state": {"priority": PRIORITY, "together": self.together},
        }
        bodies = [bytes(line.body)]
        heads: list[Message] = []
        parts: list[bytes] = []

        async def receive() -> Message:
            if not bodies:
                await anyio.sleep_forever()  # this client does not leave
            return {"type": "http.request", "body": bodies.pop()}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                heads.append(message)
            parts.append(message.get("body", b""))

        try:
            await self._app(scope, receive, send)
        except Exception:  # a fault, which is logged, and is an answer with the status 500
            if not heads:
                raise
        seconds = float(Headers(raw=list(heads[0]["headers"])).get("retry-after", 1))
        return heads[0]["status"], seconds, b"".join(parts)
