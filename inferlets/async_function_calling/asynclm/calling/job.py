"""One request of the HTTP gateway, whose functions run while the model writes on."""

from __future__ import annotations

import json
from typing import Any

from asynclm.calling.generation import Generation
from asynclm.calling.options import Inbox, Options
from asynclm.calling.prompts import adapter_for
from asynclm.tools.client import ClientLink
from asynclm.tools.kinds import BadTools, load_tools
from inferlet import session
from inferlet.errors import PieError
from inferlet.model import Model
from inferlet.sample import Sampler


async def serve(text: str) -> None:
    """Answers a request and tells the gateway, in its lists of JSON, what the model says. Raises
    SystemExit: with an error of the contract, from which the gateway makes its answer.
    """
    job = json.loads(text)
    model = Model.load(job["model"])
    *before, last = json.loads(job["messages"])
    inbox = Inbox()
    try:
        link = ClientLink(inbox.put)
        tools = await load_tools(job["tools"], link)
        if link.used:
            raise BadTools("a tool without `run` is the client's, which is not reached meanwhile")
        report = Report(stream=job.get("stream", False))
        most = job.get("max_tokens") or model.max_position
        options = Options(
            sampler=Sampler(**job["sampler"]),
            max_tokens=most,
            adapter=job.get("adapter") or adapter_for(model),
        )
        generation = Generation(model, tools, options, inbox=inbox, on_event=report.event)
        report.generation = generation
        record = await generation.run(last["content"], before)
    except (BadTools, ValueError) as error:
        raise SystemExit(f"invalid-argument: {error}") from None
    except PieError as error:
        raise SystemExit(str(error)) from None
    report.end("stop" if record.ended == "done" else "length")


class Report:
    """Tells the gateway what the model says outside of calls."""

    def __init__(self, *, stream: bool) -> None:
        """Nothing is told yet; with `stream` text is told as it comes."""
        self.generation: Generation | None = None  # set before it runs
        self._stream = stream
        self._text = ""
        self._begun = False
        self._told = 0  # tokens

    def event(self, event: dict[str, Any]) -> None:
        """Takes an event of the generation."""
        if event["type"] == "text":
            self._text += event["text"]
            if self._stream:
                self._piece()

    def end(self, reason: str) -> None:
        """Tells the rest, and that nothing more comes."""
        self._piece()
        session.send(json.dumps(["end", 0, reason, None, self._told]))

    def _piece(self) -> None:
        assert self.generation is not None
        record = self.generation.record
        if not self._begun:
            self._begun = True
            session.send(json.dumps(["prompt", record.prompt_tokens]))
        count = record.generated_tokens
        piece = ["piece", 0, self._text, count - self._told]
        session.send(json.dumps(piece, ensure_ascii=False))
        self._text, self._told = "", count
