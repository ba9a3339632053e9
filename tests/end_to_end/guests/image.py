"""Images: what tests launch; the first argument says which. The image comes as a blob.

`tests/image_guests` does the same in Rust.
"""

from inferlet import Context, Model, PieError, Sampler, images, session


async def main(args: list[str]) -> str:
    """Runs a command."""
    match args:
        case ["facts"]:
            return await facts()
        case ["describe", before, after, count]:
            return await describe(before, after, count)
        case ["edit", before, after, count]:
            return await edit(before, after, count)
        case ["try", before, count]:
            return await try_it(before, count)
    raise ValueError(f"no command {args}")


async def facts() -> str:
    """Size of the image, and how many places it takes."""
    image = await session.receive_blob()
    width, height = images.size_of(image)
    return f"{width} x {height}: {images.tokens_of(Model.load(), image)}"


async def describe(before: str, after: str, count: str) -> str:
    """Token ids that follow some tokens, the image and some more tokens, and those after a fork."""
    image = await session.receive_blob()
    model = Model.load()
    context = Context(model)
    context.append(numbers(before))
    await context.image(image)
    seen = context.tokens.count(-1)
    if seen != images.tokens_of(model, image):
        raise ValueError(f"{seen} places")
    fork = context.fork()
    texts = []
    for one in (context, fork):
        one.append(numbers(after))
        texts.append(await following(one, count))
    return "; ".join(texts)


async def edit(before: str, after: str, count: str) -> str:
    """Positions after changes of a context with an image, and the token ids that follow each."""
    image = await session.receive_blob()
    model = Model.load()
    context = Context(model)
    start = len(numbers(before))
    found: list[int] = []
    for _ in range(2):  # with an image, without it again, and with it
        context.truncate(min(start, len(context)))
        found.append(context.next_position)
        context.append(numbers(before)[context.next_position :])
        await context.image(image)
        found.append(context.next_position)
    end = len(context)
    context.append(numbers(after))
    await context.flush()
    pages = -(-end // context.page_size) * context.page_size
    forks = [context.fork() for _ in range(4)]
    forks[0].drop(0, pages)
    await forks[0].image(image)
    forks[1].evict(range(start, end))
    forks[2].truncate(start + 2)
    forks[3].truncate(start)
    for fork in forks[2:]:
        fork.append(numbers(after))
    texts: list[str] = []
    for one in (context, *forks):
        found.append(one.next_position)
        texts.append(await following(one, count))
    return "; ".join([" ".join(map(str, found)), *texts])


async def try_it(before: str, count: str) -> str:
    """What is wrong with an image, and the token ids that follow the tokens before it."""
    image = await session.receive_blob()
    context = Context(Model.load())
    context.append(numbers(before))
    error = "none"
    try:
        await context.image(image)
    except PieError as wrong:
        error = str(wrong)
    return f"{error}; {await following(context, count)}"


async def following(context: Context, count: str) -> str:
    """Token ids, generated greedily."""
    generator = context.generate(Sampler.argmax(), max_tokens=int(count), stop=[])
    return " ".join(map(str, await generator.collect_tokens()))


def numbers(text: str) -> list[int]:
    """Numbers of a text."""
    return [int(number) for number in text.split()]
