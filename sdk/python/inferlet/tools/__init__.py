"""Tools: what a model may call, where it runs, and the executor that runs it."""

from inferlet.tools.client import ClientLink
from inferlet.tools.estimates import learn, learned
from inferlet.tools.evaluator import EvaluationError, evaluate
from inferlet.tools.executor import Executor, Outcome
from inferlet.tools.kinds import (
    BadTools,
    http_tool,
    inferlet_tool,
    load_tools,
    mcp_tool,
    python_tool,
    simulated_tool,
    tool_from_json,
)
from inferlet.tools.tool import Cut, Tool, ToolError

__all__ = [
    "BadTools",
    "ClientLink",
    "Cut",
    "EvaluationError",
    "Executor",
    "Outcome",
    "Tool",
    "ToolError",
    "evaluate",
    "http_tool",
    "inferlet_tool",
    "learn",
    "learned",
    "load_tools",
    "mcp_tool",
    "python_tool",
    "simulated_tool",
    "tool_from_json",
]
