"""Netflix's concurrency limits are the algorithms of headgate.adaptive.

They compute a limit from samples: there is no time, no key and no engine, so every engine compares the same.
"""

from collections.abc import Iterator
from typing import Any

from headgate.adaptive.aimd import Aimd
from headgate.adaptive.gradient2 import Gradient2
from headgate.adaptive.vegas import Vegas
from headgate.adaptive.window import Window
from tests.recorded.driven_engines import ReplayEngine
from tests.recorded.step_result import StepResult, compared_step, equal_fact
from tests.recorded.vectors import RecordedFields, UnreadableVector, VectorCase


def replay(case: VectorCase, engine: ReplayEngine) -> Iterator[StepResult]:
    algorithm = _algorithm(case.config)
    state: Any = algorithm.start()
    for step in case.steps:
        window = Window(0, step.whole("rtt_ns"), step.whole("inflight"), int(step.flag("did_drop")))
        limit, state, _ = algorithm.update(state, window)
        facts = [equal_fact("limit", step.expect.whole("limit"), limit)]
        if "estimated" in step.expect:
            facts.append(equal_fact("estimated", float(step.expect.number("estimated")), state.estimate))
        yield compared_step(*facts)


def _algorithm(config: RecordedFields) -> Any:
    match config.text("algo"):
        case "aimd":
            return Aimd(
                initial=config.whole("initial"),
                floor=config.whole("min"),
                ceiling=config.whole("max"),
                backoff=float(config.number("backoff_ratio")),
                timeout=float(config.number("timeout_ms")) / 1000,
            )
        case "vegas":
            return Vegas(
                initial=config.whole("initial"),
                ceiling=config.whole("max"),
                smoothing=float(config.number("smoothing")),
                alpha=_queue_length(config, "alpha"),
                beta=_queue_length(config, "beta"),
                probe=0,
            )
        case "gradient2":
            return Gradient2(
                initial=config.whole("initial"),
                floor=config.whole("min"),
                ceiling=config.whole("max"),
                smoothing=float(config.number("smoothing")),
                tolerance=float(config.number("rtt_tolerance")),
                long_window=config.whole("long_window"),
                warmup=config.whole("warmup"),
                queue=config.whole("queue_size"),
            )
        case name:
            raise UnreadableVector(f"{config.what} is of the unknown algorithm {name!r}.")


def _queue_length(config: RecordedFields, name: str) -> int | None:
    """A fixed length, or None where it follows log10 of the limit."""
    return None if isinstance(config.raw.get(name), str) else config.whole(name)
