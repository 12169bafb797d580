"""Calls of the Model Context Protocol: their attributes, the limits of a server, and the error of a refusal.

A call is one JSON-RPC request. Its attributes:
    method       the method of JSON-RPC: tools/call, resources/read, tools/list
    tool         the name of the tool that is called; missing in other requests
    session      the session of the transport; missing where there is none: stdio, stateless HTTP
    user         what the `user` function returns; without one, the subject or client of the access token
    path         /tools/call/NAME, /prompts/get/NAME, /resources/read/URI, /tools/list; a slash in a name is %2F
    address, header.NAME     of the HTTP request, if there is one

A limit in code counts calls that make the server work (CALLS), and not the lists that clients ask for by
themselves, unless its `when` says otherwise. A rulebook sees every request. Those of the handshake and pings are
always exempt. A JSON-RPC batch is decided at once: each of its calls counts, and it passes as a whole or charges
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, Unpack
from urllib.parse import quote

from headgate.algorithms.slots import Slots
from headgate.enforcement.call_plan import CompiledRulebook
from headgate.enforcement.open_rulebook import Rules
from headgate.engines.port import AsyncEngine
from headgate.errors import InvalidCharge, InvalidSetting
from headgate.flow import Flow
from headgate.http.headers import retry_after
from headgate.http.refusal_body import configured_response, undecided_response, violated_rules
from headgate.integrations.application_settings import read_limits
from headgate.integrations.code_limit import BoundLimit, CodeLimit, Key, LimitText, RequestFunction
from headgate.integrations.request_flows import UNDECIDED_RETRY_S
from headgate.integrations.request_limits import AsyncRequestLimits, LimitSettings
from headgate.integrations.request_parts import RequestParts
from headgate.integrations.request_plan_cache import AddressPlan
from headgate.integrations.request_record import RequestRecord
from headgate.integrations.unreachable_limits import RouteInfo
from headgate.lazy_property import lazy_property
from headgate.rules.attributes import Attributes
from headgate.rules.match import Match

ALWAYS_EXEMPT = ("/initialize", "/ping", "/server/discover", "/logging/setLevel", "/notifications/**")
CALLS = ("tools/call", "resources/read", "prompts/get", "completion/complete")
TOO_MANY_CALLS = -32029  # the code of a refusal: one of those that JSON-RPC leaves to servers
INTERNAL_ERROR = -32603
META_PREFIX = "headgate/"  # of the header fields in the _meta of a result

_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_CALL_ATTRIBUTES = ("tool", "session", "user")

_current: ContextVar[RequestRecord | None] = ContextVar("headgate_mcp_record", default=None)


@dataclass(frozen=True)
class MCPCall:
    """A call, as functions of the application receive it.

    method, params     of the JSON-RPC request
    session            the session of the transport; None where there is none
    request            the HTTP request: of Starlette, or its scope in the ASGI middleware; None over stdio
    headers            its header fields
    address            the address of the other end of the connection
    """

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    session: str | None = None
    request: Any = None
    headers: Sequence[tuple[Any, Any]] = ()
    address: str | None = None

    @property
    def tool(self) -> str | None:
        """The name of the tool that is called; None if this is no tool call."""
        return self.target if self.method == "tools/call" else None

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of a tool call or a prompt."""
        arguments = self.params.get("arguments")
        return arguments if isinstance(arguments, Mapping) else {}

    @lazy_property
    def target(self) -> str | None:
        """The name of the tool or prompt, or the URI of the resource."""
        target = self.params.get(_NAMED.get(self.method, ""))
        return None if target is None else str(target)

    @property
    def path(self) -> str:
        """The path by which rules see the call, such as /tools/call/search. A name is always one segment."""
        path = "/" + quote(self.method, safe="/", errors="replace")
        if self.target is None:
            return path
        segment = self.target.replace("%", "%25").replace("/", "%2F")
        if not segment.strip("."):
            segment = segment.replace(".", "%2E")
        return f"{path}/{quote(segment, safe='', errors='replace')}"

    def parts(self) -> RequestParts:
        """Returns the call in the form of a web request, as rules read it."""
        return RequestParts(self.method, self.path, b"", self.headers, self.address, self)


class MCPLimit(CodeLimit):
    """A limit in code: CodeLimit describes the arguments.

    Without `when` it counts CALLS; with `tool` in its key, tool calls only. when={"path": "/**"} counts all.
    """

    def __init__(self, limit: LimitText, key: Key = "address", **fields: Any) -> None:
        names = {key} if isinstance(key, str) else set() if key is None or callable(key) else set(key)
        fields.setdefault("when", {"method": "tools/call" if "tool" in names else list(CALLS)})
        if all(name in ("tool", "session") or name.startswith("address") for name in names):
            fields.setdefault("missing", "one")
        super().__init__(limit, key, **fields)


class _BatchParts(RequestParts):
    """A JSON-RPC batch; its calls are decided together."""

    __slots__ = ("calls",)

    def __init__(self, calls: Sequence[MCPCall]) -> None:
        super().__init__("BATCH", "/", b"", calls[0].headers, calls[0].address, calls)
        self.calls: Sequence[MCPCall] = calls


class MCPLimits(AsyncRequestLimits):
    """The limits of an MCP server, by calls."""

    def __init__(
        self,
        rules: Rules | None = None,
        engine: str | AsyncEngine = "memory://",
        **settings: Unpack[LimitSettings],
    ) -> None:
        settings["limits"] = read_limits("limits", settings.get("limits", ()), MCPLimit)
        exempt = settings.get("exempt", ())
        settings["exempt"] = exempt if isinstance(exempt, str) else (*ALWAYS_EXEMPT, *exempt)
        super().__init__(rules, engine, **settings)
        self._given_attributes = self.attributes
        self.attributes: RequestFunction | None = self._all_attributes
        self.user: RequestFunction | None = self.user or _token_subject
        self.check_code_limits([RouteInfo("/{path...}", (), [bound.limit for bound in self.app_limits])])

    def begin_calls(self, calls: Sequence[MCPCall]) -> RequestRecord:
        """Starts the record of a call, or of a batch of them."""
        return self.begin(calls[0].parts()) if len(calls) == 1 else RequestRecord(_BatchParts(calls), False)

    def how_to_supply(self, attribute: str) -> str | None:
        """Returns a hint for an attribute that calls do not have; None if the application may have a value."""
        if attribute in _CALL_ATTRIBUTES or self._given_attributes is not None:
            return None
        return self.supply_hints["attributes"]

    async def _all_attributes(self, call: MCPCall) -> Mapping[str, Any]:
        given: Any = {}
        if self._given_attributes is not None:
            given = self._given_attributes(call)
            given = (await given if isawaitable(given) else given) or {}
            if not isinstance(given, Mapping):
                raise InvalidCharge(f'attributes= returns a mapping such as {{"plan": "pro"}}, not {given!r}.')
        return {"tool": call.tool, "session": call.session, **given}

    def _find_matches(
        self, record: RequestRecord, compiled: CompiledRulebook | None, limits: Sequence[BoundLimit]
    ) -> Flow[tuple[list[Match], Attributes | None]]:
        parts = record.parts
        if not isinstance(parts, _BatchParts):
            return (yield from super()._find_matches(record, compiled, limits))
        found: list[Match] = []
        values: Attributes | None = None
        for call in parts.calls:
            each = self.begin(call.parts())
            if not each.exempt:
                matches, values = yield from super()._find_matches(each, compiled, limits)
                found += matches
        return _add_up(found), values

    def _cached_plan(
        self, record: RequestRecord, limits: Sequence[BoundLimit], with_rules: bool
    ) -> AddressPlan | None:
        return None  # two batches of one address may have different numbers of calls


def _add_up(matches: Iterable[Match]) -> list[Match]:
    """Adds up the costs of matches that charge the same counter. Slots are held one by one."""
    charged: dict[Any, Match] = {}
    for number, match in enumerate(matches):
        same: Any = match.rule.name, match.key, id(match.limits), match.shadow, match.denial_reason
        if any(isinstance(limit, Slots) for limit in match.limits):
            same = number
        first = charged.get(same)
        charged[same] = match if first is None else match._replace(cost=first.cost + match.cost)
    return list(charged.values())


def _token_subject(call: MCPCall) -> str | None:
    """Returns the user of the access token that the server has verified; None without one."""
    request = call.request
    scope = request if isinstance(request, Mapping) else getattr(request, "scope", {})
    token = getattr(scope.get("user"), "access_token", None)
    return getattr(token, "subject", None) or getattr(token, "client_id", None)


def current_record() -> RequestRecord:
    """Returns the record of the call that is being handled, for its decision and for settle(cost)."""
    record = _current.get()
    if record is None:
        raise InvalidSetting("No call is being handled here, or its server has no middleware of headgate.")
    return record


@contextmanager
def handling(record: RequestRecord) -> Iterator[None]:
    """Makes a record the one of the call that is being handled."""
    token = _current.set(record)
    try:
        yield
    finally:
        _current.reset(token)


def refusal_error(record: RequestRecord) -> tuple[int, str, dict[str, Any]]:
    """Returns code, message and data of the JSON-RPC error of a refused call."""
    decision = record.decision
    if decision is None:
        message = undecided_response("text/plain", wait=UNDECIDED_RETRY_S).body
        return INTERNAL_ERROR, message.decode().strip(), {"retryAfter": UNDECIDED_RETRY_S}
    assert decision.refusal is not None
    names, wait = violated_rules(decision), retry_after(decision)
    reason = decision.why if wait is None else None
    body = configured_response(decision.refusal, names, "text/plain", wait, reason).body
    data: dict[str, Any] = {"violatedPolicies": names, **meta(record)}
    if decision.retry_after is not None:
        data["retryAfter"] = decision.retry_after
    return TOO_MANY_CALLS, body.decode("utf-8", "replace").strip() or "Too many requests.", data


def meta(record: RequestRecord) -> dict[str, str]:
    """Returns the header fields as they are in the _meta of a result: {"headgate/ratelimit": ...}."""
    return {META_PREFIX + name.lower(): value for name, value in record.fields()}
