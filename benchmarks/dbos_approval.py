"""The agent of docs/durable.md with DBOS, for its lines of code: the model is asked over HTTP.

    dbos/bin/python -P benchmarks/dbos_approval.py sqlite:////tmp/dbos.sqlite3 "The capital is"

Killed while it waits and started again it goes on. What it sends is shown and answered at its
terminal; `PIE` is a server's address, `http://127.0.0.1:8000` unless it is set.
"""

# agent: what one writes for an agent begins here
import json
import os
import sys
import urllib.request

from dbos import (  # type: ignore[import-not-found]
    DBOS,
    SetWorkflowID,
    SQLAlchemyDatasource,
)
from sqlalchemy import text  # type: ignore[import-not-found]

ADDRESS = os.environ.get("PIE", "http://127.0.0.1:8000") + "/v1/completions"
DBOS(
    config={
        "name": "approval",
        "system_database_url": sys.argv[1],
        "log_level": "ERROR",
        "run_admin_server": False,
    }
)
orders = SQLAlchemyDatasource.create(database_url=sys.argv[1])


@DBOS.step()  # type: ignore[untyped-decorator]
def ask(prompt: str) -> str:
    """Asks the model, which reads all of the prompt again."""
    body = json.dumps({"prompt": prompt, "max_tokens": 16}).encode()
    asked = urllib.request.Request(ADDRESS, body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        return str(json.load(answer)["choices"][0]["text"])


@orders.transaction()  # type: ignore[untyped-decorator]
def count_order() -> int:
    """Counts one order more."""
    run = orders.sql_session().execute
    run(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)"))
    return int(run(text("INSERT INTO orders DEFAULT VALUES RETURNING id")).scalar_one())


@DBOS.workflow()  # type: ignore[untyped-decorator]
def approval(question: str) -> str:
    """Plans, counts its order, and waits for a person."""
    plan = ask(question)
    DBOS.set_event("asked", f"Order {count_order()}: {plan.strip()} Shall I?")
    answer = DBOS.recv("answer", timeout_seconds=7 * 86400)
    words = ask(f"{question}{plan} {answer}")
    return f"{answer}:{words}"


# agent: what follows is its client
if __name__ == "__main__":
    DBOS.launch()
    with SetWorkflowID("it"):
        handle = DBOS.start_workflow(approval, sys.argv[2])
    print(DBOS.get_event("it", "asked", timeout_seconds=60))
    DBOS.send("it", input(), "answer")
    print(handle.get_result())
