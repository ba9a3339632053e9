"""A child that says in a topic where it runs, and returns what it is sent."""

from inferlet import messaging, runtime


async def main(args: list[str]) -> str:
    if args[0] == "fail":
        raise RuntimeError("failed as told")
    if args[0] == "deeper":
        return await runtime.launch("child", *args[1:])
    await messaging.push("born", runtime.instance_id())
    return await messaging.pull(args[0])
