"""CodeAct: the model's code comes to the client, which runs it and asks on."""

from __future__ import annotations

import contextlib
import io

from benchmarks.inferlets.endpoint import Endpoint, chat


async def main(
    endpoint: Endpoint, task: str, grammar: str, steps: int, max_tokens: int = 200
) -> object:
    """Runs what the model writes."""
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
