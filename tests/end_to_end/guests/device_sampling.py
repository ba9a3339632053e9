"""Device programs alone, and with contexts beside."""

import json

from inferlet import Context, Grammar, Model, PieError, device, raw, samplers

TOKENS = 24


@device.program
def counting(logits, state):
    """Token 10, then 11, and so on: its state alone decides."""
    state.next += 1
    return state.next + 9


@device.program
def outside(logits):
    return device.step() + 100_000_000


@device.program
def too_wide(logits):
    wide = device.iota(1000).reshape(1000, 1) + device.iota(1000)
    return wide[0].argmax()


async def of(model, sampler, prompt):
    """The tokens of one generation."""
    context = Context(model)
    context.append(prompt)
    return await context.generate(sampler, max_tokens=TOKENS, stop=[]).collect_tokens()


@device.program
def told(logits, state):
    """The token that it is told, and one more each time."""
    state.more += 1
    return state.token + state.more - 1


async def put(model, prompt):
    """Tokens of a program that is given other values meanwhile, and errors."""
    context = Context(model)
    context.append(prompt)
    generation = context.generate(told(token=10, more=0), max_tokens=9, stop=[])
    found = []
    async for token in generation.stream_tokens():
        found.append(token)
        if len(found) == 3:
            generation.put(token=50)
        if len(found) == 6:
            generation.put(token=20, more=0)
    errors = []
    for values in ({"token": 0.5}, {"other": 1}):
        try:
            generation.put(**values)
        except PieError as error:
            errors.append(str(error))
    return [found, errors]


async def alone(model, prompt):
    """State, steps that are read one by one, a grammar, and what is refused."""
    answer = {"counted": await of(model, counting(next=0), prompt)}
    context = Context(model)
    context.append(prompt)
    read = []
    generation = context.generate(counting(next=0, logprobs=2), max_tokens=6, stop=[])
    async for step in generation:
        output = await step.execute()
        read.append([output.tokens[0], output.logprob, len(output.distribution().tokens)])
    answer["read"] = read
    answer["state"] = await generation.state()
    context = Context(model)
    context.append(prompt)
    first = context.generate(counting(next=0), max_tokens=5, stop=[])
    await first.collect_tokens()
    later = context.generate(counting(**await first.state()), max_tokens=3, stop=[])
    answer["later"] = await later.collect_tokens()
    fork = context.fork()
    again = fork.generate(counting(**await later.state()), max_tokens=2, stop=[])
    answer["forked"] = await again.collect_tokens()
    answer["put"] = await put(model, prompt)
    digits = Grammar.regex("[0-9]{8}")
    context = Context(model)
    context.append(prompt)
    any_token = device.program(lambda logits: device.draw(logits / 5.0))
    answer["digits"] = await context.generate(
        any_token(seed=3), grammar=digits, max_tokens=20
    ).collect_text()
    try:
        await of(model, outside(), prompt)
    except PieError as error:
        answer["outside"] = str(error)
    try:
        await of(model, too_wide(), prompt)
    except PieError as error:
        answer["too_wide"] = str(error)
    queue = raw.create_queue(model.name)
    answer["refused"] = []
    for sent in (
        {"program": "mirostats"},
        {"program": [["own.py", 7, "def rule(logits): return logits"]]},
        {"program": [["own.py", 7, "def rule(logits):\n  return logits.nothing()"]]},
        {"program": "mirostat", "given": {"mu": 1.0}, "temperature": 2},
        {"program": '{"state":[],"nodes":[["logits",[],[]]],"token":0,"next":[]}'},
    ):
        try:
            raw.create_sampler(queue, json.dumps(sent))
        except PieError as error:
            answer["refused"].append(str(error))
    return answer


CONTEXTS_BESIDE = {
    "guidance": lambda x, y, scale: samplers.guidance(x, y, scale),
    "context_aware": lambda x, y, scale: samplers.context_aware(x, y, scale - 1.0),
}


def against(rule):
    """A program of a rule that reads a context beside."""
    return device.program(lambda logits, s: rule(logits, device.beside(0), s.scale).argmax())


async def contexts_beside(model, prompt):
    """Tokens of two texts; of each rule that takes the first one wholly, and that leaves it for the
    other; and what is said of a context that is missing.
    """
    other = prompt[-5:]
    found: dict[str, object] = {"alone": [await of(model, None, text) for text in (prompt, other)]}
    for name, rule in CONTEXTS_BESIDE.items():
        texts = found[name] = []
        for scale in (1.0, 0.0):
            context, beside = Context(model), Context(model)
            context.append(prompt)
            beside.append(other)
            tokens = await context.generate(
                against(rule)(scale=scale), max_tokens=TOKENS, stop=[], beside=[beside]
            ).collect_tokens()
            texts.append(tokens)
    try:
        context = Context(model).append(prompt)
        await context.generate(against(rule)(scale=1.0), max_tokens=1).collect_tokens()
    except ValueError as error:
        found["missing"] = str(error)
    return found


async def main(args):
    model = Model.load()
    mode, prompt = args[0], json.loads(args[1])
    return json.dumps(await {"alone": alone, "beside": contexts_beside}[mode](model, prompt))
