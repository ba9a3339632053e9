"""Fetches web pages and has the model say what they are about.

pie-py serve --allow-http example.com --allow-http '*.wikipedia.org'
pie-py run examples/web_page.py -- https://example.com/
"""

import asyncio
import re

from inferlet import Context, Model, PieError, Sampler, http, session

MOST_CHARACTERS = 1000


async def read_page(url: str) -> str:
    """The start of a page's text."""
    try:
        response = await http.get(url, timeout=20)
        html = await response.raise_for_status().text()
    except (PieError, http.HttpError) as error:
        return f"({error})"
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()[:MOST_CHARACTERS]


async def topic(model: Model, text: str) -> str:
    """The model's words on a page."""
    context = Context(model).fill(f"{text}\n\nThis page is about")
    return await context.generate(Sampler.argmax(), max_tokens=32).collect_text()


async def main(args: list[str]) -> str:
    """Runs the inferlet."""
    if not args:
        raise SystemExit("usage: web_page.py URL...")
    model = Model.load()
    pages = await asyncio.gather(*(read_page(url) for url in args))
    topics = await asyncio.gather(*(topic(model, text) for text in pages))
    for url, text, about in zip(args, pages, topics, strict=True):
        session.send(f"{url}\n{text}\n{about}\n")
    return ""
