"""Names that Prometheus and OpenTelemetry metrics share: outcomes, layers, sampling."""

from __future__ import annotations

from typing import Final

from headgate.algorithms.decision import DELAY_US, Decision
from headgate.algorithms.limit import SECOND
from headgate.enforcement.rule_decision import RuleDecision

SAMPLE_EVERY: Final = 16  # decisions, of which one is timed

# Fields of DecisionCounts: verdicts that exclude each other, and the layers that decided.
OUTCOMES: Final = (
    *("allowed", "refused", "shed"),
    *("shadow_allowed", "shadow_refused", "candidate_allowed", "candidate_refused"),
)
LAYERS: Final = ("engine", "denial_cache", "prefetch", "fallback")


def delay_seconds(decision: Decision) -> float:
    """Returns the delay of a call that passes; of a rulebook's decision it is computed only if there is one."""
    if not isinstance(decision, RuleDecision):
        return decision.outcome[DELAY_US] / SECOND
    has_delay = any(outcome is not None and outcome[DELAY_US] for outcome in decision.outcomes)
    return decision.delay if has_delay else 0.0
