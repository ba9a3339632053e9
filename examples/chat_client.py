"""Talks with `chat_loop.py`, line by line; an empty line ends it.

Run: python examples/chat_client.py    (beside `pie-py serve`)
"""

from pathlib import Path

from pie_py.client.sync import Client

with Client() as client:
    instance = client.launch(client.upload(Path(__file__).with_name("chat_loop.py")))
    while text := input("> "):
        instance.send(text)
        while piece := instance.receive():  # as it comes; an empty text is the answer's end
            print(piece, end="", flush=True)
    instance.send("")
    print(instance.result())
