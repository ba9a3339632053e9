"""An agent with APIs: documents in each prompt, calls when a turn is over."""

from __future__ import annotations

import re

from benchmarks.inferlets.endpoint import Endpoint, together


async def main(
    endpoint: Endpoint,
    apis: list[str],
    request: str,
    mode: str = "in parallel",
    max_tokens: int = 200,
) -> object:
    """Does what is asked for, by calls."""
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
