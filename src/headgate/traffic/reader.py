"""Reads logs into ordered calls, and counts what was read.

Unreadable lines are counted, the first few are kept with their positions, and reading goes on. A log of which
nothing is readable raises InvalidLog.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from itertools import chain, islice

from headgate.errors import InvalidLog
from headgate.traffic.formats.decision_log import RecordParser, call_order
from headgate.traffic.formats.detection import DECISION_LOG, detect_format
from headgate.traffic.formats.extraction import Extraction
from headgate.traffic.formats.field_names import COST, TIME, map_fields, synonyms_of
from headgate.traffic.formats.log_format import LogFormat
from headgate.traffic.formats.timestamps import SECOND_US, TimeParser
from headgate.traffic.log_files import LogFile
from headgate.traffic.log_summary import LogSummary, escape_unprintable
from headgate.traffic.read_ahead import MIN_BYTES, read_ahead
from headgate.traffic.recorded_call import RecordedCall
from headgate.traffic.time_order import BATCH_SIZE, WINDOW_US, TimeOrder, merge_in_order

SAMPLE_LINES = 100
MAX_SHOWN_LINES = 5
MAX_SHOWN_LENGTH = 120


@dataclass(frozen=True)
class ReadOptions:
    """The options of reading logs: what the user says of them, and what is needed of their calls.

    >>> ReadOptions(format="combined", needed={"address"}).zone
    'UTC'
    """

    format: str | None = None  # combined, common, envoy, or a format string of nginx or Apache
    pattern: str | None = None  # a regular expression with named groups
    fields: Mapping[str, str] = field(default_factory=dict)  # the field of an attribute, by name or number
    zone: str = "UTC"  # of times without one
    year: int | None = None  # of times without one; None: of the file
    window_us: int = WINDOW_US
    needed: Collection[str] | None = None  # attributes; None: all

    def timezone(self) -> tzinfo:
        """Returns the zone; raises InvalidLog if there is none of that name.

        >>> str(ReadOptions(zone="Europe/Berlin").timezone())
        'Europe/Berlin'
        """
        if self.zone == "UTC":
            return UTC
        from zoneinfo import ZoneInfo

        try:
            return ZoneInfo(self.zone)
        except (KeyError, OSError, ValueError):
            raise InvalidLog(
                f'"{self.zone}" is no time zone: write a name such as Europe/Berlin, or UTC.'
            ) from None


class LogReader:
    """Reads logs once, and gives their calls in the order of time.

    >>> reader = LogReader(["access.log"])
    >>> [call.attributes["path"] for call in reader.calls()][:2]
    ['/page/0', '/page/1']
    >>> reader.summaries[0].line()
    'combined log, 60 lines, 59 s, 0 unreadable'
    """

    def __init__(
        self,
        paths: Sequence[str],
        options: ReadOptions | None = None,
        on_progress: Callable[[float | None], None] | None = None,
    ) -> None:
        self.options: ReadOptions = options or ReadOptions()
        self._files: list[LogFile] = []
        try:
            for path in paths:
                self._files.append(LogFile(path))
        except InvalidLog:
            self.close()
            raise
        self.summaries: list[LogSummary] = []
        self._on_progress = on_progress
        self._progress: float | None = None

    def batches(self, ahead: bool = False) -> Iterator[list[RecordedCall]]:
        """Yields the calls of all logs in order, in lists.

        `ahead` reads large logs in a second process. It helps if work on a call takes longer than reading it.

        >>> [len(batch) for batch in LogReader(["access.log"]).batches()]
        [60]
        """
        try:
            logs = [_OneLog(file, self.options, self._report) for file in self._files]
            self.summaries = [log.summary for log in logs]
            if ahead and sum(file.size or 0 for file in self._files) >= MIN_BYTES:
                yield from self._read_ahead(logs)
            else:
                yield from merge_in_order(log.batches() for log in logs)
        finally:
            self.close()

    def _read_ahead(self, logs: Sequence[_OneLog]) -> Iterator[list[RecordedCall]]:
        """Yields the calls of large logs, which a second process reads."""
        on_progress, self._on_progress = self._on_progress, self._keep_progress

        def status() -> tuple[list[LogSummary], float | None]:
            return self.summaries, self._progress

        def on_status(received: tuple[list[LogSummary], float | None]) -> None:
            self.summaries = received[0]
            if on_progress is not None:
                on_progress(received[1])

        yield from read_ahead(lambda: merge_in_order(log.batches() for log in logs), status, on_status)

    def _keep_progress(self, share: float | None) -> None:
        self._progress = share

    def close(self) -> None:
        """Closes the files; reading them to the end does so, too.

        >>> LogReader(["access.log"]).close()
        """
        for file in self._files:
            file.close()

    def calls(self) -> Iterator[RecordedCall]:
        """Yields the calls of all logs in order.

        >>> next(LogReader(["access.log"]).calls()).status
        200
        """
        for batch in self.batches():
            yield from batch

    def _report(self) -> None:
        if self._on_progress is not None:
            sizes = [file.size for file in self._files]
            total = None if None in sizes else sum(size or 0 for size in sizes)
            self._on_progress(sum(file.position for file in self._files) / total if total else None)


class _OneLog:
    """Reads one log."""

    def __init__(self, file: LogFile, options: ReadOptions, report: Callable[[], None]) -> None:
        self._file, self._options, self._report = file, options, report
        lines = iter(file)
        sample = list(islice(lines, SAMPLE_LINES))
        if sample:
            sample[0] = sample[0].removeprefix("\ufeff")  # a mark that some editors write
        text_sample = [line for line in sample if line.strip()]
        if not text_sample:
            raise InvalidLog(f"{file.name} is empty.")
        self._format = detect_format(file.name, text_sample, options.fields, options.format, options.pattern)
        self._lines = chain(sample, lines)
        written_s = time.time() if file.written_s is None else file.written_s
        year = datetime.fromtimestamp(written_s, UTC).year if options.year is None else options.year
        written_us = round(written_s * SECOND_US) if options.year is None else None
        self._times = TimeParser(options.timezone(), year, written_us)
        self.summary = LogSummary(file.name, self._format.title)
        self._records: RecordParser | None = None
        self._first_error = ""
        self._parse = self._line_parser(self._format)

    def _line_parser(self, log_format: LogFormat) -> Callable[[str, int], RecordedCall | None]:
        if log_format is DECISION_LOG:
            self._records = RecordParser()
            return self._records
        indexes = map_fields(log_format.names, self._options.fields)
        if TIME not in indexes:
            raise InvalidLog(
                f"{self._file.name}: {log_format.title} without a field that is a time. The fields are "
                f"{', '.join(log_format.names)}; looked for: {synonyms_of(TIME)}. Give --field time=FIELD."
            )
        self.summary.attributes = tuple(indexes)
        extract = Extraction(
            indexes,
            log_format.names,
            self._options.needed,
            self._times,
            log_format.duration_unit_us,
            indexes[COST] if COST in self._options.fields else None,  # only if the user says so
        ).compile()
        split, selects = log_format.split, log_format.selects

        def parse(line: str, number: int) -> RecordedCall | None:
            values = split(line)
            if values is None:
                if selects:
                    return None
                raise ValueError("the format does not fit it")
            return extract(values, number)

        return parse

    def batches(self) -> Iterator[list[RecordedCall]]:
        order = TimeOrder(self._options.window_us, None if self._records is None else call_order)
        number = 0
        if self._format.has_header:
            next(self._lines)
            number = 1
        summary, lines = self.summary, self._lines
        while raw := list(islice(lines, BATCH_SIZE)):
            batch = self._parse_lines(raw, number)
            number += len(raw)
            self._report()
            if batch:
                summary.calls += len(batch)
                if released := order.add(batch):
                    yield released
        if not summary.calls:
            raise InvalidLog(self._nothing_read())
        released = order.finish()
        summary.disordered, summary.late = order.disordered, order.late
        self._note_assumptions()
        yield released

    def _parse_lines(self, raw: list[str], before: int) -> list[RecordedCall]:
        batch: list[RecordedCall] = []
        append, parse, summary = batch.append, self._parse, self.summary
        for number, line in enumerate(raw, before + 1):
            try:
                call = parse(line, number)
            except (ValueError, IndexError) as error:
                if isinstance(error, InvalidLog):
                    raise
                self._unreadable(number, line, error)
                continue
            if call is not None:
                append(call)
            else:
                summary.skipped += 1
        if batch:
            times = [call[0] for call in batch]
            first_us, last_us = min(times), max(times)
            summary.first_us = first_us if summary.first_us is None else min(first_us, summary.first_us)
            summary.last_us = last_us if summary.last_us is None else max(last_us, summary.last_us)
        summary.lines += len(raw)
        return batch

    def _unreadable(self, number: int, line: str, error: Exception) -> None:
        if not line.strip():
            self.summary.lines -= 1  # a blank line is no line of the log
            return
        self.summary.unreadable += 1
        if len(self.summary.shown) < MAX_SHOWN_LINES:
            self.summary.shown.append((number, escape_unprintable(line.strip()[:MAX_SHOWN_LENGTH])))
            self._first_error = self._first_error or str(error)

    def _note_assumptions(self) -> None:
        if self._records is not None:
            self.summary.skipped = 0
            self.summary.notes += self._records.notes()
        if self._times.assumed_year and self._options.year is None:
            self.summary.notes.append(f"the times have no year: the last is read as {self._times.year}")
        if self._times.assumed_zone and self._options.zone == "UTC":
            self.summary.notes.append("the times have no zone: they are read as UTC")

    def _nothing_read(self) -> str:
        summary = self.summary
        if summary.skipped:
            return f"{summary.name}: the pattern is found in none of {summary.lines:,} lines."
        if not summary.lines:
            return f"{summary.name} names its columns, and has no calls."
        first = (
            f" Line {summary.shown[0][0]}: {self._first_error}. It is: {summary.shown[0][1]}"
            if summary.shown
            else ""
        )
        return f"{summary.name}: none of {summary.lines:,} lines could be read as {summary.title}.{first}"
