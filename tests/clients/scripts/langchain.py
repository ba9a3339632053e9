"""LangChain's ChatOpenAI by its own standard tests, over chat and over Responses.

A test that is skipped, or that fails because the model has not said or called what a good one
would, is not judged; its reason is told. An error of the server is wrong in any test.
"""

import os
import sys
from typing import Any

import pytest
from cases import MODEL, RIGHT, UNJUDGED, V1, WRONG, tell
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

# What a model has to be good enough for.
WIT = {
    "test_json_mode": "the keys of the object are asked for in words alone",
    "test_agent_loop": "the model has to call of its own accord",
    "test_unicode_tool_call_integration": "the model has to copy a text into an argument",
}
OF_WIT = ("AssertionError", "langchain_core.exceptions.OutputParserException")
CUT = ("openai.LengthFinishReasonError", "EOF while parsing")  # the server has said so


class _Tests(ChatModelIntegrationTests):
    responses = False
    structured = "json_schema"

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": MODEL,
            "base_url": V1,
            "api_key": "none",
            "max_retries": 0,
            "temperature": 0,
            "max_tokens": 300,
            "stream_usage": True,
            "use_responses_api": self.responses,
            # Where a call is forced, the tests want one; a weak model would go on.
            "model_kwargs": {"parallel_tool_calls": False},
        }

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": self.structured}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return MODEL


class TestChat(_Tests):
    pass


class TestResponses(_Tests):
    responses = True


class TestChatByFunctions(_Tests):
    structured = "function_calling"


class Telling:
    """Tells of each test as of a case."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        _, group, test = report.nodeid.split("::")
        name = f"{group[4:]}: {test[5:]}"
        if report.passed:
            tell(name, RIGHT)
        elif report.skipped:
            tell(name, UNJUDGED, str(getattr(report, "wasxfail", report.longrepr[2])))
        else:
            crash = report.longrepr.reprcrash.message
            of_wit = WIT.get(test.partition("[")[0]) if crash.startswith(OF_WIT) else None
            if any(word in crash for word in CUT):
                of_wit = "the model has to end its texts"
            tell(name, *((UNJUDGED, of_wit) if of_wit else (WRONG, crash)))


if __name__ == "__main__":
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--asyncio-mode=auto"]
    options += ["--noconftest", "-c", os.devnull]  # those of our own tests need other packages
    # The client keeps its connections, and so a loop, over all tests.
    options += ["-o", "asyncio_default_test_loop_scope=session"]
    options += ["-k", "not ByFunctions or structured"]
    sys.stdout = sys.stderr
    pytest.main([__file__, *options], plugins=[Telling()])
