"""A swarm: the client keeps each agent's text, and sends all of it in each round."""

from __future__ import annotations

from benchmarks.inferlets.endpoint import Endpoint, together


async def main(
    endpoint: Endpoint, agents: list[str], task: str, rounds: int, max_tokens: int
) -> object:
    """Lets agents speak in rounds."""
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
