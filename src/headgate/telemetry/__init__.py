"""Telemetry: reports what limiters decide. It observes decisions (headgate.observer) and never makes one.

    counts           Counts, an observer: calls by rule and verdict, per second and minute; hot and distinct keys
    counted_rule     the counts of one rule inside Counts
    decision_counts  DecisionCounts, the numbers of one rule in a span of time
    time_rings       the rings of seconds and minutes
    key_estimates    which keys are hot, distinct, most refused: one rule's
    hot_keys         Space-Saving over slices of ten seconds; masking of keys
    distinct_keys    HyperLogLog
    counts_writer    the thread that adds the counts of this process to those of all, in Redis
    shared_layout    the layout there, which nginx writes too (docs/reference/storage.md)
    shared_counts    SharedCounts, which reads the counts of all processes and gateways
    fast_pass_reports  counts calls that passed without a decision
    decision_log     DecisionLog, an observer that writes one JSON line for each call
    decision_record  the fields of a line
    single_verdict_line  the line of a call that one limit decided, without a record
    record_queue     a bounded queue, and the thread that empties it
    rotating_file    appends lines to a file that several processes write, and rotates it
    key_hashing      replaces keys and the attributes in them by hashes
    recent_limit_changes  recent changes of adaptive limits, with their reasons
    recent_records   a bounded sample of recent records of all processes, in Redis
    memory_records   the same in this process, for a service that counts in memory
    prometheus       PrometheusMetrics, an observer for prometheus_client
    multiprocess_files  reserves room for the files of prometheus_client's multiprocess mode
    opentelemetry    OpenTelemetry, an observer for its API: metrics, and attributes of spans
    metric_names     what both kinds of metrics have in common

How to read counts (Prometheus, `headgate top`, the admin API and dashboards do it like this). Counts and
SharedCounts(url) have the same methods, except totals (Counts), and rules, writers and
degraded_writers (SharedCounts):

    totals()                         {rule: DecisionCounts} since the process started: for Prometheus counters
    last(seconds=60)                 {rule: DecisionCounts} of the last seconds (at most 120) or minutes= (1500)
    series(rule, seconds=60)         [DecisionCounts] of each second or minute, the oldest first
    all_series(seconds=60)           {rule: the same} of all rules
    hot_keys(rule, kind, number)     [HotKey(key, calls)] of the last minute; kinds in key_estimates.HOT_KINDS
    distinct_keys(rule, kind, hours) about how many different keys; kinds in key_estimates.DISTINCT_KINDS
    most_refused(rule, kind, hours)  [HotKey(key, calls)] of the last hours; kinds in key_estimates.REFUSED_KINDS
    rules(), writers()               the names that were counted; the processes that wrote, and how long ago
    degraded_writers(seconds)        [HotKey(process, calls)] of those whose fallback decided lately

DecisionCounts has a field for each count, and as_dict() for documents. Two names are no rules: NO_RULE ("") has
calls that no rule applied to, and errors; OTHER_RULES ("*other*") has the rules beyond Counts(max_rules=256).
SharedCounts asks Redis and blocks: call it in a thread from asyncio.
"""
