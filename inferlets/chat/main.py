"""A conversation: each text that the client sends is a turn, and the answer comes in pieces.

An empty text ends each answer. A text that begins with `/` is a command: of this program, or of the
terminal that sends it (`pie-py chat` shows both with `/help`).

It is for instruct models: those with a chat template.
"""

import asyncio
import time
from typing import Any

from inferlet import Context, Model, PieError, Sampler, session

# How tokens are chosen where the model recommends nothing.
PLAIN = {"temperature": 0.0}
COMMANDS = """\
/clear           forget the conversation
/system [TEXT]   begin again with TEXT as the system prompt, or show the one there is
/stats           tokens and speed of the last answer, and what was found in the KV pages
/stop            stop the answer"""


class Conversation:
    """A conversation, whose keys and values stay in the KV pages between the turns."""

    def __init__(self, model: Model, system: str, sampler: Sampler, most: int) -> None:
        self.model, self.sampler, self.most = model, sampler, most
        self.stats = "there was no answer yet"
        self.begin(system)

    def begin(self, system: str) -> None:
        """Begins again, with a system prompt."""
        self.system = system
        self.context = Context(self.model)
        if system:
            self.context.system(system)

    def command(self, text: str) -> str:
        """A command's answer."""
        name, _, rest = text.partition(" ")
        if name == "/clear":
            self.begin(self.system)
            return "a new conversation\n"
        if name == "/system" and rest:
            self.begin(rest.strip())
            return "a new conversation, with this system prompt\n"
        shown = {"/system": self.system or "there is none", "/stats": self.stats, "/stop": ""}
        shown["/help"] = COMMANDS
        unknown = f"there is no command {name}; there are:\n{COMMANDS}"
        return f"{shown.get(name, unknown)}\n".lstrip("\n")

    async def answer(self, text: str) -> None:
        """Streams the answer to a message. Cancelled, the part that was sent is what was said."""
        context, begun = self.context, time.monotonic()
        room = self.model.max_position - context.next_position
        if (length := len(self.model.tokenizer.encode(text))) >= room:
            session.send(
                f"error: it has {length} tokens, and {room} have room: /clear makes more\n"
            )
            return
        kept, cut = context.seq_len, context.recomputed
        context.user(text).cue()
        await context.flush()
        read = context.seq_len
        kept = kept - (context.recomputed - cut) if kept else context.sequence.found
        generator = context.generate(self.sampler, max_tokens=self.most).stop_round()
        flushed = time.monotonic()
        try:
            async for piece in generator.stream_text():
                session.send(piece)
        finally:
            count, seconds = generator.tokens_generated, time.monotonic() - flushed
            speed, reading = count / max(seconds, 1e-9), flushed - begun
            self.stats = (
                f"{count} tokens, {speed:.1f} a second; of the {read} before them {kept} were in KV"
                f" pages, and {read - kept} were read in {reading:.2f} s"
            )
            session.send("\n")
        if not generator.is_done:
            return
        if generator.went_round:
            session.send("[it went round and round: try --temperature 0.7, or a larger model]\n")
        if count == self.most:
            session.send(f"[cut after --max-tokens {self.most}]\n")
        if context.next_position >= self.model.max_position:
            session.send("[the model takes no longer text: /clear begins again]\n")


async def main(
    system: str = "",
    model: str = "",
    max_tokens: int = 1024,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> None:
    """Answers turn by turn, until an empty text comes.

    Args:
        system: what the model is told before the conversation.
        model: its name; the server's first one by default.
        max_tokens: most tokens of an answer.
        temperature: 0 is greedy; what the model recommends by default.
        top_p: share of likelihood to choose from; likewise.
        seed: makes the choices repeatable.
    """
    loaded = Model.load(model or None)
    given: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "seed": seed}
    chosen = {name: value for name, value in given.items() if value is not None}
    sampler = Sampler(**{**PLAIN, **loaded.generation_defaults, **chosen})
    conversation = Conversation(loaded, system, sampler, max_tokens)
    turns: asyncio.Queue[str] = asyncio.Queue()
    answer: asyncio.Task[None] | None = None

    async def receive() -> None:
        while text := await session.receive():
            if text != "/stop":
                turns.put_nowait(text)
            elif answer is not None:
                answer.cancel()
        turns.put_nowait("")

    receiving = asyncio.create_task(receive())
    while text := await turns.get():
        if text.startswith("/"):
            session.send(conversation.command(text))
        else:
            answer = asyncio.create_task(conversation.answer(text))
            try:
                await answer
            except asyncio.CancelledError:
                pass
            except (PieError, ValueError) as error:
                session.send(f"error: {error}\n")
            answer = None
        session.send("")
    await receiving
