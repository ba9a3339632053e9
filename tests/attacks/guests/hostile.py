"""What attackers launch: the first argument says which attack, and each goes on until it is ended.

Each error's code is told once, to the client that reads.
"""

import asyncio
import json
import math
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from inferlet import Context, Model, PieError, Sampler, attention, device, gather, raw
from inferlet.device import ProgramSampler

SORTS = 7  # as many as a program may have
TOLD: set[str] = set()


def main(args: list[str]) -> str:
    """Attacks; returns only if there is nothing more to do."""
    attack: Callable[..., None] = globals()[f"attack_{args[0]}"]
    attack(*args[1:])
    return "done"


def tries(call: Callable[..., object], *args: object) -> object:
    """The result of a call; its error's code is told and the result None."""
    try:
        return call(*args)
    except PieError as error:
        tell(f"{error.code}: {error}")
        return None


def tell(text: str) -> None:
    code = text.split(":")[0]
    if code not in TOLD:
        TOLD.add(code)
        with suppress(PieError):
            raw.send(text[:200])


def pause(milliseconds: float) -> None:
    future = raw.sleep(int(milliseconds * 1e6))
    raw.wait([future])
    raw.take(future)


def hold() -> None:
    while True:
        pause(1000)


def work(milliseconds: float) -> None:
    end = time.monotonic() + milliseconds / 1000
    while time.monotonic() < end:
        pass


# Time


def attack_spin() -> None:
    while True:
        pass


def attack_spin_and_catch() -> None:
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass


def attack_spin_in_finally() -> None:
    try:
        raise ValueError
    finally:
        while True:
            pass


def attack_recurse() -> None:
    def deeper(depth: int) -> int:
        return deeper(depth + 1) + 1

    sys.setrecursionlimit(100_000_000)
    while True:
        try:
            deeper(0)
        except RecursionError:
            tell("RecursionError")


def attack_bignum() -> None:
    while True:
        pow(7, 10_000_000)


def attack_yield_early() -> None:
    while True:
        work(4)
        raw.wait([])


def attack_wake_often() -> None:
    while True:
        pause(0)


def attack_futures_together() -> None:
    while True:
        start = time.monotonic_ns()
        futures = []
        for _ in range(4096):
            future = tries(raw.sleep, max(0, 1_000_000_000 - (time.monotonic_ns() - start)))
            if not isinstance(future, int):
                break
            futures.append(future)
        while futures:
            ready = raw.wait(futures[::-1])
            for future in ready:
                raw.take(future)
            gone = set(ready)
            futures = [future for future in futures if future not in gone]
        pause(10)


def attack_fork_bomb(program: str) -> None:
    while True:
        if tries(raw.launch, program, ["fork_bomb", program]) is None:
            pause(5)


# One call, again and again


def attack_repeat(*what: str) -> None:
    call, number = _call(*what), 0
    while True:
        number += 1
        if tries(call, number) is None:
            pause(1)


def _call(*what: str) -> Callable[[int], object]:
    long = "x" * 100_000
    match what:
        case ["image_size"]:
            markers = b"\xff\xd8" + (b"\xff\xe2" + struct.pack(">H", 2)) * 500_000
            return lambda number: tries(raw.image_size, markers) or number
        case ["random_bytes"]:
            return lambda number: raw.random_bytes(1 << 20)
        case ["log"]:

            def log(number: int) -> int:
                raw.log("info", long)
                return number

            return log
        case ["send_blobs"]:
            blob = bytes(1_900_000)
            return lambda number: raw.send_blob(blob)
        case ["send_lines"]:
            return lambda number: raw.send("x" * 10)
        case ["broadcast"]:
            tries(raw.subscribe, "t")
            return lambda number: raw.broadcast("t", long)
        case ["push"]:
            return lambda number: raw.push(f"t{number % 100}", long)
        case ["tokenize", text, size]:
            data = text.encode().decode("unicode_escape") * (int(size) // len(text.encode()))
            return lambda number: raw.tokenize(model(), data)
        case ["chat_template"]:
            chat = json.dumps([{"role": "user", "content": "x" * 1000}] * 1000)
            return lambda number: raw.apply_chat_template(model(), chat, True)
        case ["detokenize"]:
            tokens = [7] * 500_000
            return lambda number: raw.detokenize(model(), tokens)
    raise ValueError(what)


def attack_store() -> None:
    number, value = 0, bytes(1 << 20)
    while True:
        number += 1
        future = tries(raw.store_set, f"k{number % 300}", value)
        if isinstance(future, int):
            raw.wait([future])
            tries(raw.take, future)
        else:
            pause(1)


# The model


def model() -> str:
    return raw.available_models()[0]


def queue() -> int:
    return raw.create_queue(model())


def page_size() -> int:
    return int(json.loads(raw.model_info(model()))["page_size"])


def wait_for(line: int) -> None:
    future = raw.synchronize(line)
    raw.wait([future])
    tries(raw.take, future)


def filled(line: int, count: int) -> list[int] | None:
    """Embeds of so many tokens."""
    first = tries(raw.alloc_emb, line, count)
    if not isinstance(first, int):
        return None
    embeds = [first, count]
    raw.embed_txt(line, [5] * count, [0, count], embeds)
    return embeds


def attack_prompts(tokens: str = "2000", priority: str = "0", masked: str = "") -> None:
    line, count = queue(), int(tokens)
    rows = range(count) if masked else ()
    mask = [n for row in rows for n in (3, 0, row + 1, count - 1 - row)]
    tries(raw.set_queue_priority, line, int(priority))
    pages = -(-count // page_size())
    while True:
        embeds = filled(line, count)
        first = None if embeds is None else tries(raw.alloc_kvpage, line, pages)
        if embeds is not None and isinstance(first, int):
            tries(raw.forward, line, [], embeds, [first, pages], [embeds[0] + count - 1, 1], mask)
            wait_for(line)
            raw.dealloc_kvpage(line, [first, pages])
        else:
            pause(5)
        if embeds is not None:
            raw.dealloc_emb(line, embeds)


def attack_forwards_that_keep_nothing() -> None:
    line = queue()
    for count in (2048, 512):
        embeds = filled(line, count)
        while embeds is not None:
            if tries(raw.forward, line, [], embeds, [], [embeds[0], 1], []) is None and TOLD:
                break
            wait_for(line)
    hold()


def attack_masks_that_are_refused() -> None:
    """Of as many numbers as there may be, in a forward that may be no more."""
    line, count = queue(), 512
    embeds, pages = filled(line, count), 256
    first = tries(raw.alloc_kvpage, line, pages)
    if embeds is None or not isinstance(first, int):
        return
    tries(raw.forward, line, [], embeds, [first, pages], [], [])
    wait_for(line)
    mask = [n for _ in range(count) for n in (2 * count + 1, 0, *[1] * (2 * count))]
    while True:
        tries(raw.forward, line, [first, pages], embeds, [], [], mask)
        raw.wait([])


def attack_steps(priority: str = "0") -> None:
    line = queue()
    tries(raw.set_queue_priority, line, int(priority))
    embeds = filled(line, 16)
    while embeds is not None:
        for _ in range(16):
            tries(raw.forward, line, [], embeds, [], [embeds[0], 1], [])
        wait_for(line)
    hold()


def attack_programs(rule: str) -> None:
    """Choices by device programs, 64 at a time, by as many samplers as there may be of 16."""
    line, number = queue(), 0
    embeds = filled(line, 1)
    if embeds is None:
        return
    tries(raw.forward, line, [], embeds, [], embeds, [])
    while True:
        samplers = []
        for _ in range(16):
            number += 1
            sent = globals()[f"_{rule}"](number).to_json()
            made = tries(raw.create_sampler, line, sent)
            if isinstance(made, int):
                samplers.append(made)
        for _ in range(4):
            for sampler in samplers:
                tries(raw.sample, line, embeds[0], sampler)
        wait_for(line)
        for sampler in samplers:
            raw.destroy_sampler(line, sampler)
        if not samplers:
            pause(5)


def attack_layers() -> None:
    """Texts of which layers read what a program chooses, as many as there may be."""
    policies = [attention.h2o(400, 100), attention.quest(8, 0), attention.snapkv(1400, 1000)]

    async def text(number: int) -> None:
        context = Context(Model.load(), prefix_cache=False).append([5 + number] * 500)
        policy = policies[number % len(policies)]
        await context.generate(
            Sampler.top_p(1.0, 1.0), max_tokens=1000, stop=[], attend=policy
        ).collect_tokens()

    async def texts() -> None:
        await gather(*(text(number) for number in range(8)))

    while True:
        with suppress(PieError):
            asyncio.run(texts())


def _sorts(number: int) -> ProgramSampler:
    """As many sorts as a program may have."""

    def rule(logits: device.Tensor) -> device.Tensor:
        for _ in range(SORTS):
            logits = logits[logits.argsort()] + 1.0
        return device.draw(logits)

    return device.program(rule)(seed=number)


def _no_numbers(number: int) -> ProgramSampler:
    """Each value is NaN, that of its state, too."""

    def rule(logits: device.Tensor, state: device.State) -> device.Tensor:
        wrong = logits * math.inf - logits * math.inf + state.wrong.sum()
        state.wrong = state.wrong / (state.wrong - state.wrong) + wrong[0]
        return (wrong * wrong.cumsum()).argmax() + wrong[5].to_int()

    return device.program(rule)(wrong=[0.0] * 1024, seed=number)


def _large_state(number: int) -> ProgramSampler:
    """As much as a program may be given, and as much as may change."""

    def rule(logits: device.Tensor, state: device.State) -> device.Tensor:
        state.changing = state.changing + state.table[:1024]
        return logits.argmax() + state.changing[0] * 0

    return device.program(rule)(table=[number] * 100_000, changing=[0] * 1024)


def _others(number: int) -> ProgramSampler:
    """No two are alike."""
    return device.program(lambda logits: device.draw(logits + float(number)))(seed=number)


def attack_hoard(what: str, then: str) -> None:
    """Takes all that can be had of something, and goes on in some way, without end."""
    line = queue()
    globals()[f"_take_{what}"](line)
    tell("hoards: it has all that it can have")
    globals()[f"_then_{then}"](line)


def _most(take: Callable[..., object], line: int, largest: int = 1024) -> list[int]:
    """Spans of all that can be had."""
    spans, size = [], largest
    while size:
        first = tries(take, line, size)
        if isinstance(first, int):
            spans += [first, size]
        else:
            size //= 2
    return spans


def _take_pages(line: int) -> None:
    _most(raw.alloc_kvpage, line)


def _take_filled(line: int) -> list[int]:
    """Pages with something in each of them, so that they have to be moved."""
    size = page_size()
    embeds = filled(line, size) or [0, 0]
    spans = _most(raw.alloc_kvpage, line, 64)
    for first, count in zip(spans[::2], spans[1::2], strict=True):
        for page in range(first, first + count):
            tries(raw.forward, line, [], embeds, [page, 1], [], [])
    wait_for(line)
    return spans


def _take_host(line: int) -> None:
    """Pages of host memory, and then those of the pool."""
    while spans := _take_filled(line):
        before = len(TOLD)
        for at in range(0, len(spans), 2):
            tries(raw.swap_out, line, spans[at : at + 2])
        wait_for(line)
        if len(TOLD) > before:
            break


def _take_exports(line: int) -> None:
    mine, number = raw.instance_id(), 0
    while isinstance(first := tries(raw.alloc_kvpage, line, 64), int):
        number += 1
        tries(raw.export_kvpage, line, [first, 64], f"{mine}-{number}", False)
        if TOLD:
            break
        raw.dealloc_kvpage(line, [first, 64])
    _take_pages(line)


def _take_embeds(line: int) -> None:
    _most(raw.alloc_emb, line)


def _take_samplers(line: int) -> None:
    while tries(raw.create_sampler, line, "{}") is not None:
        pass


def _take_queues(line: int) -> None:
    while tries(raw.create_queue, model()) is not None:
        pass
    _take_pages(line)


def _then_sleeps(line: int) -> None:
    hold()


def _then_waits(line: int) -> None:
    while True:
        raw.wait([])


def _then_spins(line: int) -> None:
    while True:
        pass


def _then_receives(line: int) -> None:
    """As in a tool that never answers."""
    raw.wait([raw.receive()])


def _then_queues(line: int) -> None:
    """Has commands queued always."""
    embeds = filled(line, 16)
    if embeds is None:
        hold()
        return
    while True:
        for _ in range(64):
            tries(raw.forward, line, [], embeds, [], [embeds[0], 1], [])
        raw.wait([])


def attack_memory() -> None:
    held = []
    try:
        while True:
            held.append(bytearray(b"x") * (8 << 20))
    except MemoryError:
        tell("MemoryError")
    hold()


# What native code works on


def attack_grammar(kind: str, name: str) -> None:
    text = globals()[f"_{name}"]()
    while True:
        future = tries(raw.compile_grammar, model(), kind, text)
        if isinstance(future, int):
            raw.wait([future])
            tries(raw.take_grammar, future)
        else:
            pause(5)
        text += " "  # another one each time: it is kept


def _rules() -> str:
    lines = [f'r{i}: "a" r{i + 1}' for i in range(7000)]
    return "\n".join(["start: r0", *lines, 'r7000: "b"'])


def _references() -> str:
    count = 2500
    defs: dict[str, object] = {f"d{count}": {}}
    for i in range(count):
        defs[f"d{i}"] = {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}]}
    return json.dumps({"$defs": defs, "$ref": "#/$defs/d0"})


def _repeats() -> str:
    return "((a{1,500}){1,500}){1,500}"


def attack_count_allowed() -> None:
    future = raw.compile_grammar(model(), "regex", "(a|b|c|[a-z ]*x)*")
    raw.wait([future])
    matcher = raw.create_matcher(raw.take_grammar(future))
    tokens = raw.tokenize(model(), "a b c " * 400)
    while True:
        if tries(raw.count_allowed, matcher, tokens) is None:
            tokens = tokens[: len(tokens) // 2] or tokens


# Outside


def attack_http() -> None:
    urls = ["http://127.0.0.1:1/", "http://169.254.169.254/", "http://[::1]/", "file:///etc/passwd"]
    while True:
        for url in urls:
            future = tries(raw.http_get, url, [])
            if isinstance(future, int):
                raw.wait([future])
                tries(raw.take_response, future)
        pause(0)


def attack_launch_unknown() -> None:
    while True:
        future = tries(raw.launch, "x" * 60, [])
        if isinstance(future, int):
            raw.wait([future])
            tries(raw.take_text, future)
