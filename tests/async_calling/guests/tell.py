"""Broadcasts a text to a topic once somebody is subscribed."""

import asyncio
import json

from inferlet import messaging


async def main(args: list[str]) -> str:
    topic, sender, text = args
    while not await messaging.broadcast(topic, json.dumps({"sender": sender, "text": text})):
        await asyncio.sleep(0.01)
    return ""
