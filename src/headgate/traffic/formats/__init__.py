"""Formats of logs: how lines become recorded calls.

log_format        splits lines by expressions: combined, common, Envoy
format_strings    nginx's log_format and Apache's LogFormat
json_lines        JSON lines, also Envoy's
delimited         CSV and TSV
line_pattern      a pattern of the user, as for syslog
decision_log      headgate's own records
detection         finds the format of a log
field_names       the names of fields in logs, and the attributes that they are
timestamps        times with zones, epochs, times without a year
extraction        makes calls of fields
"""
