"""`/v1/instances`."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from starlette.responses import Response

from pie_gateway.backend.backend import Reader
from pie_gateway.backend.generation import end
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import event, json_response, stream_response, while_asked
from pie_gateway.inferlets.running import events_of, failed_end
from pie_gateway.problems import Problem, asked
from pie_gateway.schemas import inferlets
from pie_py.client import InferletFailed

MOST_DAYS = 31  # of usage: its rows are written on the loop that all share


async def instances(exchange: Exchange) -> Response:
    """The user's instances; with `all=true` those that ended lately, too."""
    found = await asked(exchange.client.instances(ended=exchange.flag("all")))
    return json_response(inferlets.Data(msgspec.convert(found, list[inferlets.InstanceCard])))


async def launch(exchange: Exchange) -> Response:
    """Launches an instance that lives without a client; its events are read later."""
    wanted = await exchange.read(inferlets.DetachedRequest)
    backend = exchange.backend
    instance = await while_asked(
        exchange,
        lambda: backend.launch(
            wanted.program,
            wanted.args,
            detached=True,
            durable=wanted.durable,
            keep_newest=wanted.keep_newest,
            **wanted.goal(),
        ),
    )
    exchange.instance_launched(instance.id)
    return json_response(inferlets.Launched(instance.id), 201)


async def instance(exchange: Exchange) -> Response:
    """One instance."""
    wanted = exchange.path["instance"]
    for each in await asked(exchange.client.instances(ended=True)):
        if each["id"] == wanted:
            return json_response(msgspec.convert(each, inferlets.InstanceCard))
    raise Problem(404, f"no instance is called {wanted[:200]!r}", code="not_found")


async def calls(exchange: Exchange) -> Response:
    """The calls in the journal of a durable instance, alive or ended, from number `after` on."""
    after = exchange.number("after")
    found = await asked(exchange.client.calls(exchange.path["instance"], after))
    return json_response(
        inferlets.CallList(msgspec.convert(found, list[inferlets.JournalCall]), after + len(found))
    )


async def branch(exchange: Exchange) -> Response:
    """Starts an instance that has lived as a durable one, alive or ended, up to a call; its events
    are read later.
    """
    wanted = await exchange.read(inferlets.BranchRequest)
    client, identity = exchange.client, exchange.path["instance"]
    made = client.branch(identity, wanted.call, program=wanted.program, args=wanted.args)
    instance = await asked(made)
    await asked(instance.detach())
    exchange.instance_launched(instance.id)
    return json_response(inferlets.Launched(instance.id), 201)


async def kill(exchange: Exchange) -> Response:
    """Ends an instance."""
    return json_response(
        inferlets.Killed(await asked(exchange.client.kill(exchange.path["instance"])))
    )


async def send(exchange: Exchange) -> Response:
    """Sends a message to an instance; waits while its mailbox is full."""
    wanted = await exchange.read(inferlets.MessageRequest)
    given = wanted.text if wanted.text is not None else wanted.base64
    if given is None or (wanted.text is not None and wanted.base64 is not None):
        raise Problem(400, "`text` or `base64` is the message", param="text")
    client, identity = exchange.client, exchange.path["instance"]
    await while_asked(exchange, lambda: asked(client.send(identity, given)))
    return json_response(inferlets.Done())


async def result(exchange: Exchange) -> Response:
    """Waits for an instance's end."""

    async def wait() -> inferlets.Ended:
        try:
            return inferlets.Ended(
                "finished", await exchange.client.result(exchange.path["instance"])
            )
        except InferletFailed as error:
            return failed_end(error)

    return json_response(await while_asked(exchange, lambda: asked(wait())))


async def log(exchange: Exchange) -> Response:
    """The log of an instance, from line number `after` on."""
    found = await asked(exchange.client.logs(exchange.path["instance"], exchange.number("after")))
    return json_response(msgspec.convert(found, inferlets.Log))


async def trace(exchange: Exchange) -> Response:
    """The waits of an instance, and the batches that its commands were in, from number `after` on,
    as far as the server still has them.
    """
    found = await asked(exchange.client.trace(exchange.path["instance"], exchange.number("after")))
    return json_response(msgspec.convert(found, inferlets.Trace))


async def events(exchange: Exchange) -> Response:
    """Reads what an instance sends, in place of the client that reads it now."""
    return stream_response(exchange, _events(exchange))


async def _events(exchange: Exchange) -> AsyncGenerator[bytes, None]:
    readers, identity = exchange.backend.readers, exchange.path["instance"]
    before, mine = readers.get(identity), Reader()
    readers[identity] = mine
    try:
        if before is not None and before.instance is not None:
            await end(before.instance, leave=True)
        instance = await asked(exchange.client.attach(identity))
        if readers.get(identity) is not mine:
            raise Problem(409, f"another reader of {identity} has come", code="conflict")
        mine.instance = instance
        async for each in events_of(instance):
            yield event(each)
    finally:
        if readers.get(identity) is mine:  # else the one that has come reads on
            del readers[identity]
            if mine.instance is not None:
                await end(mine.instance, leave=True)


async def server(exchange: Exchange) -> Response:
    """Versions, load and limits."""
    found = await asked(exchange.client.server_info())
    return json_response(msgspec.convert(found, inferlets.ServerInfo))


async def stats(exchange: Exchange) -> Response:
    """Numbers of each model's scheduler and pools."""
    return json_response(await asked(exchange.client.stats()))


async def usage(exchange: Exchange) -> Response:
    """The usage of the user's programs in the last days (UTC); for an operator all users'."""
    if (days := exchange.number("days") or 1) > MOST_DAYS:
        raise Problem(400, f"`days` is at most {MOST_DAYS}", param="days")
    found = await asked(exchange.client.usage(days, all_users=exchange.is_operator))
    return json_response(inferlets.Data(msgspec.convert(found, list[inferlets.UsageRow])))
