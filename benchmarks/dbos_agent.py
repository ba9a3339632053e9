"""What DBOS takes where `benchmarks durable` measures us: the price of a step, the time to go on.

    python -m venv dbos && dbos/bin/pip install dbos
    dbos/bin/python -P benchmarks/dbos_agent.py sqlite:////tmp/dbos.sqlite3 1000

A workflow makes so many steps, of a clock, and waits for a message; its process is killed, and
another one goes on with it. The database may be PostgreSQL, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from dbos import DBOS, SetWorkflowID  # type: ignore[import-not-found]

URL, STEPS, *PART = sys.argv[1:]
DBOS(
    config={
        "name": "agent",
        "system_database_url": URL,
        "log_level": "ERROR",
        "run_admin_server": False,
    }
)


now = DBOS.step()(lambda: time.time())


def _agent(steps: int) -> str:
    """Makes steps, and waits for a person."""
    began = time.perf_counter()
    for _ in range(steps):
        now()
    print(1e6 * (time.perf_counter() - began) / steps, flush=True)
    return str(DBOS.recv("approval", timeout_seconds=600))


agent = DBOS.workflow()(_agent)


def begin() -> None:
    """Has it wait."""
    with SetWorkflowID("it"):
        DBOS.start_workflow(agent, int(STEPS))
    time.sleep(600)


def go_on() -> None:
    """Has the one of the process before end."""
    DBOS.send("it", "yes", "approval")
    assert DBOS.retrieve_workflow("it").get_result() == "yes"
    os._exit(0)


def main() -> None:
    """Kills the first process once its agent waits, and tells what both have taken."""
    command = [sys.executable, "-P", __file__, URL, STEPS]
    with subprocess.Popen([*command, "begin"], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        print(f"microseconds of a step: {float(first.stdout.readline()):.0f}")
        first.kill()
    began = time.perf_counter()
    subprocess.run([*command, "go_on"], stdout=subprocess.DEVNULL, check=True)
    print(f"seconds from a start to the answer: {time.perf_counter() - began:.2f}")


if not PART:
    main()
else:
    DBOS.launch()
    begin() if PART == ["begin"] else go_on()
