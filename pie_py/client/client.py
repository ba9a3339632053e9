"""The client under asyncio and trio."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from pie_py.build.modules import read_program
from pie_py.client.connection import Connection
from pie_py.client.errors import ClientError, RpcError, ServerUnreachable, instance_error
from pie_py.client.functions import Function, answer
from pie_py.client.handshake import encrypts
from pie_py.client.instance import Instance, branch, opened, read_log, reader
from pie_py.client.local import local_endpoint
from pie_py.client.remote.call import Call, Remote, Sender, end
from pie_py.client.remote.reach import Reach
from pie_py.client.remote.several import map_calls
from pie_py.client.routes import Redirected, Route
from pie_py.config.endpoint import DEFAULT_ENDPOINT, BadEndpoint, Endpoint, parse_endpoint
from pie_py.config.keys import ClientKey, KeyProblem
from pie_py.wire import methods
from pie_py.wire.adapter_file import CONFIG_FILE, TENSOR_FILE, pack
from pie_py.wire.modules import SAMPLER
from pie_py.wire.rpc import CHUNK_BYTES


def server_endpoint(text: str) -> Endpoint:
    """Checks an endpoint to connect to, which has a port where one to listen at may leave it open.

    Raises:
        BadEndpoint: if it is no endpoint, or has no port.
    """
    endpoint = parse_endpoint(text)
    if endpoint.path is None and text.endswith(":*"):
        raise BadEndpoint(
            f"{text} has no port to connect to; give the one that the server told when it was ready"
        )
    return endpoint


class Client:
    """A session with a server.

        async with Client() as client:
            instance = await client.launch("text_completion", ["--prompt", "Hello"])
            async for message in instance:
                print(message, end="")

    A dropped connection is made again by itself: requests are done once, and messages come once and
    in order. Only when the server is away longer than `patience`, or restarts, do calls fail.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        key: str | Path | ClientKey | None = None,
        *,
        patience: float = 10.0,
        cut_seconds: float = math.inf,
    ) -> None:
        """Nothing is done before `async with`.

        Args:
            endpoint: `tcp://host:port` or `ipc://path`; the environment's PIE_PY_ENDPOINT or the
                default unless given.
            key: a key or the path of a key file, for a server that wants one; the environment's
                PIE_PY_KEY unless given; a server of this machine that takes no key gets none.
            patience: seconds to look for the server when it does not answer.
            cut_seconds: of a cluster: seconds in which neither a node nor the gateway says
                anything, after which the instances there are lost to this client; by default
                `patience` decides.
        """
        self._cut_seconds = cut_seconds
        self._endpoint = endpoint or os.environ.get("PIE_PY_ENDPOINT") or DEFAULT_ENDPOINT
        self._key = key
        self._patience = patience
        self._server: dict[str, Any] | None = None  # what to start unless one runs
        self._found: Route | None = None  # once it is connected
        self._stack = AsyncExitStack()

    @classmethod
    def local(cls, *models: str, **settings: Any) -> Client:
        """A client of the server that runs on this machine; if none does, of one that it starts.

            async with Client.local() as client: ...

        A server that it has started ends with the client.

        Args:
            models: folders, hub ids or names to serve; with any, a server is started in any case.
            settings: fields of `ServerConfig`; likewise.
        """
        made = cls()
        made._server = {"models": [{"source": one} for one in models]} if models else {}
        made._server |= settings
        return made

    async def __aenter__(self) -> Client:
        """Connects.

        Raises:
            ServerUnreachable: if no server answers at the endpoint, or not with this key.
        """
        async with AsyncExitStack() as stack:
            if self._server is not None:
                self._endpoint = await stack.enter_async_context(
                    local_endpoint(self._endpoint, self._server)
                )
            endpoint, key = await self._address()
            connection = Connection(endpoint, key, self._patience)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            await tasks.start(connection.run)
            problem = await connection.ready()
            if problem is None:
                self._stack = stack.pop_all()
        if problem is not None:  # raised outside of the group, which would wrap it
            raise problem
        if connection.session.facts.get("cluster"):
            self._found = Redirected(connection, key, self._patience, tasks, self._cut_seconds)
        else:
            self._found = Route(connection)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnects. Instances that were not launched detached end a minute or so later."""
        await self._stack.aclose()

    # Queries

    async def server_info(self) -> dict[str, Any]:
        """Versions, limits and load of the server."""
        return await self._connected.ask(methods.Server())

    async def models(self, *, unloaded: bool = False) -> list[dict[str, Any]]:
        """The models being served, the default one first; with `unloaded` those, too, that are not
        loaded, but by request: little more than their `name` and `state` may be known.
        """
        return await self._connected.ask(methods.Models(unloaded=unloaded))

    async def load_model(self, model: str, keep: float | None = None) -> None:
        """Returns once a model that is loaded by request is.

        Args:
            model: its name.
            keep: seconds for which it stays when it is not used; only the operator may say.

        Raises:
            RpcError: `unknown-model`, `failed-dependency`, `out-of-resources`,
                `permission-denied`.
        """
        await self._connected.ask(methods.LoadModel(model=model, keep=keep))

    async def unload_model(self, model: str) -> None:
        """Unloads a model that is loaded by request; only the operator may.

        Raises:
            RpcError: `unknown-model`, `busy`, `permission-denied`.
        """
        await self._connected.ask(methods.UnloadModel(model=model))

    async def pause_model(self, model: str | None = None, *, keep: bool = True) -> None:
        """Has a model compute nothing until `resume_model`, and returns once it does not; only the
        operator may.

        Args:
            model: the default one if not given.
            keep: what runs keeps its pages, and goes on then; otherwise instances that use the
                model end, and durable ones begin again.

        Raises:
            RpcError: `permission-denied`, `unknown-model`.
        """
        await self._connected.ask(methods.PauseModel(model or await self._default_model(), keep))

    async def resume_model(self, model: str | None = None) -> None:
        """Has a model that was paused go on; only the operator may.

        Raises:
            RpcError: `permission-denied`, `unknown-model`.
        """
        await self._connected.ask(methods.ResumeModel(model or await self._default_model()))

    async def update_weights(
        self, weights: str | Path | Mapping[str, Any], model: str | None = None, version: str = ""
    ) -> str:
        """Puts tensors in place of a model's between two of its steps, all or none; returns the
        version of its weights from then on. Only the operator may.

        What runs keeps its pages, also those that the former weights have filled; no other text
        finds these: the prefix cache and saved contexts are emptied. When the server is started
        again, or its worker is, a model has the weights of its checkpoint, and an empty version.

        Args:
            weights: a safetensors file of the server's machine; or PyTorch's or NumPy's tensors,
                which go through the memory that this process shares with a server on the same
                machine. Names are those of the checkpoint; `NAME[2:4]` is its rows 2 and 3.
            model: the default one if not given.
            version: what it is called; a number by default.

        Raises:
            RpcError: `permission-denied`, `unknown-model`, `busy`, `worker-lost`,
                `invalid-argument` (a tensor that does not fit, or can't be replaced: nothing is).
        """
        model = model or await self._default_model()
        with ExitStack() as stack:
            if isinstance(weights, Mapping):
                file = stack.enter_context(shared_file())
                await anyio.to_thread.run_sync(write_tensors, file, weights)
            else:
                file = Path(weights)
            asked = methods.UpdateWeights(model, str(file.absolute()), version)
            return await self._connected.ask(asked)

    async def adapters(self) -> list[dict[str, Any]]:
        """`model` and `name` of the LoRA adapters that inferlets may use."""
        return await self._connected.ask(methods.Adapters())

    async def load_adapter(self, name: str, folder: str | Path, model: str | None = None) -> None:
        """Loads an adapter that PEFT has saved; only the operator may.

        Args:
            name: how inferlets are to call it.
            folder: on the server's machine, absolute.
            model: which it is for; the default one if not given.

        Raises:
            RpcError: `permission-denied`, `invalid-argument`, `already-exists`, `unknown-model`,
                `limit-exceeded`, `worker-lost`.
        """
        model = model or await self._default_model()
        await self._connected.ask(methods.LoadAdapter(model=model, name=name, folder=str(folder)))

    async def upload_adapter(
        self,
        name: str,
        folder: str | Path | bytes,
        model: str | None = None,
        *,
        for_session: bool = False,
    ) -> str:
        """Uploads an adapter that PEFT has saved, for this user's inferlets alone; returns its
        version, the hash of what was sent.

        One of this name is replaced: instances that have used that one go on with it, those that
        begin later have the new one; `context.weights_version` tells an inferlet which.

        Args:
            name: how inferlets and requests over HTTP are to call it.
            folder: of this machine, with `adapter_config.json` and `adapter_model.safetensors`; or
                the bytes that `pie_py.wire.adapter_file.pack` makes of these.
            model: which it is for; the default one if not given.
            for_session: it goes when this client disconnects; else it stays until
                `unload_adapter`, over restarts of the server.

        Raises:
            BadAdapter, OSError: its files are no adapter, or cannot be read.
            RpcError: `program-rejected` with the reason, `invalid-argument` (it does not fit the
                model), `limit-exceeded`, `already-exists` (of all users), `unknown-model`,
                `unsupported`, `busy`, `worker-lost`.
        """
        model = model or await self._default_model()

        def read() -> bytes:
            if isinstance(folder, bytes):
                return folder
            files = (Path(folder, each).read_bytes() for each in (CONFIG_FILE, TENSOR_FILE))
            return pack(*files)

        digest = await self._send_bytes(await anyio.to_thread.run_sync(read), name)
        await self._connected.ask(
            methods.LoadAdapter(model, name, hash=digest, session=for_session)
        )
        return digest

    async def upload_tensors(
        self, name: str, tensors: str | Path | Mapping[str, Any], *, for_session: bool = False
    ) -> str:
        """As `upload_adapter`, vectors and matrices for this user's device programs, which are
        given them as `device.uploaded(name, tensor)`: a safetensors file of this machine, or
        PyTorch's or NumPy's tensors by name, of two axes at most, 16 MiB together.

        Raises:
            ValueError, OSError: they are no tensors, or the file cannot be read.
            RpcError: `program-rejected` with the reason, `limit-exceeded`.
        """

        def read() -> bytes:
            if not isinstance(tensors, Mapping):
                return Path(tensors).read_bytes()
            with shared_file() as file:
                write_tensors(file, tensors)
                return file.read_bytes()

        digest = await self._send_bytes(await anyio.to_thread.run_sync(read), name)
        await self._connected.ask(methods.LoadAdapter("", name, hash=digest, session=for_session))
        return digest

    async def unload_adapter(self, name: str, model: str | None = None) -> None:
        """Has no other instance use an adapter, which is unloaded when none does any more: this
        user's, or, which only the operator may, one of all.

        Raises:
            RpcError: `permission-denied`, `not-found`, `unknown-model`.
        """
        model = model or await self._default_model()
        await self._connected.ask(methods.UnloadAdapter(model=model, name=name))

    async def mcp_servers(self) -> list[dict[str, Any]]:
        """MCP servers that this user's inferlets may use: `name`, `own` (this user's), `at`."""
        return await self._connected.ask(methods.McpServers())

    async def register_mcp(
        self,
        name: str,
        url: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Registers an MCP server for this user's inferlets alone.

        It is known until `unregister_mcp`, or until the server stops, which keeps it nowhere.
        Nothing is sent to it before an inferlet uses it.

        Args:
            name: how inferlets call it.
            url: of streamable HTTP; a host that the operator lets inferlets send requests to.
            headers: sent with every request, for keys.
            command: instead of a URL, a program and its arguments, run on the server's machine;
                most operators don't allow that.
            env: variables of the command.

        Raises:
            RpcError: `invalid-argument`, `permission-denied`, `already-exists`, `limit-exceeded`.
            TypeError: what should be texts is none.
        """
        headers, env = dict(headers or {}), dict(env or {})
        texts = [*command, *headers, *headers.values(), *env, *env.values()]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("`command`, `headers` and `env` of an MCP server are made of texts")
        program = command[0] if command else None
        args = list(command[1:])
        await self._connected.ask(methods.RegisterMcp(name, url, headers, program, args, env))

    async def unregister_mcp(self, name: str) -> None:
        """Forgets an MCP server that this user has registered; calls under way fail.

        Raises:
            RpcError: `not-found`, `permission-denied` (it is the operator's).
        """
        await self._connected.ask(methods.UnregisterMcp(name=name))

    async def _default_model(self) -> str:
        models = await self.models()
        return str(models[0]["name"]) if models else ""

    async def programs(self) -> list[dict[str, Any]]:
        """The user's uploaded programs, oldest first."""
        return await self._connected.ask(methods.Programs())

    async def instances(
        self, *, ended: bool = False, all_users: bool = False
    ) -> list[dict[str, Any]]:
        """The user's instances that run, and those that `ended` lately if asked for.

        With `all_users` those of all, which only the operator may ask for.

        Raises:
            RpcError: `permission-denied`.
        """
        return await self._connected.ask(methods.Instances(all=ended, users=all_users))

    async def quota(self, *, all_users: bool = False) -> list[dict[str, Any]]:
        """The user's shares of what one user may have; with `all_users` all users, which
        only the operator may ask for.

        Returns:
            Of each user `user`, `weight`, `priority`, `launches` a second, and `kinds`, each with
            what a user `has` and `may` have; null for what is lent while it is free.

        Raises:
            RpcError: `permission-denied`.
        """
        return await self._connected.ask(methods.Quota(users=all_users))

    async def usage(self, days: int = 1, *, all_users: bool = False) -> list[dict[str, Any]]:
        """The usage of the user's programs in the last days (UTC), live ones too; with
        `all_users` those of all users, which only the operator may ask for.

        Returns:
            Of each `day`, `user`, `program` and `tag` the `instances`, `prompt_tokens`,
            `generated_tokens`, `cached_tokens`, `page_seconds`, `cpu_seconds`, `tool_seconds`.

        Raises:
            RpcError: `permission-denied`.
        """
        return await self._connected.ask(methods.Usage(days, users=all_users))

    async def stats(self) -> dict[str, Any]:
        """Numbers of each model's scheduler and pools."""
        return await self._connected.ask(methods.Stats())

    async def logs(self, instance_id: str, after: int = 0) -> dict[str, Any]:
        """`lines` that an instance logged, from number `after` on; `next`; `ended`."""
        return await read_log(self._route.ask, instance_id, after)

    async def trace(self, instance_id: str, after: int = 0) -> dict[str, Any]:
        """The work of an instance over time, as far as the server keeps it.

        Args:
            instance_id: alive, or ended lately.
            after: number of the first span, `next` of an earlier answer.

        Returns:
            `spans` (`track`: wait or batch; `name`, `begin_ns`, `end_ns`, `size`, `device_ns`),
            `next`, `open` (the wait under way, a span), and of the instance `program`, `begun_ns`
            and `ended_ns`.

        Raises:
            RpcError: `not-found`.
        """
        return await self._route.ask(methods.Trace(instance_id, after))

    async def inspect(self, instance_id: str, context: int | None = None) -> dict[str, Any]:
        """An instance from the inside: the facts of `instances`, `sent` (the newest of its texts,
        of `sent_total` characters), `end` (its result, or why it failed), `queued_commands`, and
        `models` with its pages and its contexts, released ones too, each with the `parent` that it
        was forked from. Of one `context`, by its `queue`, the `context_tokens`, too.

        Raises:
            RpcError: `not-found`.
        """
        return await self._route.ask(methods.Inspect(instance_id, context))

    # Programs

    async def remove_program(self, name: str, *, force: bool = False) -> list[dict[str, Any]]:
        """Removes the user's programs of a name, former ones too, or of a content hash.

        Args:
            name: or the hash, or six or more digits of it.
            force: also with running instances, which are ended.

        Returns:
            What was removed, as `programs` tells it.

        Raises:
            RpcError: `not-found`, also of another user's; `busy` while instances run.
        """
        return await self._connected.ask(methods.RemoveProgram(program=name, force=force))

    async def upload(
        self, program: str | Path | bytes, name: str | None = None, *, sampler: bool = False
    ) -> str:
        """Uploads a component or a program in Python or JavaScript; returns its content hash.

        The modules beside a source that it imports are part of the program. Bytes that the server
        has are not sent again.

        Args:
            program: a file's path, that of a folder with `main.py`, `main.js` or `main.ts`, or the
                bytes themselves.
            name: what to call it; the file's name without its ending unless given.
            sampler: it is the text of a device program, which inferlets and requests over HTTP
                choose tokens by, under this name.

        Raises:
            BadProgram, OSError: its files make no program, or cannot be read.
            RpcError: `program-rejected` with the reason if it cannot run there, `limit-exceeded` if
                it is too large, `invalid-argument` for a bad name.
        """
        if isinstance(program, bytes):
            data = program
            if name is None:
                raise ValueError("bytes need a name to be called by: upload(data, name=...)")
        else:
            read = Path.read_bytes if sampler else read_program
            data = await anyio.to_thread.run_sync(read, Path(program))
            name = name or Path(program).absolute().stem  # noqa: ASYNC240  it looks at no file
        return await self._send_bytes(SAMPLER + data if sampler else data, name)

    async def _send_bytes(self, data: bytes, name: str) -> str:
        """Sends what is to be kept under a name, unless it is there; returns its hash."""
        connection = self._connected
        limit = connection.session.facts["program_bytes"]
        if len(data) > limit:
            raise RpcError(
                "limit-exceeded",
                f"a program of {len(data)} bytes; this server takes {limit} at most",
            )
        # Hashing a large one would hold up the event loop.
        digest = (await anyio.to_thread.run_sync(hashlib.sha256, data)).hexdigest()
        known = await connection.ask(methods.Upload(digest, name, len(data)))
        for offset in range(0, len(data), CHUNK_BYTES) if known is None else ():
            chunk = data[offset : offset + CHUNK_BYTES]
            await connection.ask(methods.UploadChunk(digest, offset, chunk))
        return digest

    async def make_current(self, digest: str, name: str) -> None:
        """Makes a former version of a program, by its content hash, the one that a name stands for.

        Raises:
            RpcError: `not-found`: the server does not have its bytes.
        """
        sizes = [each["size"] for each in await self.programs() if each["hash"] == digest]
        known = await self._connected.ask(methods.Upload(digest, name, sizes[0])) if sizes else None
        if known is None:
            raise RpcError("not-found", f"no program has the hash {digest[:100]}: upload it again")

    # Instances

    async def launch(
        self,
        program: str,
        args: Sequence[str] = (),
        *,
        detached: bool = False,
        near: str | None = None,
        prompt: str = "",
        durable: bool = False,
        keep_newest: bool = False,
        tag: str = "",
        deadline: float | None = None,
        objective: methods.Objective | None = None,
        expected_tokens: int | None = None,
    ) -> Instance:
        """Starts an instance of an uploaded program, by name or content hash, and reads from it.

        A detached one lives on without a client, and keeps what it sends (up to a limit) for who
        attaches; its `Instance` here only sends, kills and so on. With `keep_newest` what is over
        the limit drops the oldest, which else holds the instance up until it is read; a durable
        one drops nothing. `tag` is a name in the ledger (`usage`), of its children, too.

        Where not all instances of its user have room, those go first that have least to generate,
        as far as that is known; `expected_tokens` says how much this one has. With `objective` it
        goes before them ("latency"), or behind ("throughput"), and before all once the time to its
        `deadline`, so many seconds from now, is short; one that is late goes on. So do its
        children (docs/scheduling.md).

        In a cluster it starts on the node of `near`, an instance's id, while there is room; else on
        the best one, which is where prompts that began as `prompt` does went lately, if the program
        will compute that. One server has one place for all.

        A durable one goes on after a crash of the server or of its worker (docs/durable.md), and
        so does what reads from it here; in a cluster with a database also at another node, when
        its own is drained or lost. It lives on without a client.

        Raises:
            RpcError: `not-found`, `limit-exceeded`, `program-rejected`, `worker-lost`; in a
                cluster `near-gone`, `node-lost`, and `busy` if no node has room;
                `unsupported` if it is to be durable in one without a database.
        """

        async def start(connection: Connection, program: str) -> Instance:
            session = connection.session

            def abandoned(instance: Instance) -> None:
                session.close_stream(instance.id)
                if session.error is None:
                    session.request("kill", {"instance": instance.id})

            return await opened(
                *(self._route, connection, "launch"),
                on_late=abandoned,
                program=program,
                args=list(args),
                detached=detached,
                durable=durable,
                keep_newest=keep_newest,
                tag=tag,
                goal=methods.Goal(deadline, objective, expected_tokens),
            )

        return await self._route.launch(program, near, prompt, start, durable=durable)

    async def resume(self, instance_id: str) -> None:
        """Has a durable instance go on that was killed or has failed; `attach` reads from it.

        Raises:
            RpcError: `not-found`; `already-exists` if it is alive, or has its result.
        """
        await self._route.ask(methods.Resume(instance_id))

    async def branch(
        self,
        instance_id: str,
        at: int,
        *,
        program: str | None = None,
        args: Sequence[str] | None = None,
    ) -> Instance:
        """As `Instance.branch`, of an instance by its id, alive or ended."""
        return await branch(self._route, instance_id, at, program, args)

    async def calls(self, instance_id: str, after: int = 0) -> list[dict[str, Any]]:
        """As `Instance.calls`, of an instance by its id."""
        return await self._route.ask(methods.Calls(instance_id, after))

    async def attach(self, instance_id: str) -> Instance:
        """Reads from an instance, in place of the client that reads from it now.

        Messages that were not acknowledged come first. An instance that has ended can be attached
        to for a while: its last messages and its result are kept.

        Raises:
            RpcError: `not-found`.
        """
        if (current := reader(self._route, instance_id)) is not None:
            return current
        attach = partial(opened, self._route, method="attach", instance=instance_id)
        return await self._route.at(instance_id, attach)

    async def send(self, instance_id: str, message: str | bytes) -> None:
        """Sends to an instance without reading from it; waits while its mailbox is full.

        Raises:
            RpcError: `not-found`, `limit-exceeded`, `cancelled` (it has ended), `busy` (a message
                of this client waits for room).
        """
        await self._route.ask(methods.Send(instance_id, message))

    async def kill(self, instance_id: str) -> bool:
        """Ends an instance. Returns whether it was alive."""
        return await self._route.ask(methods.Kill(instance_id))

    async def await_tools(
        self, instance_id: str, tools: Sequence[str], *, person: bool = False
    ) -> None:
        """Tells that the conversation, a turn of which an instance has served, waits for tools, by
        their names, or for a `person`, or goes on: the server keeps its cached prefix by what it
        has seen such waits take.

        Raises:
            RpcError: `not-found` if it begins to wait, and the instance ended too long ago.
        """
        await self._route.ask(methods.AwaitTools(instance_id, [*tools], person))

    async def result(self, instance_id: str) -> str:
        """Waits for an instance's end without reading from it, and returns its result.

        Raises:
            UsageError, InferletFailed: if it ended without a result.
            RpcError: `not-found`.
        """
        ended = await self._route.ask(methods.Result(instance_id))
        if ended["state"] != "finished":
            raise instance_error(ended["state"], ended["text"])
        return ended["text"]

    async def answer(
        self,
        /,
        request: str,
        functions: Sequence[Function | Callable[..., Any]] = (),
        **options: Any,
    ) -> dict[str, Any]:
        """Has a model answer with functions that run here; see `pie_py.client.functions`."""
        return await answer(self, request, functions, **options)

    # Functions that run in inferlets

    async def run(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """Runs a function of this program in an inferlet and returns what it returns.

            async def capital(country: str) -> str:
                context = Context(Model.load()).fill(f"The capital of {country} is")
                return await context.generate(Sampler.argmax(), max_tokens=8).collect_text()

            print(await client.run(capital, "France"))

        Its source goes, with what it uses of its module: functions, classes, imports, plain data.
        Arguments and results are JSON's values, bytes, tuples, sets, enums, dataclasses and
        pydantic models (there a dataclass of the same fields). What it prints is printed here.

        Raises:
            CannotTravel: it uses something that is no data, or has no source.
            InferletFailed: it was ended by a limit, or raised what is not known here; what else it
                raises comes as it is, with the lines of its file.
        """
        return await (await Sender.of(self, function)).result(args, options)

    async def stream(
        self, function: Callable[..., Any], /, *args: Any, **options: Any
    ) -> AsyncIterator[Any]:
        """As `run`, of a function that yields: `async for value in client.stream(function)`."""
        call = await self.spawn(function, *args, **options)
        try:
            async for value in call:
                yield value
        finally:
            await end(call.instance)

    async def map(
        self,
        function: Callable[..., Any],
        /,
        *inputs: Iterable[Any],
        at_once: int = 64,
        return_exceptions: bool = False,
        progress: bool | None = None,
    ) -> list[Any]:
        """Runs a function for each input, many at once; results come in the inputs' order.

        An inferlet gets several inputs: at once, if the function is asynchronous, and one after the
        other. Those that begin alike go together. If one of them ends its inferlet, the others run
        again in another one.

        Args:
            function: as in `run`.
            inputs: one iterable for each of its parameters, as in Python's `map`.
            at_once: most inputs under way at a time.
            return_exceptions: what a call raises is its result; else the first one ends the others
                and is raised.
            progress: a bar on standard error; by default if that is a terminal.
        """
        return await map_calls(
            await Sender.of(self, function),
            list(zip(*inputs, strict=True)),
            at_once,
            return_exceptions,
            sys.stderr.isatty() if progress is None else progress,
        )

    async def spawn(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Call:
        """Starts a function as `run` does, and does not wait for it.

        Raises:
            CannotTravel, RpcError: it could not be started.
        """
        sender = await Sender.of(self, function)
        return Call(await sender.begin(args, options), sender.reach)

    async def create(self, kind: Callable[..., Any], /, *args: Any, **options: Any) -> Remote:
        """Makes an object of a class in an inferlet, where it lives and is called.

        async with await client.create(Agent, "Ada") as agent:
            print(await agent.ask("How are you?"))
        """
        reach = await anyio.to_thread.run_sync(Reach, kind)
        instance = await Sender(self, reach).begin(args, options)
        try:
            await Call(instance, reach).result()
        except BaseException:
            await end(instance)
            raise
        return Remote(instance, reach)

    @property
    def is_alive(self) -> bool:
        """True if requests may still succeed: the server has not been lost for good."""
        return self._connected.session.error is None

    @property
    def user(self) -> str:
        """Who the server takes this client for."""
        return self._connected.session.user

    # Inside

    @property
    def _route(self) -> Route:
        if self._found is None:
            raise ClientError(
                "the client is not connected: use it in `async with Client() as client:`"
            )
        return self._found

    @property
    def _connected(self) -> Connection:
        return self._route.server

    async def _address(self) -> tuple[Endpoint, ClientKey | None]:
        try:
            endpoint = server_endpoint(self._endpoint)
            if (found := await anyio.to_thread.run_sync(endpoint.resolved)).is_loopback:
                endpoint = found  # another machine's stays a name, whose address may change
            key = self._key
            if key is None and (file := os.environ.get("PIE_PY_KEY")):
                key = file if not endpoint.is_loopback or await encrypts(endpoint) else None
            if isinstance(key, str | Path):
                key = ClientKey.read(Path(key))
        except (BadEndpoint, KeyProblem) as error:
            raise ServerUnreachable(str(error)) from None
        if key is None and not endpoint.is_loopback:
            raise ServerUnreachable(
                f"{endpoint.text} is on another machine and wants a key: pass key=FILE or set"
                " PIE_PY_KEY; `pie-py keys add USER` on the server's machine makes one"
            )
        return endpoint, key


SHARED = Path("/dev/shm")  # Linux's files in memory


@contextmanager
def shared_file() -> Iterator[Path]:
    """A file in memory, where there are such, that is removed at the end."""
    where = SHARED if SHARED.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="pie-", dir=where) as folder:
        yield Path(folder, "tensors.safetensors")


def write_tensors(file: Path, tensors: Mapping[str, Any]) -> None:
    """Writes PyTorch's or NumPy's tensors. Raises `ValueError`: they are none, or of both."""
    kinds = {type(tensor).__module__.partition(".")[0] for tensor in tensors.values()}
    if kinds == {"numpy"}:
        from safetensors.numpy import save_file

        save_file(dict(tensors), file)
    elif kinds == {"torch"}:
        from safetensors.torch import save_file as save

        seen: set[int] = set()
        whole: dict[str, Any] = {}
        for name, tensor in tensors.items():
            given = tensor.detach().cpu().contiguous()
            # A file has no two tensors in one place, as a head that is the embedding.
            whole[name] = given.clone() if given.data_ptr() in seen else given
            seen.add(given.data_ptr())
        save(whole, file)
    else:
        raise ValueError(f"tensors of PyTorch or arrays of NumPy are wanted, not {sorted(kinds)}")
