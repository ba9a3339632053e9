"""A long text in a few KV pages: when room runs out, the page that is attended to least is given
up.

The first page stays, and the last: attention needs the sink (Xiao et al. 2023), and the text its
end. What lies between is kept by what was attended to of late (Zhang et al. 2023, the Heavy-Hitter
Oracle).

Run: pie-py run examples/heavy_hitters.py -- "Once upon a time there was a girl who" 8 200
"""

import json

from inferlet import Model, raw, ready


class FewPages:
    """Greedy generation within a number of pages."""

    def __init__(self, model: Model, most: int) -> None:
        """Takes how many pages there may be."""
        self.model = model
        self.most = max(3, most)
        self.queue = raw.create_queue(model.name)
        self.pages: list[int] = []
        self.position = 0  # of the next token; what was given up leaves a gap

    def spans(self) -> list[int]:
        """The pages, as the server wants them."""
        return [number for page in self.pages for number in (page, 1)]

    async def run(self, tokens: list[int]) -> int:
        """Runs tokens and returns the most likely one after them."""
        for start in range(0, len(tokens), self.model.page_size):
            token = await self.run_page(tokens[start : start + self.model.page_size])
        return token

    async def run_page(self, tokens: list[int]) -> int:
        """As `run`, of no more tokens than a page has."""
        queue, count = self.queue, len(tokens)
        used = raw.kvpage_used(queue, self.spans())
        if count > len(used) * self.model.page_size - sum(used):
            self.pages.append(raw.alloc_kvpage(queue, 1))
            used.append(0)
        embeds = [raw.alloc_emb(queue, count), count]
        output = [embeds[0], 1]
        raw.embed_txt(queue, tokens, [self.position, count], embeds)
        self.position += count
        lists = (self.spans(), embeds, self.spans(), output, [])
        if len(self.pages) <= self.most:
            raw.forward(queue, *lists)
        else:
            future = raw.forward_with_attention(
                queue, *lists, observed=count, detail="total", adapter=""
            )
            await ready(future)
            self.give_up_one(used, raw.take_attention(future)[1])
        future = raw.get_next_dist(queue, output[0], 1)
        raw.dealloc_emb(queue, embeds)
        await ready(future)
        return raw.take_dist(future)[0][0]

    def give_up_one(self, used: list[int], attention: list[float]) -> None:
        """Frees the page whose slots, of which some are `used`, have the least attention."""
        ends = [sum(used[: i + 1]) for i in range(len(used))]
        mass = [sum(attention[end - count : end]) for end, count in zip(ends, used, strict=True)]
        least = min(range(1, len(mass) - 2), key=mass.__getitem__)
        raw.dealloc_kvpage(self.queue, [self.pages.pop(least), 1])


async def main(args: list[str]) -> str:
    """Returns the text, how many tokens it has, and how many pages were left of it."""
    prompt, pages, count = [*args, *["Once upon a time", "8", "200"][len(args) :]]
    model = Model.load()
    text = FewPages(model, int(pages))
    tokens = model.tokenizer.encode(prompt)
    token = await text.run(tokens)
    out: list[int] = []
    while len(out) < int(count) and token not in model.stop_tokens:
        out.append(token)
        token = await text.run([token])
    return json.dumps(
        {
            "text": model.tokenizer.decode(out),
            "tokens": len(tokens) + len(out),
            "pages": len(text.pages),
        }
    )
