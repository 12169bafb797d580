"""Chaos tests: break real servers under load, and measure what callers saw.

    make chaos                  every fault, a row for each; about seven minutes
    make chaos FAULT=kill       one of them

A fault is a story (single_server_faults.py, failover_faults.py): start servers, put a load on them, break
something, mend it. The load (run_load.py, caller_process.py) is several processes that call for twice what the
limits admit and record every call. From these records metrics.py computes what callers saw; thresholds.py says
whether it is good enough; result_table.py prints it. resource_leaks.py cuts the connection a hundred times and
counts what is left behind.
"""
