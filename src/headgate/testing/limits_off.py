"""Switches limits off for tests: every call passes, nothing is counted, no engine is asked.

    with limits_off():                  all limiters of the process
        client.post("/login")

    with limits_off(app): ...           one application, or one limiter

Methods of the limiters are replaced while the block runs, and put back at its end: production code has no switch.
What a replaced method returns is decided by an empty in-memory engine of its own, so that refunds, releases and
cancellations of it reach no counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

from headgate.adaptive.call_in_flight import AdaptiveCall
from headgate.adaptive.limiter import AdaptiveLimiter
from headgate.algorithms.decision import Decision
from headgate.algorithms.slots import Slots
from headgate.enforcement.call_plan import CallPlan
from headgate.enforcement.check_together import BatchedCall, CallBatch
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import InvalidSetting
from headgate.flow import Flow
from headgate.integrations.request_flows import RequestFlows
from headgate.integrations.task_limits import StartTask, TaskLimits
from headgate.lease import AsyncLease, Lease
from headgate.limiter import AsyncLimiter, Limiter
from headgate.validation import ChargeBatch, describe

_NOT_SET = object()


@contextmanager
def limits_off(*limited: object) -> Iterator[None]:
    """Lets every call pass without counting, in the whole process or for these applications and limiters only.

    ``limited``: a Limiter, AsyncLimiter, RuleLimiter, AsyncRuleLimiter or AdaptiveLimiter; a FastAPI or Flask
    application; a RateLimitMiddleware; what rate_limits(app) returns.

    >>> limiter = Limiter("1/hour")
    >>> with limits_off():
    ...     [limiter.take("ann").allowed for _ in range(3)]
    [True, True, True]
    >>> limiter.take("ann").allowed, limiter.take("ann").allowed
    (True, False)
    """
    owners = [_limiter_of(each) for each in limited] or list(_REPLACED_METHODS)
    with ExitStack() as stack:
        for owner in owners:
            for name, function in _methods_of(owner).items():
                method = function if isinstance(owner, type) else MethodType(function, owner)
                stack.enter_context(_replaced(owner, name, method))
        yield


def _limiter_of(limited: Any) -> Any:
    """Returns the limiter itself, or that of an application."""
    state, extensions = getattr(limited, "state", None), getattr(limited, "extensions", None)
    for each in (
        limited,
        getattr(limited, "limits", None),
        getattr(state, "headgate", None),
        getattr(extensions.get("headgate"), "limits", None) if isinstance(extensions, Mapping) else None,
    ):
        if isinstance(each, tuple(_REPLACED_METHODS)):
            return each
    raise InvalidSetting(
        "Limits are switched off for a limiter, or for an application that has limits: app of FastAPI or Flask, "
        f"RateLimitMiddleware, what rate_limits(app) returns; not for {describe(limited)}."
    )


def _methods_of(owner: Any) -> dict[str, Callable[..., Any]]:
    kind = owner if isinstance(owner, type) else type(owner)
    return next(methods for limited, methods in _REPLACED_METHODS.items() if issubclass(kind, limited))


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner).get(name, _NOT_SET)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _NOT_SET:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _engines(limiter: Limiter | AsyncLimiter) -> tuple[MemoryEngine, Any]:
    """Returns an empty in-memory engine, and the same as this limiter calls it: awaited or not."""
    engine = MemoryEngine(limiter.clock)
    return engine, AsyncMemoryEngine(engine) if isinstance(limiter, AsyncLimiter) else engine


def _pass(limiter: Any, batch: ChargeBatch[Any], patience_us: int | None = None) -> Decision:
    """Decides charges that always pass: as calls of a key that was never seen."""
    engine, port = _engines(limiter)
    passed = ChargeBatch([(port.meter(meter.limit, meter.name), key, cost) for meter, key, cost in batch._charges])
    return passed.decision(
        [engine.meter(meter.limit, meter.name).decide(key, 0) for meter, key, _ in passed.distinct]
    )


def _take(limiter: Any, key: str, cost: int = 1) -> Decision:
    return _pass(limiter, limiter._limits.charge_each(key, cost))


def _peek(limiter: Any, key: str) -> Decision:
    if not limiter.holds_slots:
        return _take(limiter, key, 0)
    meter, slots = _slots(limiter, key)
    return Decision(slots.free(key), meter, key, 0)


def _acquire(limiter: Any, key: str, timeout: float = 0) -> tuple[Any, str, Decision]:
    meter, slots = _slots(limiter, key)
    return meter, key, Decision(slots.acquire(key)[0], meter, key, 1)


def _slots(limiter: Any, key: str) -> tuple[Any, Any]:
    limit: Slots = limiter._limits.slot_meter(key).limit
    engine, port = _engines(limiter)
    return port.slots(limit, "off"), engine.slots(limit, "off")


def _acquire_lease(limiter: Limiter, key: str, timeout: float = 0) -> Lease:
    return Lease(*_acquire(limiter, key))


async def _acquire_async_lease(limiter: AsyncLimiter, key: str, timeout: float = 0) -> AsyncLease:
    return AsyncLease(*_acquire(limiter, key))


def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return awaited


def _plan_call(limiter: Any, attributes: object, cost: object = None) -> CallPlan:
    return CallPlan(limiter.compiled_rulebook)


def _decide_plan(limiter: Any, plan: CallPlan, response_follows: bool = False) -> RuleDecision:
    return CallPlan(limiter.compiled_rulebook).decision(())


def _reserve_plan(limiter: Any, plan: CallPlan, timeout: float | None = None) -> RuleDecision:
    return CallPlan(limiter.compiled_rulebook).decision(())


def _plan_batch(limiter: Any, calls: Sequence[BatchedCall]) -> CallBatch:
    compiled = limiter.compiled_rulebook
    batch = CallBatch(compiled, ())
    batch.plans = [(CallPlan(compiled), []) for _ in calls]
    return batch


def _check_together(limiter: RuleLimiter, calls: Sequence[BatchedCall]) -> tuple[RuleDecision, ...]:
    return _plan_batch(limiter, calls).decisions(())


def _give_back(limiter: Any, call: BatchedCall, units: int) -> RuleDecision:
    return CallPlan(limiter.compiled_rulebook).decision(())


class _OpenGate:
    """Stands for an adaptive limiter that learns nothing of a call."""

    def _leave(self, entered: int, started_ns: int, outcome: int) -> None:
        pass


def _begin_call(limiter: AdaptiveLimiter, *args: object, **kwargs: object) -> AdaptiveCall:
    gate: Any = _OpenGate()
    return AdaptiveCall(gate, 1, 0)


def _decide_request(limits: Any, *args: object) -> Flow[None]:
    yield from ()


def _start_task(limits: Any, *args: object) -> StartTask:
    return StartTask()


def _no_cached_plan(limits: Any, *args: object) -> None:
    return None


_REPLACED_METHODS: dict[type, dict[str, Callable[..., Any]]] = {
    Limiter: {"take": _take, "peek": _peek, "_take_all": _pass, "acquire": _acquire_lease},
    AsyncLimiter: {
        "take": _awaited(_take),
        "peek": _awaited(_peek),
        "_take_all": _awaited(_pass),
        "acquire": _acquire_async_lease,
    },
    RuleLimiter: {
        "plan_call": _plan_call,
        "decide_plan": _decide_plan,
        "reserve_plan": _reserve_plan,
        "check_together": _check_together,
        "give_back": _give_back,
    },
    AsyncRuleLimiter: {
        "plan_call": _plan_call,
        "decide_plan": _awaited(_decide_plan),
        "reserve_plan": _awaited(_reserve_plan),
        "plan_batch": _plan_batch,
        "give_back": _awaited(_give_back),
    },
    AdaptiveLimiter: {"acquire": _begin_call, "_enter": _begin_call},
    RequestFlows: {"_decide": _decide_request, "_cached_plan": _no_cached_plan},
    TaskLimits: {"decide": _start_task},
}
