"""Programs of Pie 0.4, in the shapes of its seven examples, and each name that they use."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from support.sdk_rig import BOS, END, VOCABULARY, Rig, continuation, next_token

HEAD = """
import asyncio, json, math
from inferlet.pie04 import *
model = Model.load(runtime.models()[0])
"""
TOTAL = sum(math.exp(-rank / 4) for rank in range(VOCABULARY))


def run(rig: Rig, body: str, *args: str, **options: Any) -> Any:
    return rig.answer(HEAD, body, *args, **options)


def test_forward_samples_and_probes_at_several_positions(rig: Rig) -> None:
    body = """
ctx = Context(model)
fwd = ctx.forward()
text = list(b"several tokens")
one = fwd.input(text[:4]).input(text[4:]).sample([0, 5, 13], Sampler.argmax())
probes = [fwd.probe(5, p) for p in (Distribution(k=3), Logits(), Logprob(97), Logprobs([98, 97]),
    Entropy(), Distribution(temperature=0.5))]
out = await fwd.execute()
found = [out.distribution(probes[0]), list(out.logits(probes[1])), out.logprobs(probes[2]),
    out.logprobs(probes[3]), out.entropy(probes[4]), out.distribution(probes[5])]
wrong = [out.logits(probes[0]), out.entropy(probes[1]), out.token(SampleHandle(9))]
after = await ctx.generate(Sampler.argmax(), max_tokens=5, auto_flush=False).collect_tokens()
return [out.tokens_at(one), out.token(one), found, wrong, ctx.seq_len, after]
"""
    tokens, first, found, wrong, length, after = run(rig, body)
    text = list(b"several tokens")
    assert tokens == [next_token(text[: i + 1]) for i in (0, 5, 13)]
    assert first == tokens[0]
    assert wrong == [None] * 3
    assert length == len(text) + 4  # the last token has not run
    assert after == continuation(text, 5)
    ranks = [next_token(text[:6], rank) for rank in range(VOCABULARY)]
    # The worker of these tests names some tokens twice.
    last = {token: -rank / 4 - math.log(TOTAL) for rank, token in enumerate(ranks)}
    logs = {token: -rank / 4 - math.log(TOTAL) for rank, token in reversed([*enumerate(ranks)])}
    best, logits, one, two, entropy, half = found
    assert best[0] == ranks[:3]
    assert best[1] == pytest.approx([math.exp(-i / 4) / TOTAL for i in range(3)], rel=1e-5)
    numbers = struct.unpack(f"{VOCABULARY}f", bytes(logits))
    assert [numbers[t] for t in (97, 98)] == pytest.approx([last[97], last[98]], abs=1e-4)
    assert one == pytest.approx([logs[97]], abs=1e-4)
    assert two == pytest.approx([logs[98], logs[97]], abs=1e-4)
    chances = [math.exp(-i / 4) / TOTAL for i in range(VOCABULARY)]
    assert entropy == pytest.approx(-sum(p * math.log(p) for p in chances), abs=1e-3)
    squares = sum(p * p for p in chances)
    assert half[1][:3] == pytest.approx([p * p / squares for p in chances[:3]], rel=1e-4)


def test_attention_masks_and_a_loop_of_forwards(rig: Rig) -> None:
    """As in hierarchical attention: a prompt under one mask, then token after token."""
    body = """
ctx, pending, tokens = Context(model), list(b"sink body window"), []
for _ in range(4):
    fwd = ctx.forward()
    total = fwd.start_position() + len(pending)
    assert fwd.start_position() == ctx.seq_len
    mask = [0, 4, 6, total - 10] if args else [0, total]
    if args:
        fwd.attention_mask([list(mask) for _ in pending])
    h = fwd.input(pending).sample([len(pending) - 1], Sampler.argmax())
    pending = [(await fwd.execute()).token(h)]
    tokens += pending
plain = Context(model)
for name in ("first", "second"):
    h = (fwd := plain.forward()).input([120]).sample([0], Sampler.argmax())
    await fwd.attention_mask([[0, 1] + [0] * 2]).execute() if name == "first" else None
return tokens
"""
    prompt = list(b"sink body window")
    assert run(rig, body) == continuation(prompt, 4)
    assert run(rig, body, "masked") != continuation(prompt, 4)


def test_tokens_apart_leave_the_context_as_it_is(rig: Rig) -> None:
    body = """
ctx = Context(model)
ctx.append(b"some text")
await ctx.flush()
ctx.append(b"!")
fwd = ctx.forward().input_at(list(b"ab"), [9, 10])
h = fwd.sample([0, 1], Sampler.argmax())
one = (await fwd.execute()).tokens_at(h)
assert ctx.buffer() == [33] and ctx.seq_len == 9
ctx.truncate(5)
assert ctx.buffer() == [33] and ctx.seq_len == 4
h = (fwd := ctx.forward()).sample([0], Sampler.argmax())
return [one, (await fwd.execute()).token(h), ctx.snapshot() if not ctx.buffer() else None]
"""
    one, two, _ = run(rig, body)
    text = list(b"some text")
    assert one == [next_token([*text, 97]), next_token([*text, 97, 98])]
    assert two == next_token(text[:4])


def test_masks_of_logits_and_constraints(rig: Rig) -> None:
    body = r"""
class Even:
    seen = []
    def step(self, accepted):
        self.seen += accepted
        return [0, *[1] * 260] if len(self.seen) % 2 else []

ctx = Context(model).append(b"x")
h = (fwd := ctx.forward().input([120])).sample([0], Sampler.argmax())
token = (await fwd.mask([200, 5]).execute()).token(h)
even = await Context(model).append(b"y").generate(
    Sampler.argmax(), constrain=Even(), max_tokens=6, auto_flush=False).collect_tokens()
some = await Context(model).append(b"y").generate(
    Sampler.argmax(), logit_mask=[97, 2], max_tokens=6, auto_flush=False).collect_tokens()
digits = await Context(model).user("z").generate(
    Sampler.top_p(0.9, 0.9), constrain=[Regex("[0-9]{1,20}"), Ebnf('root ::= [5-9]+')],
    max_tokens=30).collect_text()
one = await Context(model).user("z").generate(
    Sampler.argmax(), constrain=Regex(r'\[1, "ab"\]'), max_tokens=50).collect_json()
own = await Context(model).user("z").generate(Sampler.argmax(), max_tokens=50).collect_json(
    schema='{"enum": ["yes"]}', parse=lambda text: text.upper())
any_json = await Context(model).user("z").generate(
    Sampler.argmax(), constrain=Regex("[0-9]"), max_tokens=9).collect_json()
matcher = Matcher(Grammar.from_regex("ab"), model.tokenizer())
before = matcher.next_token_logit_mask()
matcher.accept_tokens([97, 98])
ended = matcher.is_terminated
matcher.reset()
return [token, even, some, digits, one, own, any_json, before, ended,
    GrammarConstraint(matcher).step([97])]
"""
    token, even, some, digits, one, own, any_json, before, ended, stepped = run(rig, body)
    assert 200 <= token < 205
    assert not any(t % 2 for t in even[1::2])
    assert set(some) <= {97, 98}
    assert len(some) == 6
    assert digits
    assert set(digits) <= set("56789")
    assert one == [1, "ab"]
    assert own == '"YES"'
    assert isinstance(any_json, int)
    assert (before, ended, stepped) == ([97, 1, VOCABULARY - 98], True, [98, 1, VOCABULARY - 99])


def test_steps_with_probes_and_tokens_of_ones_own(rig: Rig) -> None:
    body = """
ctx = Context(model).append(b"steps")
generator = ctx.generate(Sampler.argmax(), stop=[], auto_flush=False).max_tokens(6).horizon(9)
best = generator.probe_each_step(0, Distribution(k=1))
seen, tokens = [], []
async for step in generator:
    if generator.tokens_generated == 3:
        second = step.clear_sampler().probe(0, Distribution(k=2))
        out = await step.execute()
        tokens += generator.accept([out.distribution(second)[0][1]])
        assert out.tokens == [] and out.auto_sampler is None
        continue
    out = await step.execute()
    assert out.token(out.auto_sampler) == out.tokens[0]
    seen.append(out.distribution(best)[0])
    tokens += out.tokens
return [tokens, seen, generator.is_done, ctx.seq_len, ctx.buffer()]
"""
    tokens, seen, done, length, buffer = run(rig, body)
    text = list(b"steps")
    expected = continuation(text, 3)
    expected.append(next_token(text + expected, 1))
    expected += continuation(text + expected, 2)
    assert tokens == expected
    assert len(seen) == 5
    assert seen[1:] == [[t] for t in (*expected[1:3], *expected[4:])]
    assert done
    assert (length, buffer) == (len(text) + 5, expected[-1:])


@pytest.mark.parametrize("right", [0, 2, 5])
def test_a_speculator_changes_no_text(rig: Rig, right: int) -> None:
    body = """
class Drafter:
    accepted, wrong = [], 0
    def draft(self):
        text = [*b"draft", *self.accepted]
        truth = json.loads(args[0])[len(self.accepted):]
        drafts = [t if i < int(args[1]) else 33 for i, t in enumerate(truth[:5])]
        return drafts, list(range(len(text), len(text) + len(drafts)))
    def accept(self, tokens): self.accepted += tokens
    def rollback(self, n): self.wrong += n

drafter = Drafter()
ctx = Context(model).append(b"draft")
options = {"stop": [], "auto_flush": False}
tokens = await ctx.generate(
    Sampler.argmax(), speculator=drafter, max_tokens=17, **options).collect_tokens()
rest = await ctx.generate(Sampler.argmax(), max_tokens=4, **options).collect_tokens()
return [tokens, rest, drafter.wrong]
"""
    truth = continuation(list(b"draft"), 30)
    tokens, rest, wrong = run(rig, body, json.dumps(truth), str(right))
    assert tokens == truth[:17]
    assert rest == truth[17:21]
    assert (wrong == 0) == (right == 5)


def test_decoders_of_chat_and_thoughts(rig: Rig) -> None:
    body = """
chat_dec, think = chat.Decoder(model), reasoning.Decoder(model)
events = []
for character in b"so <think>let me</think>yes":
    match think.feed([character]):
        case reasoning.Event.Delta(text=t): events.append(t)
        case reasoning.Event.Start(): events.append("(")
        case reasoning.Event.End(text=t): events.append(t + ")")
    chat_dec.feed([character])
think.reset()
long = think.feed(list(b"<think>all at once</think>")), think.feed([120])
return [events, chat_dec.feed([]).text, long[0].text, str(long[1])]
"""
    events, text, long, idle = run(rig, body)
    assert "".join(events) == "(let melet me)"
    assert text.endswith("yes")
    assert "let me" not in text
    assert long == "all at once"
    assert "Idle" in idle


def test_a_program_whose_main_returns_nothing(rig: Rig) -> None:
    """As the concurrency example: two generations at once, by steps, and `set_return`."""
    source = (
        HEAD
        + """
async def generate(ctx, label):
    decoder = chat.Decoder(ctx.model)
    async for step in ctx.generate(Sampler.top_p(0.6, 0.95), max_tokens=5):
        match decoder.feed((await step.execute()).tokens):
            case chat.Event.Delta(text=t): session.send(label + t)
            case chat.Event.Done(_): break

async def main(input: dict) -> None:
    contexts = [Context(model).system("Be helpful.").user(input["text"]) for _ in range(2)]
    await asyncio.gather(*(generate(ctx, label) for ctx, label in zip(contexts, "12")))
    set_return("done")
"""
    )
    outcome = rig.run(source, "text=hello")
    assert (outcome.ok, outcome.text) == (True, "done")
    labels = [str(text)[0] for text in outcome.sent]
    assert labels.count("1") == labels.count("2") == 5
    assert labels != sorted(labels)


def test_contexts_are_kept_and_forked(rig: Rig) -> None:
    body = """
ctx = Context(model).user("hello")
assert len(ctx.buffer()) > 5
await ctx.flush()
name = ctx.snapshot()
fork = Context.open(model, name)
assert type(fork) is type(ctx.fork()) is Context and Context.open(model, "none") is None
with ctx.idle():
    texts = [await c.generate(Sampler.argmax(), max_tokens=6).collect_tokens() for c in (ctx, fork)]
taken = Context.take(model, name)
return [texts, taken.seq_len, Adapter.open(model, "none")]
"""
    (one, two), length, none = run(rig, body)
    prompt = [BOS, *b"<user>hello"]
    tokens = [BOS, 258, *b"hello", END]
    assert length == len(tokens)
    assert one == two == continuation([*tokens, 259], 6), prompt
    assert none is None


def test_what_is_not_there_says_so(rig: Rig) -> None:
    body = """
found = []
for line in ("from inferlet.pie04 import zo", "from inferlet.pie04 import Video",
        "from inferlet.pie04 import nonsense"):
    try:
        exec(line)
    except ImportError as error:
        found.append(str(error))
errors = [lambda: Context(model).forward().input_at([1], []),
    lambda: Context(model).append(b"x").truncate(1),
    lambda: Context(model).generate(Sampler.argmax(), constrain=3),
    lambda: Context(model).generate(Sampler.argmax(), speculator=1, system_speculation=True)]
for one in errors:
    try:
        one()
    except (ValueError, TypeError) as error:
        found.append(str(error))
for fwd in (Context(model).forward(), Context(model).forward().input([1])):
    try:
        fwd.sample([1], Sampler.argmax())
        await fwd.execute()
    except ValueError as error:
        found.append(str(error))
return found
"""
    found = run(rig, body)
    assert "adapters are not trained here" in found[0]
    assert "frames" in found[1]
    assert "nonsense" in found[2]
    assert len(found) == 9
    assert found[-1] == "the tokens of this forward have the numbers 0 to 0"
