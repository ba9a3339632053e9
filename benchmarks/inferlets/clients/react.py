"""ReAct: each thought and action is a request, with the conversation so far."""

from __future__ import annotations

import re

from benchmarks.inferlets.endpoint import Endpoint, chat

SYSTEM = """Answer with thoughts and actions.
lookup(name, property): one property of a person
search(text): the name of the person of whom the text is true
add(a, b): the sum of two numbers"""


async def main(endpoint: Endpoint, question: str, steps: int = 8, max_tokens: int = 96) -> object:
    """Answers a question with tools."""
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
