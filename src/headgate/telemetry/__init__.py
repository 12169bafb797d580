"""Telemetry: reports what limiters decide. It observes decisions (headgate.observer) and never makes one.

    counts            Counts, an observer: calls by rule and verdict, per second and per minute
    decision_counts   DecisionCounts, the counts of one rule in a span of time
    time_rings        the rings of seconds and minutes behind Counts
    decision_log      an observer that writes one JSON line for each call
    decision_record   the fields of a line
    record_queue      a bounded queue, and the thread that empties it
    rotating_file     appends lines to a file that several processes write, and rotates it
    key_hashing       replaces keys and the attributes in them by hashes
    recent_records    a bounded sample of recent records of all processes, in Redis

How to read counts (Prometheus, `headgate top`, the admin API and dashboards do it like this):

    counts.totals()                  {rule: DecisionCounts} since the process started: for Prometheus counters
    counts.last(seconds=60)          {rule: DecisionCounts} of the last seconds (at most 120) or minutes= (1500)
    counts.series(rule, seconds=60)  [DecisionCounts] of each second or minute, the oldest first

Two names are no rules: NO_RULE ("") has calls that no rule applied to, and errors; OTHER_RULES ("*other*") has the
rules beyond Counts(max_rules=256).
"""
