"""Options of commands that read logs: the files, and what the user says of their format."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path

from headgate.algorithms.limit import SECOND
from headgate.cli.command_parser import Misuse, duration_option, name_value, whole_number
from headgate.cli.output import warn
from headgate.cli.progress import Progress
from headgate.gateway import atomic_file
from headgate.traffic.formats.field_names import attribute_name
from headgate.traffic.log_summary import LogSummary
from headgate.traffic.reader import LogReader, ReadOptions


def add_log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", nargs="+", metavar="LOG", help="a log, plain, gzip or zstd; - is standard input")
    parser.add_argument(
        "--format", metavar="FORMAT", help="combined, common, envoy, or a log_format of nginx or Apache"
    )
    parser.add_argument("--pattern", metavar="REGEX", help="lines by a pattern with groups: (?P<address>...)")
    parser.add_argument(
        "--field",
        type=name_value,
        action="append",
        default=[],
        metavar="NAME=FIELD",
        help="the log's field, by name or number, that is the attribute NAME; also time, duration and cost",
    )
    parser.add_argument("--zone", default="UTC", metavar="ZONE", help="of times that have none (UTC unless given)")
    parser.add_argument("--year", type=whole_number(1970), metavar="YEAR", help="of times that have none")
    parser.add_argument(
        "--window",
        type=duration_option,
        default=3600.0,
        metavar="SPAN",
        help="how far lines may be out of order (1h unless given)",
    )
    parser.add_argument("--html", metavar="FILE", help="write a report as a web page that needs no network")


def open_logs(args: argparse.Namespace, needed: Collection[str] | None, progress: Progress) -> LogReader:
    """Returns a reader of the logs that the options name."""
    options = ReadOptions(
        format=args.format,
        pattern=args.pattern,
        fields={attribute_name(name): field for name, field in args.field},
        zone=args.zone,
        year=args.year,
        window_us=round(args.window * SECOND),
        needed=needed,
    )
    options.timezone()
    _check_logs(args.logs)
    return LogReader(args.logs, options, progress)


def summary_lines(reader: LogReader, *, as_json: bool) -> list[str]:
    """Returns what was read, a line for each log; prints remarks as warnings."""
    lines = []
    for summary in reader.summaries:
        name = f"{summary.name}: " if len(reader.summaries) > 1 else ""
        lines.append(f"{name}{summary.line()}")
        for remark in summary.remarks(reader.options.window_us):
            warn(f"{summary.name}: {remark}", as_json=as_json)
    return lines


def log_document(summary: LogSummary) -> dict[str, object]:
    """Returns what was read of a log, as a JSON document."""
    return {
        "name": summary.name,
        "format": summary.title,
        "lines": summary.lines,
        "calls": summary.calls,
        "without_pattern": summary.skipped,
        "unreadable": summary.unreadable,
        "unreadable_lines": [{"line": number, "text": text} for number, text in summary.shown],
        "first": None if summary.first_us is None else summary.first_us / SECOND,
        "last": None if summary.last_us is None else summary.last_us / SECOND,
        "out_of_order": summary.disordered,
        "late": summary.late,
    }


def check_target(path: str | None, logs: Sequence[str]) -> None:
    """Raises Misuse if a file to be written is one of the logs that are read, or has no folder."""
    if path is None:
        return
    if any(log != "-" and Path(log).resolve() == Path(path).resolve() for log in logs):
        raise Misuse(f"{path} is a log that is read: write to another file.")
    if not Path(path).parent.is_dir():
        raise Misuse(f"{path} cannot be written: there is no folder {Path(path).parent}.")


def _check_logs(logs: Sequence[str]) -> None:
    """Raises Misuse if a log is given twice, so that its calls would count twice."""
    resolved = [log if log == "-" else str(Path(log).resolve()) for log in logs]
    for index, log in enumerate(resolved):
        if log in resolved[:index]:
            raise Misuse(f"{'Standard input' if log == '-' else logs[index]} is given twice: give each log once.")


def write_report(path: str | None, page: str) -> list[str]:
    """Writes a report, if one is wanted, completely or not at all; returns the line that says so."""
    if path is None:
        return []
    atomic_file.write(Path(path), page.encode("utf-8", "replace"))
    return [f"wrote {path}"]
