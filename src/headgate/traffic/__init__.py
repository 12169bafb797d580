"""Recorded traffic: reads logs, suggests limits from them, and replays them through rulebooks.

    reader               reads logs into ordered calls; recorded_call is one of them, log_summary what was read
    log_files            opens files, gzip, zstd and standard input
    formats              how lines become calls
    read_ahead           reads in a second process, while this one works on the calls
    time_order           puts calls in order within a window
    call_table           the calls of a log by key, in a few bytes each
    demand               how much keys call
    rate_burst_frontier  for each rate, the smallest burst that refuses nobody
    heavy_keys           the few keys far above all others, and what they look like
    suggestion           chooses a limit, and confirms it
    refusal_grid         counts whom the limits near the frontier would refuse
    suggested_rulebook   writes it as a rulebook in shadow mode
    where_condition      the condition of --where
    suggest_and_replay   suggests from log files, and replays them, in one call each
    replay               plays calls through rulebooks; replay_counts, key_counts, recorded_answers count
    unmatched_rules      finds rules that applied to no call
    hashed_attributes    checks whether a log with hashed keys can be replayed
    decision_log_keys    counts the calls of each rule by key in decision logs
    shapes               when simulated clients call
    simulate_shape       runs a shape of traffic through a limit
    run_in_parallel      runs two computations at once
    report               JSON documents and web pages

It decides nothing itself: a replay runs the real limiter on a clock that follows the log.
"""

from headgate.traffic.log_summary import LogSummary
from headgate.traffic.reader import LogReader, ReadOptions
from headgate.traffic.recorded_call import RecordedCall
from headgate.traffic.replay import Replay, enforced, replay_calls
from headgate.traffic.shapes import TrafficShape
from headgate.traffic.simulate_shape import SimulatedLimit, limit_rulebook, simulate
from headgate.traffic.suggest_and_replay import replay_logs, suggest_from_logs
from headgate.traffic.suggestion import Suggestion

__all__ = [
    "enforced",
    "limit_rulebook",
    "LogReader",
    "LogSummary",
    "ReadOptions",
    "RecordedCall",
    "Replay",
    "replay_calls",
    "replay_logs",
    "simulate",
    "SimulatedLimit",
    "suggest_from_logs",
    "Suggestion",
    "TrafficShape",
]
