"""One call of a gRPC server: decided when it begins, finished when it ends; and its refusal.

SyncCall      of a server of threads
AsyncCall     of a coroutine or async generator on a server of grpc.aio
ThreadCall    of a function on a server of grpc.aio
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any, NamedTuple
from urllib.parse import unquote

from headgate.errors import InvalidSetting
from headgate.extras import require
from headgate.http.headers import retry_after
from headgate.http.refusal_body import configured_response, undecided_response, violated_rules
from headgate.integrations.grpc_status_details import CODE_OF_STATUS, DETAILS_FIELD, HTTP_STATUS, status_details
from headgate.integrations.request_flows import UNDECIDED_RETRY_S
from headgate.integrations.request_limits import AsyncRequestLimits, RequestLimits
from headgate.integrations.request_parts import RequestParts
from headgate.integrations.request_record import RequestRecord

require("headgate.integrations.grpc", "grpc", "grpc")

import grpc  # noqa: E402
import grpc.aio  # noqa: E402

MAX_MESSAGE_CHARS = 1024  # of a rule's own body: clients take 8 KiB of metadata, and all of them count

_current: ContextVar[RequestRecord | None] = ContextVar("headgate_rpc_record", default=None)
_finishing: set[asyncio.Task[None]] = set()  # a loop keeps no reference to its tasks

Metadata = tuple[tuple[str, str | bytes], ...]


class RpcCall(NamedTuple):
    """A call, as functions of the application receive it; `request` is None if the client sends a stream."""

    method: str
    metadata: Metadata
    context: Any
    request: Any

    @property
    def service(self) -> str:
        """The full name of the service, such as shop.v1.Orders."""
        return self.method.strip("/").rpartition("/")[0]


def current_record() -> RequestRecord:
    """Returns the record of the call that is being handled, for its decision and for settle(cost)."""
    record = _current.get()
    if record is None:
        raise InvalidSetting("No call is being handled here, or its server has no interceptor of headgate.")
    return record


class RpcCallBase:
    """The common part of the three kinds of calls: the record, and the count of bytes."""

    record: RequestRecord

    def count(self, response: Any) -> None:
        """Counts the bytes of a response, if a limit wants to know."""
        if self.record.costs_after:
            self.record.bytes_sent += _size(response)


class SyncCall(RpcCallBase):
    """One call of a server of threads: decided when it is entered, finished when it is left."""

    def __init__(
        self, limits: RequestLimits, details: grpc.HandlerCallDetails, request: Any, context: grpc.ServicerContext
    ) -> None:
        self.limits: RequestLimits = limits
        self.context: grpc.ServicerContext = context
        self.record: RequestRecord = limits.begin(_parts(details, request, context))

    def __enter__(self) -> None:
        if self.limits.decide(self.record, self.limits.app_limits) is not None:
            code, message, trailing = _refusal(self.record)
            self.context.set_trailing_metadata(trailing)
            self.context.abort(code, message)
        _current.set(self.record)
        self._add_fields()

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        self._add_fields()  # the handler may have set others
        _current.set(None)
        self.finish(code_name(self.context, error))

    def finish(self, code: str) -> None:
        """Refunds, settles and releases."""
        self.limits.finish(self.record, HTTP_STATUS[code], grpc.StatusCode[code])

    def _add_fields(self) -> None:
        fields = _fields(self.record)
        present = self.context.trailing_metadata() or ()
        missing = tuple(field for field in fields if field not in present)
        if missing:
            self.context.set_trailing_metadata((*present, *missing))


class AsyncCall(RpcCallBase):
    """One call of a server of grpc.aio: decided when it is entered, finished when it is left."""

    def __init__(
        self, limits: AsyncRequestLimits, details: grpc.HandlerCallDetails, request: Any, context: Any
    ) -> None:
        self.limits: AsyncRequestLimits = limits
        self.record: RequestRecord = limits.begin(_parts(details, request, context))
        self.context: Any = _ContextWithFields(context, self.record)

    async def __aenter__(self) -> None:
        if await self.limits.decide(self.record, self.limits.app_limits) is not None:
            code, message, trailing = _refusal(self.record)
            await self.context.native.abort(code, message, trailing)
        _current.set(self.record)
        self.context.set_trailing_metadata(())

    async def __aexit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        _current.set(None)
        await self.finish(code_name(self.context, error))

    async def finish(self, code: str) -> None:
        """Refunds, settles and releases."""
        await self.limits.finish(self.record, HTTP_STATUS[code], grpc.StatusCode[code])

    def finish_soon(self) -> None:
        """Finishes a call that the client has left."""
        _finish_soon(self.limits, self.record)


def _finish_soon(limits: AsyncRequestLimits, record: RequestRecord) -> None:
    if record.unfinished:
        finish = limits.finish(record, HTTP_STATUS["CANCELLED"], grpc.StatusCode.CANCELLED)
        task = asyncio.get_running_loop().create_task(finish)
        _finishing.add(task)
        task.add_done_callback(_finishing.discard)


class ThreadCall(RpcCallBase):
    """One call of a function on a server of grpc.aio: its limits are decided in the loop, by a thread that waits.

    A thread whose client has gone may wait for grpc.aio until the server stops: the end of the call's task
    finishes it then.
    """

    def __init__(
        self, limits: AsyncRequestLimits, details: grpc.HandlerCallDetails, request: Any, context: Any, task: Any
    ) -> None:
        self.limits: AsyncRequestLimits = limits
        self.task: Any = task
        self.record: RequestRecord = limits.begin(_parts(details, request, context))
        self.context: Any = _ThreadContextWithFields(context, self.record)

    def begin(self) -> bool:
        """Decides; returns whether the call may go on. A refused one is aborted, which raises nothing here."""
        if self._run(self.limits.decide(self.record, self.limits.app_limits)) is not None:
            self.context.native.abort(*_refusal(self.record))
            return False
        if self.record.unfinished:
            self.task.get_loop().call_soon_threadsafe(self.task.add_done_callback, self._finish_soon)
        self.context.set_trailing_metadata(())
        return True

    def __enter__(self) -> None:
        _current.set(self.record)

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        _current.set(None)
        code = code_name(self.context, error)
        if self.record.unfinished and not self.task.get_loop().is_closed():
            self._run(self.limits.finish(self.record, HTTP_STATUS[code], grpc.StatusCode[code]))

    def _finish_soon(self, _task: Any) -> None:
        _finish_soon(self.limits, self.record)

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.task.get_loop()).result()


class _ContextWithFields:
    """The context of a call of grpc.aio, which adds the fields to all trailing metadata of its handler."""

    __slots__ = ("_record", "native")

    def __init__(self, native: Any, record: RequestRecord) -> None:
        self.native: Any = native
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Sets the trailing metadata of the handler, and the fields."""
        self.native.set_trailing_metadata((*metadata, *_fields(self._record)))

    async def write(self, message: Any) -> None:
        """Sends a response of a stream."""
        await self.native.write(message)
        self._record.bytes_sent += _size(message)

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        """Ends the call with an error."""
        added = (*trailing_metadata, *_fields(self._record)) if trailing_metadata else ()
        await self.native.abort(code, details, added)

    async def abort_with_status(self, status: Any) -> None:
        """Ends the call with a status."""
        await self.abort(status.code, status.details, status.trailing_metadata or ())


class _ThreadContextWithFields:
    """The context of a function on a server of grpc.aio, which adds the fields, and remembers the code."""

    __slots__ = ("_code", "_record", "native")

    def __init__(self, native: Any, record: RequestRecord) -> None:
        self.native: Any = native
        self._record = record
        self._code: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Sets the trailing metadata of the handler, and the fields."""
        self.native.set_trailing_metadata((*metadata, *_fields(self._record)))

    def set_code(self, code: Any) -> None:
        """Sets the code of the call."""
        self._code = code
        self.native.set_code(code)

    def code(self) -> Any:
        """Returns the code that the handler has set."""
        return self._code

    def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        """Ends the call with an error."""
        self._code = code
        added = (*trailing_metadata, *_fields(self._record)) if trailing_metadata else ()
        self.native.abort(code, details, added)


grpc.aio.ServicerContext.register(_ContextWithFields)
grpc.ServicerContext.register(_ThreadContextWithFields)


def _parts(details: grpc.HandlerCallDetails, request: Any, context: Any) -> RequestParts:
    method = details.method
    metadata: Any = details.invocation_metadata or ()
    service, _, name = method.strip("/").rpartition("/")
    return RequestParts(
        "POST",
        method,
        b"",
        metadata,
        _address(context.peer()),
        RpcCall(method, metadata, context, request),
        method,
        {"service": service, "method": name},
    )


def _address(peer: str) -> str | None:
    """Returns the address of a peer such as ipv4:192.0.2.7:50051; None for a socket file."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") or None if kind in ("ipv4", "ipv6") else None


def _fields(record: RequestRecord) -> Metadata:
    return tuple((name.lower(), value) for name, value in record.fields())


def _refusal(record: RequestRecord) -> tuple[grpc.StatusCode, str, Metadata]:
    """Returns code, message and trailing metadata of a refused call."""
    decision, answer = record.decision, record.answer
    assert answer is not None
    names: list[str] = []
    wait: float | None = UNDECIDED_RETRY_S
    fields = _fields(record)
    if decision is None:
        message = undecided_response("text/plain", wait=UNDECIDED_RETRY_S).body
        fields = (*fields, ("retry-after", str(UNDECIDED_RETRY_S)))
    else:
        assert decision.refusal is not None
        names, wait, seconds = violated_rules(decision), decision.retry_after, retry_after(decision)
        reason = decision.why if seconds is None else None
        message = configured_response(decision.refusal, names, "text/plain", seconds, reason).body
    text = message.decode("utf-8", "replace").strip()[:MAX_MESSAGE_CHARS] or "Too many requests."
    code = grpc.StatusCode[CODE_OF_STATUS.get(answer.status, "RESOURCE_EXHAUSTED")]
    details = status_details(code.value[0], text, wait, names)
    return code, text, (*fields, (DETAILS_FIELD, details))


def code_name(context: Any, error: BaseException | None) -> str:
    """Returns the name of the code with which a call ends."""
    code = context.code()
    if isinstance(code, int):  # which grpc.aio takes as well
        code = next((each for each in grpc.StatusCode if each.value[0] == code), None)
    if code is not None and (error is None or code is not grpc.StatusCode.OK):
        return str(code.name)
    if error is None:
        return "OK"
    return "CANCELLED" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "UNKNOWN"


def _size(response: Any) -> int:
    """Returns the size of a response: of a protobuf message, or of bytes."""
    size = getattr(response, "ByteSize", None)
    return int(size()) if size is not None else len(response) if isinstance(response, bytes) else 0
