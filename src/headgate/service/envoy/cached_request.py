"""A fast path for requests that come again: their charges are bound to the engine, their responses half encoded.

A gateway sends the same bytes for each call of a client. What they charge follows from them and the rulebook,
so it is worked out once (request_cache.py says for which requests, and for how long). On memory no coroutine is
made, and no decision where only counts are reported (telemetry/fast_pass_reports.py). Gain: a repeated request on
memory takes a quarter of the CPU time of one that is parsed.

Only requests that are one request to the engine are cached. If each descriptor matches at most one limit, and all
pass, the response is put together by fast_response.py; all others are encoded by response.py.

Law (tests/service/test_request_cache.py): a repeated request gets the same response as without the cache, and
observers get the same reports.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headgate.algorithms.decision import Outcome
from headgate.enforcement.check_together import CallBatch
from headgate.engines import bound_charges
from headgate.engines.port import AsyncEngine
from headgate.observer import ObservedDecision, Observers
from headgate.service.envoy.fast_response import charge_templates, encode_outcomes
from headgate.service.envoy.request import DescriptorCheck
from headgate.service.envoy.response import ResponseFormat, make_response
from headgate.telemetry.fast_pass_reports import CountPasses


class CachedRequest:
    """A request whose charges are bound."""

    __slots__ = (
        "_batch",
        "_charges",
        "_checks",
        "_count_passes",
        "_decide_now",
        "_format",
        "_templates",
        "decide",
    )

    def __init__(
        self,
        engine: AsyncEngine,
        response_format: ResponseFormat,
        checks: Sequence[DescriptorCheck],
        batch: CallBatch,
        count_passes: CountPasses | None,
    ) -> None:
        self._format, self._checks, self._batch = response_format, checks, batch
        self._charges = batch.joint_plan.charges
        self._templates = charge_templates(response_format, checks, batch)
        self._count_passes = None if self._templates is None or None in self._templates else count_passes
        self.decide: Callable[[], Awaitable[Any]] = bound_charges.bind(engine, self._charges)
        self._decide_now = bound_charges.bind_now(engine, self._charges)

    def answer_at_once(self, observers: Observers | None) -> bytes | None:
        """Decides, reports and encodes without waiting; None if the engine may have to wait."""
        if self._decide_now is None:
            return None
        if observers is None:
            return self.answer(None, self._decide_now())
        with ObservedDecision(observers) as observed:
            return self.answer(observed, self._decide_now())

    def answer(self, observed: ObservedDecision | None, result: Any) -> bytes:
        """Reports and encodes what `decide` returned."""
        outcomes: Sequence[Outcome] = result if result.__class__ is list else (result,)
        if observed is not None:
            count_passes = self._count_passes
            if count_passes is None or observed.is_drawn or not count_passes(self._charges, outcomes):
                self._batch.report(observed, self._batch.decisions(outcomes))
        if self._templates is not None and (encoded := encode_outcomes(self._templates, outcomes)) is not None:
            return encoded
        decisions = self._batch.decisions(outcomes)
        response: bytes = make_response(self._format, self._checks, decisions).SerializeToString()
        return response
