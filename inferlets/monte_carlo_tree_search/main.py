"""Monte Carlo tree search over tokens (PUCT), with the model as policy and as value.

A node's value is how likely the model finds the text through it, per token, continued greedily.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from inferlet import Context, Model, Sampler


@dataclass
class Node:
    """A text, and the tokens that may follow it."""

    context: Context
    logs: list[float]  # log-probabilities of its tokens
    prior: float = 1.0
    visits: int = 0
    total: float = 0.0
    children: list[Node] = field(default_factory=list)

    def child(self, explore: float) -> Node:
        """The one to visit next."""
        root = explore * math.sqrt(self.visits)
        return max(
            self.children,
            key=lambda c: c.total / max(c.visits, 1) + root * c.prior / (1 + c.visits),
        )


async def expand(node: Node, choices: int) -> None:
    """Gives a node its children."""
    likely = await node.context.distribution(choices)
    for token, prior in zip(likely.tokens, likely.probabilities, strict=True):
        context = node.context.fork().append([token])
        node.children.append(Node(context, [*node.logs, math.log(prior)], prior))


async def roll_out(node: Node, start: int, length: int) -> tuple[float, list[int]]:
    """The mean probability of the greedy text through a node, and its tokens."""
    logs, tokens = node.logs[:], node.context.tokens[start:]
    generator = node.context.fork().generate(
        Sampler(temperature=0, logprobs=1), max_tokens=length - len(tokens), stop=[]
    )
    async for step in generator:
        output = await step.execute()
        tokens += output.tokens
        logs.append(output.logprob or 0.0)
    return math.exp(sum(logs) / len(logs)), tokens


async def main(
    prompt: str = "Once upon a time",
    simulations: int = 24,
    choices: int = 3,
    length: int = 12,
    explore: float = 1.0,
) -> dict[str, object]:
    """Returns the best text that was found, its value, and that of the greedy text.

    Args:
        prompt: what to continue.
        simulations: how many texts are tried.
        choices: tokens that may follow a node.
        length: tokens of a text.
        explore: how much likely tokens count that were tried little.
    """
    root = Node(Context(Model.load()).fill(prompt), [])
    start = len(root.context)
    found: list[tuple[float, list[int]]] = []
    for _ in range(simulations):
        path = [root]
        while path[-1].children:
            path.append(path[-1].child(explore))
        if path[-1].visits and len(path[-1].logs) < length - 1:
            await expand(path[-1], choices)
            path.append(path[-1].child(explore))
        found.append(await roll_out(path[-1], start, length))
        for node in path:
            node.visits += 1
            node.total += found[-1][0]
    value, tokens = max(found)
    text = root.context.model.tokenizer.decode(tokens)
    return {"text": text, "value": value, "greedy": found[0][0], "visits": root.visits}
