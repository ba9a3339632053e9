"""Answers a question about an image that the client sends.

pie-py serve --model HuggingFaceTB/SmolVLM-256M-Instruct

from pathlib import Path
from pie_py.client.sync import Client

with Client() as client:
    program = client.upload(Path("examples/describe_image.py"))
    instance = client.launch(program, ["What is this?"])
    instance.send(Path("photo.jpg").read_bytes())
    print(instance.result())
"""

from inferlet import Context, Model, Sampler, session

PLACES = "<image>", "<|image_pad|>"  # what chat templates write where an image belongs


async def main(args: list[str]) -> str:
    """Runs the inferlet."""
    question = " ".join(args) or "What is in this image?"
    model = Model.load()
    image = await session.receive_blob()
    content = [{"type": "image"}, {"type": "text", "text": question}]
    text = model.tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    places = [place for place in PLACES if place in text]
    if not places:
        raise ValueError(f"the chat template of {model.name!r} has no place for images")
    before, _, after = text.partition(places[0])
    context = Context(model)
    context.fill(before)
    await context.image(image)
    context.fill(after)
    return await context.generate(Sampler.argmax(), max_tokens=200).collect_text()
