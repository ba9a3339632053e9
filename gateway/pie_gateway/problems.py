"""Answers in place of results: a status, and the reason in OpenAI's error object."""

from __future__ import annotations

import errno
from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec
import structlog

from pie_py.client import ClientError, InferletFailed, RpcError
from pie_py.client.errors import RequestTooLarge
from pie_py.wire.rpc import LATER

log = structlog.get_logger("pie.http")
Value = TypeVar("Value")


class ErrorDetail(msgspec.Struct):
    """An error, for people and for programs."""

    message: str
    type: str
    param: str | None = None  # the field of the request that is wrong
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """OpenAI's error object."""

    error: ErrorDetail


class Problem(Exception):
    """A request that cannot be answered."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after  # seconds

    @property
    def kind(self) -> str:
        """OpenAI's word for errors of this status."""
        return _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else _SERVER)

    @property
    def body(self) -> ErrorBody:
        """The body of the answer."""
        return ErrorBody(ErrorDetail(self.message, self.kind, self.param, self.code))


_SERVER = "server_error"
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# What the contract's and the protocol's codes mean to a client of HTTP.
_STATUS = {
    "invalid-argument": 400,
    "unsupported": 400,
    "usage": 400,
    "program-rejected": 400,
    "unknown-model": 404,
    "not-found": 404,
    "permission-denied": 403,
    "already-exists": 409,
    "busy": 409,
    "cancelled": 409,
    "limit-exceeded": 503,
    "out-of-resources": 503,
    "worker-lost": 503,
    "node-lost": 503,
    "starting": 503,
    "timed-out": 504,
}
_CONTEXT_LENGTH, _MAX_TOKENS = "context-length: ", "max-tokens: "
_GRAMMAR = ("the grammar: ", "the JSON schema: ")


def unsupported(field: str, why: str) -> Problem:
    """A field of the request that has no effect here, so the request is refused."""
    return wrong(field, why, "unsupported_value")


def wrong(field: str, why: str, code: str | None = None) -> Problem:
    """A field of the request that cannot be what it is."""
    return Problem(400, f"`{field}`: {why}", param=field, code=code)


def unknown_model(name: str, served: list[str]) -> Problem:
    """No model has this name."""
    text = f"no model is called {name[:200]!r}; served: {', '.join(served) or 'none at the moment'}"
    return Problem(404, text, param="model", code="model_not_found")


def fault(error: Exception) -> Problem:
    """A mistake of ours, which the log explains; or a full disk, which the operator mends."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        log.error("the disk is full", problem=str(error))
        why = f"{error.strerror}; the operator has to make room in the gateway's data folder"
        return Problem(503, f"the gateway cannot keep it: {why}", code="out_of_resources")
    log.error("a fault of the gateway", exc_info=error)
    return Problem(500, "a fault of the gateway; its log has more")


def of_client(error: ClientError, prompt: str = "messages", form: str | None = None) -> Problem:
    """The problem of a refusal or failure; `prompt` is the request's field that may be too long,
    and `form` the one that says what the text looks like.
    """
    if isinstance(error, InferletFailed):
        return of_text(error.text, prompt, form)
    if isinstance(error, RequestTooLarge):
        return Problem(413, error.message, code="request_too_large")
    if isinstance(error, RpcError):
        return _of_code(error.code, error.message, too_much=413)
    return Problem(503, str(error), code="unreachable", retry_after=1.0)


async def asked(call: Awaitable[Value]) -> Value:
    """The control process's answer. Raises `Problem`: it refuses."""
    try:
        return await call
    except ClientError as error:
        raise of_client(error) from None


def of_text(text: str, prompt: str = "messages", form: str | None = None) -> Problem:
    """The error that an instance has ended with: `CODE: message` if it is one of the contract."""
    code, colon, message = text.partition(": ")
    if not colon or code not in _STATUS:
        return Problem(500, text[-2000:], code="program_failed")
    if message.startswith(_CONTEXT_LENGTH):
        # The words that LiteLLM and Claude Code know it by.
        rest, known = message.removeprefix(_CONTEXT_LENGTH), "prompt is too long"
        if rest.startswith(_MAX_TOKENS):
            rest, prompt = rest.removeprefix(_MAX_TOKENS), "max_tokens"
            known = "`max_tokens` is too large"
        text = f"{known}, this model's maximum context length is exceeded: {rest}"
        return Problem(400, text, param=prompt, code="context_length_exceeded")
    if message.startswith(_MAX_TOKENS):
        text = message.removeprefix(_MAX_TOKENS)
        return Problem(400, text, param="max_tokens", code="max_tokens_too_few")
    problem = _of_code(code, message)
    if message.startswith(_GRAMMAR):
        problem.param = form
    return problem


def _of_code(code: str, message: str, too_much: int = 400) -> Problem:
    """The meaning of a code; `too_much`: the status of a limit that no later try is below."""
    status = _STATUS.get(code, 500)
    passes = LATER in message or code in ("worker-lost", "node-lost", "starting")
    if code == "limit-exceeded" and not passes:
        status = too_much
    retry_after = 1.0 if status == 503 and passes else None
    return Problem(status, message, code=code.replace("-", "_"), retry_after=retry_after)


def headers_of(problem: Problem) -> dict[str, str]:
    """Headers that go with a problem."""
    headers: dict[str, Any] = {}
    if problem.retry_after is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after)))
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers
