"""The logic of programs of the library, each as a client-side script, which has their options."""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from functools import partial

from benchmarks.inferlets.endpoint import Endpoint, chat, together


async def text_completion(endpoint: Endpoint, prompt: str, max_tokens: int) -> object:
    """Text completion: one request."""
    return await endpoint.text(prompt, max_tokens)


async def prefix_caching(endpoint: Endpoint, prefix: str, prompt: str, max_tokens: int) -> object:
    """Prefix caching: the whole prompt each time; the server may know its beginning."""
    return {"text": await endpoint.text(prefix + prompt, max_tokens)}


async def ebnf_decoding(endpoint: Endpoint, prompt: str, ebnf: str, max_tokens: int) -> object:
    """Constrained decoding: the grammar goes with the request."""
    return await endpoint.text(prompt, max_tokens, structured_outputs={"grammar": ebnf})


STEP = 16  # tokens of a request; the program gives up a page as often
LETTERS = 4  # about, of a token


async def attention_sink(endpoint: Endpoint, prompt: str, window: int, max_tokens: int) -> object:
    """StreamingLLM's baseline, a sliding window that is recomputed: an endpoint has no sink."""
    text = ""
    for _ in range(0, max_tokens, STEP):
        seen = f"{prompt}{text[-window * STEP * LETTERS :]}"
        text += await endpoint.text(seen, STEP, ignore_eos=True)
    return {}


async def hierarchical_attention(
    endpoint: Endpoint, parts: list[str], prompt: str, max_tokens: int
) -> object:
    """Parts of a text: an endpoint attends to all of them."""
    await endpoint.text("".join([*parts, prompt]), max_tokens)
    return {}


async def beam_search(endpoint: Endpoint, prompt: str, width: int, max_tokens: int) -> object:
    """Beam search: a request for each beam and token, with the likeliest next tokens."""
    beams = [(0.0, prompt)]
    likely = partial(endpoint.complete, logprobs=2 * width)
    for _ in range(max_tokens):
        answers = await together(*((likely, (text, 1)) for _, text in beams))
        beams = sorted(
            (
                (score + logprob, text + token)
                for (score, text), (choice,) in zip(beams, answers, strict=True)
                for token, logprob in choice.logprobs[0].items()
            ),
            reverse=True,
        )[:width]
    return {}


def judge(question: str, lines: list[str]) -> int:
    """How many lines hold; the program's own judge is longer, and as fast."""
    return sum(
        all(eval(left) == int(value) for left, value in re.findall(r"([\d+-]+)=(\d+)", line))
        for line in lines
    )


async def tree_of_thought(
    endpoint: Endpoint, question: str, branches: int, best: int, depth: int, seed: int = 1
) -> object:
    """Tree of thought: each level is a request for each of the best, judged at the client."""
    thoughts: list[list[str]] = [[]]
    ask = partial(endpoint.complete, n=branches, stop=["\n"], temperature=1.0, seed=seed)
    for _ in range(depth):
        prompts = [chat(question) + "".join(f"{line}\n" for line in lines) for lines in thoughts]
        answers = await together(*((ask, (prompt, 48)) for prompt in prompts))
        tried = [
            [*lines, choice.text]
            for lines, choices in zip(thoughts, answers, strict=True)
            for choice in choices
        ]
        thoughts = sorted(tried, key=lambda lines: -judge(question, lines))[:best]
        if thoughts[0][-1].startswith("Answer"):
            break
    return {}


async def solve(endpoint: Endpoint, numbers: list[int]) -> int:
    """A sum."""
    if len(numbers) == 1:
        return numbers[0]
    if len(numbers) > 2:
        half = len(numbers) // 2
        parts = ((solve, (endpoint, part)) for part in (numbers[:half], numbers[half:]))
        numbers = await together(*parts)
    text = await endpoint.text(chat(f"What is {numbers[0]} + {numbers[1]}?"), 128)
    match = re.search(r"Answer: (-?\d+)", text)
    if match is None:
        raise RuntimeError(f"no answer: {text!r}")
    return int(match[1])


async def recursion_of_thought(endpoint: Endpoint, numbers: list[int]) -> object:
    """Recursion of thought: each small problem is a request; those of a level are sent at once."""
    return {"answer": await solve(endpoint, numbers)}


async def add(endpoint: Endpoint, numbers: list[int], votes: int, seed: int) -> int:
    """The sum that most attempts find."""
    if len(numbers) == 1:
        return numbers[0]
    prompt = chat(f"What is {numbers[0]} + {numbers[1]}?")
    choices = await endpoint.complete(prompt, 96, temperature=0.5, n=votes, seed=seed)
    found = Counter(int(m[1]) for one in choices if (m := re.search(r"Answer: (\d+)", one.text)))
    return found.most_common(1)[0][0]


async def graph_of_thought(
    endpoint: Endpoint, numbers: list[int], votes: int = 3, seed: int = 1
) -> object:
    """Graph of thought: attempts at a part are one request (`n`), those of a level go at once."""
    while len(numbers) > 1:
        pairs = [numbers[i : i + 2] for i in range(0, len(numbers), 2)]
        numbers = await together(*((add, (endpoint, pair, votes, seed)) for pair in pairs))
    return {"answer": numbers[0]}


async def skeleton_of_thought(
    endpoint: Endpoint, prompt: str, points: int, max_tokens: int, seed: int = 1
) -> object:
    """Skeleton of thought: one request for the points, one for each of them."""
    begin = chat(prompt)
    shape = "".join(
        rf"{n}\. [A-Z][a-z]{{1,8}}( [a-z]{{1,8}}){{1,3}}\n" for n in range(1, points + 1)
    )
    skeleton = await endpoint.text(begin, 40 * points, regex=shape, temperature=0.7, seed=seed)
    expand = partial(endpoint.text, stop=["\n"])
    parts = [f"{begin}{skeleton}{point}: " for point in re.findall(r"\d\. (.*)", skeleton)]
    await together(*((expand, (part, max_tokens)) for part in parts))
    return {}


SYSTEM = """Answer with thoughts and actions.
lookup(name, property): one property of a person
search(text): the name of the person of whom the text is true
add(a, b): the sum of two numbers"""


async def react(endpoint: Endpoint, question: str, steps: int = 8, max_tokens: int = 96) -> object:
    """ReAct: each thought and action is a request, with the conversation so far."""
    prompt, calls = chat(question, SYSTEM), 0
    while calls <= steps:
        line = await endpoint.text(prompt, max_tokens, stop=["\n"])
        prompt += line + "\n"
        if line.startswith("Answer:"):
            return {"answer": line.removeprefix("Answer:").strip()}
        if line.startswith("Action:") and (found := re.search(r"(\w+)\((.*)\)", line)):
            given = {str(i): v.strip().strip("\"'") for i, v in enumerate(found[2].split(","))}
            prompt += f"Observation: {await endpoint.tool(found[1], given)}\n"
            calls += 1
    raise RuntimeError(f"no answer: {prompt}")


async def code_act(
    endpoint: Endpoint, task: str, grammar: str, steps: int, max_tokens: int = 200
) -> object:
    """CodeAct: the model's code comes to the client, which runs it and asks on."""
    prompt = chat(task)
    variables: dict[str, object] = {}
    observations = []
    for _ in range(steps):
        prompt += "```python\n"
        code = await endpoint.text(prompt, max_tokens, regex=grammar)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "step", "exec"), variables)
        observations.append(out.getvalue())
        prompt += f"{code}```\nObservation: {observations[-1]}\n"
    return {"answer": observations[-1].strip(), "observations": observations}


async def swarm(
    endpoint: Endpoint, agents: list[str], task: str, rounds: int, max_tokens: int
) -> object:
    """A swarm: the client keeps each agent's text, and sends all of it in each round."""
    texts = dict.fromkeys(sorted(agents), "")
    said: list[dict[str, str]] = []
    heard = task
    for _ in range(rounds):
        texts = {name: text + heard for name, text in texts.items()}
        answers = await together(*((endpoint.text, (text, max_tokens)) for text in texts.values()))
        said.append(dict(zip(texts, answers, strict=True)))
        texts = {name: text + said[-1][name] for name, text in texts.items()}
        heard = " ".join(said[-1].values())
    return {"said": said}


async def api_agent(
    endpoint: Endpoint,
    apis: list[str],
    request: str,
    mode: str = "in parallel",
    max_tokens: int = 200,
) -> object:
    """An agent with APIs: documents in each prompt, calls when a turn is over."""
    head = "\n".join([f"<|system|>\nCalls: {mode}.", *apis])
    prompt = f"{head}<|end|>\n<|user|>\n{request}<|end|>\n<|assistant|>\n"
    made: list[str] = []
    for _ in range(8):
        text = await endpoint.text(prompt, max_tokens)
        calls = re.findall(r"\[CALL\](\w+)\[HEAD\](\w+)\((.*?)\)\[END\]", text)
        if not calls:
            return {"answer": text, "calls": made}
        given = [dict(re.findall(r"(\w+)=\"?([^\",]*)", arguments)) for *_, arguments in calls]
        answers = await together(
            *((endpoint.tool, (call[1], one)) for call, one in zip(calls, given, strict=True))
        )
        made += [name for _, name, _ in calls]
        results = "".join(
            f"[INTR]{call[0]}[HEAD]{answer}[END]"
            for call, answer in zip(calls, answers, strict=True)
        )
        prompt += f"{text}<|end|>\n<|tool|>\n{results}<|end|>\n<|assistant|>\n"
    raise RuntimeError("the agent does not end")
