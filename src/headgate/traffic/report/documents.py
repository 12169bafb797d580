"""Results of suggest, replay and simulate as JSON documents; times in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.algorithms.limit import SECOND
from headgate.traffic.replay import Replay, RulebookPlayer
from headgate.traffic.replay_counts import DELAYED, PASSED, REFUSED, RuleCounts
from headgate.traffic.shapes import TrafficShape
from headgate.traffic.simulate_shape import SimulatedLimit
from headgate.traffic.suggestion import Refusals, Suggestion

MAX_KEYS = 10


def suggestion_document(suggestion: Suggestion) -> dict[str, Any]:
    """Returns a suggestion as a document."""
    confirmation = suggestion.confirmation
    return {
        "limit": suggestion.limit,
        "rate": str(suggestion.rate),
        "burst": suggestion.burst,
        "needed_burst": suggestion.needed_burst,
        "headroom": suggestion.headroom,
        "calls": suggestion.calls,
        "keys": suggestion.keys,
        "first": suggestion.first_us / SECOND,
        "last": suggestion.last_us / SECOND,
        "sampled": suggestion.sampled,
        "demand_in": "units" if suggestion.has_costs else "calls",
        "demand": [row._asdict() for row in suggestion.demand],
        "frontier": [point._asdict() | {"rate": str(point.rate)} for point in suggestion.frontier],
        "heavy_keys": [each._asdict() for each in suggestion.heavy_keys],
        "day_parts": [part._asdict() for part in suggestion.day_parts],
        "refuse_keys": suggestion.refuse_keys,
        "confirmed": suggestion.confirmed,
        "chosen_again": suggestion.chosen_again,
        "confirmation": _refusals(confirmation.ordinary)
        | {
            "limit": confirmation.limit,
            "largest_key_share": confirmation.ordinary.largest_key_share,
            "new_heavy_keys": confirmation.new_heavy_keys,
            "enough_keys": confirmation.enough,
            "attempts": confirmation.attempts,
        },
        "expected": _refusals(suggestion.expected),
    }


def _refusals(refusals: Refusals) -> dict[str, Any]:
    return refusals._asdict() | {"key_share": refusals.key_share}


def replay_document(replay: Replay) -> dict[str, Any]:
    """Returns a replay as a document."""
    document: dict[str, Any] = {
        "calls": replay.calls,
        "first": replay.first_us / SECOND,
        "last": replay.last_us / SECOND,
        "new": player_document(replay.new),
    }
    if replay.old is not None:
        differences = replay.differences
        document |= {
            "old": player_document(replay.old),
            "differences": {
                "newly_refused": differences.newly_refused,
                "newly_passed": differences.newly_passed,
                "keys_newly_refused": len(differences.keys_newly_refused),
                "keys_newly_passed": len(differences.keys_newly_passed),
                "calls": [
                    {
                        "time": call.time_us / SECOND,
                        "line": call.line,
                        "key": call.key,
                        "old": "refused" if call.passed else "passed",
                        "new": "passed" if call.passed else "refused",
                        "rule": call.rule,
                    }
                    for call in differences.calls
                ],
            },
        }
    if replay.recorded.calls:
        recorded = replay.recorded
        document["recorded"] = {
            "calls": recorded.calls,
            "same": recorded.same,
            "groups": recorded.groups,
            "same_groups": recorded.same_groups,
            "versions": sorted(recorded.versions),
        }
    return document


def simulation_document(shape: TrafficShape, limits: Sequence[SimulatedLimit]) -> dict[str, Any]:
    """Returns a simulation as a document."""
    return {
        "shape": shape.name,
        "rate": shape.rate,
        "seconds": shape.seconds,
        "clients": shape.clients,
        "seed": shape.seed,
        "retries": shape.policy,
        "limits": [
            {
                "limit": limit.name,
                "calls": limit.calls,
                "offered": limit.offered,
                "passed": limit.passed,
                "delayed": limit.delayed,
                "refused": limit.refused,
                "given_up": limit.given_up,
                "max_offered_per_second": limit.peak_offered,
                "max_passed_per_second": limit.peak_passed,
                "wait_p50": limit.wait_s(0.5),
                "wait_p99": limit.wait_s(0.99),
            }
            for limit in limits
        ],
    }


def player_document(player: RulebookPlayer) -> dict[str, Any]:
    """Returns the counts of one rulebook."""
    answers, timeline = player.answers, player.timeline
    return {
        "offered": sum(answers),
        "passed": answers[PASSED] + answers[DELAYED],
        "delayed": answers[DELAYED],
        "refused": answers[REFUSED],
        "keys_refused": sum(
            counts.keys.refused_keys for counts in player.counts.values() if counts.shadow_kind is None
        ),
        "without_duration": player.without_duration,
        "peaks": {
            "second": timeline.peak_second,
            "second_at": timeline.peak_second_at_us / SECOND,
            "minute": timeline.peak_minute,
            "minute_at": timeline.peak_minute_at_us / SECOND,
            "passed_second": timeline.passed_peak_second,
            "passed_minute": timeline.passed_peak_minute,
        },
        "rules": [_rule(counts) for counts in player.counts.values()],
    }


def _rule(counts: RuleCounts) -> dict[str, Any]:
    return {
        "rule": counts.rule,
        "kind": counts.shadow_kind or "live",
        "offered": counts.offered,
        "passed": counts.passed,
        "delayed": counts.delayed,
        "refused": counts.refused,
        "keys": counts.keys.keys,
        "keys_sampled": counts.keys.sampled,
        "keys_refused": counts.keys.refused_keys,
        "most_refused": [
            {
                "key": each.key,
                "refused": each.refused,
                "offered": each.offered,
                "first": each.first_us / SECOND,
                "last": each.last_us / SECOND,
            }
            for each in counts.keys.most_refused(MAX_KEYS)
        ],
    }
