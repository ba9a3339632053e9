"""Continues a prompt and streams the answer.

Run: pie-py run inferlets/text_completion --prompt "The capital of"
"""

from argparse import ArgumentParser

from inferlet import Context, Model, Sampler


async def main(args: list[str]) -> str:
    """Sends the answer to the client in pieces, as it is generated."""
    parser = ArgumentParser("text_completion", description="Continues a prompt.")
    parser.add_argument("--prompt", required=True, help="what to continue")
    parser.add_argument(
        "--chat", action="store_true", help="answer the prompt, by the model's chat template"
    )
    parser.add_argument("--max-tokens", type=int, default=64, help="most tokens to generate")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="share of likelihood to choose from"
    )
    parser.add_argument("--top-k", type=int, help="number of tokens to choose from")
    parser.add_argument("--seed", type=int, help="makes the choices repeatable")
    options = parser.parse_args(args)
    try:
        sampler = Sampler(options.temperature, options.top_k, options.top_p, seed=options.seed)
        context = Context(Model.load())
        if options.chat:
            context.user(options.prompt)
        else:
            context.fill(options.prompt)
        generator = context.generate(sampler, max_tokens=options.max_tokens)
    except ValueError as error:
        parser.error(str(error))
    await generator.send_text()
    return ""
