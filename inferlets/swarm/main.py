"""Swarm: agents in instances of their own pass a text on by messages, each keeping its context.

Each agent asks its own question of what it hears; what an agent has computed stays where it is.
"""

import asyncio
import json

from inferlet import Context, Model, gather, messaging, runtime


async def agent(topic: str, name: str, max_tokens: int) -> str:
    """Answers what comes for it, until an empty message; how many tokens it has computed."""
    context = Context(Model.load())
    while text := await messaging.pull(f"{topic}/{name}"):
        context.fill(text)
        answer = await context.generate(max_tokens=max_tokens).collect_text()
        await messaging.push(f"{topic}/answers", json.dumps([name, answer]))
    return json.dumps(len(context))


async def talk(topic: str, agents: list[str], task: str, rounds: int) -> list[dict[str, str]]:
    """The agents' words in each round, of what all of them said in the one before."""
    said: list[dict[str, str]] = []
    heard = task
    for _ in range(rounds):
        await gather(*(messaging.push(f"{topic}/{name}", heard) for name in agents))
        answers = [json.loads(await messaging.pull(f"{topic}/answers")) for _ in agents]
        said.append(dict(sorted(answers)))
        heard = " ".join(said[-1].values())
    await gather(*(messaging.push(f"{topic}/{name}", "") for name in agents))
    return said


async def main(
    agents: list[str],
    task: str = "Once upon a time",
    rounds: int = 2,
    max_tokens: int = 8,
    program: str = "swarm",
    role: str = "",
    topic: str = "",
) -> object:
    """Returns what was said in each round, and how many tokens each agent has computed.

    Args:
        agents: their names.
        task: what all of them hear first.
        rounds: how often each speaks.
        max_tokens: most tokens of an agent's message.
        program: the name under which this program is uploaded.
        role: of a child: its name among the agents.
        topic: of a child: where messages come from.
    """
    if role:
        return await agent(topic, role, max_tokens)
    topic = runtime.instance_id()
    given = ("--topic", topic, "--max-tokens", str(max_tokens), "--agents", "-", "--role")
    children = gather(*(runtime.launch(program, *given, name) for name in agents))
    # An agent that fails ends the talk, which would wait for its answers.
    said, tokens = await asyncio.gather(talk(topic, agents, task, rounds), children)
    return {"said": said, "tokens": dict(zip(agents, map(int, tokens), strict=True))}
