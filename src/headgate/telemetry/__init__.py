"""Reports decisions to those who watch them: logs, counts, metrics.

decision_log      an observer that writes one JSON line for each call
decision_record   the fields of a line
record_queue      a bounded queue, and the thread that empties it
rotating_file     appends lines to a file that several processes write, and rotates it
key_hashing       replaces keys and the attributes in them by hashes
recent_records    a bounded sample of recent records of all processes, in Redis
"""
