"""Text within a grammar: a JSON schema, a regular expression, or EBNF.

The server chooses among the tokens that keep to it; what it leaves no choice of is not computed.
"""

from inferlet import Context, Grammar, Model, Sampler


async def main(
    prompt: str = "Make a person: name Rena, age 31. ",
    schema: str = '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, '
    '"age": {"type": "integer", "maximum": 99}}, "required": ["name", "age"], '
    '"additionalProperties": false}',
    regex: str | None = None,
    ebnf: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 128,
    seed: int = 1,
) -> str:
    """Sends the text in pieces.

    Args:
        prompt: what to continue.
        schema: a JSON schema.
        regex: a regular expression, in place of the schema.
        ebnf: a grammar in Lark's syntax or GBNF, in place of the schema.
        temperature: of the choice; 0 takes the likeliest token.
        max_tokens: most tokens of the text.
        seed: makes it repeatable.
    """
    grammar = Grammar.json_schema(schema)
    if ebnf or regex:
        grammar = Grammar.lark(ebnf) if ebnf else Grammar.regex(regex or "")
    context = Context(Model.load()).fill(prompt)
    generator = context.generate(
        Sampler.multinomial(temperature, seed), grammar=grammar, max_tokens=max_tokens
    )
    await generator.send_text()
    if not generator.is_complete:
        raise SystemExit("cut short before the grammar's end: give more --max-tokens")
    return ""
