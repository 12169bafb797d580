"""Reading in a second process gives the same calls, summaries and errors as reading in this one."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.errors import InvalidLog
from headgate.rules.attributes import Attributes
from headgate.traffic import reader as reader_module
from headgate.traffic.read_ahead import read_ahead
from headgate.traffic.reader import LogReader
from headgate.traffic.recorded_call import RecordedCall
from headgate.traffic.run_in_parallel import can_fork
from tests.traffic.sample_logs import combined_line, combined_log, visits


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of any size are read in a second process."""
    monkeypatch.setattr(reader_module, "MIN_BYTES", 0)


def call(number: int, **attributes: str) -> RecordedCall:
    return RecordedCall(number * 1_000_000, Attributes(attributes), 200, None, None, number)


def test_same_calls_and_summaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = combined_log(tmp_path / "log", visits(300))
    log.write_text(f"{log.read_text()}no line\n{combined_line(3, '192.0.2.9')}\n")
    here = LogReader([str(log), str(log)])
    calls = list(here.calls())
    monkeypatch.setattr(reader_module, "MIN_BYTES", 0)
    shares: list[float | None] = []
    there = LogReader([str(log), str(log)], on_progress=shares.append)
    assert [call for batch in there.batches(ahead=True) for call in batch] == calls
    assert there.summaries == here.summaries
    assert there.summaries[0].unreadable == 1
    assert shares[-1] == 1


def test_errors_and_what_was_read_until_then(tmp_path: Path, ahead: None) -> None:
    log = tmp_path / "log"
    log.write_text(f"{combined_line(0, '192.0.2.9')}\n" * 20_000)
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(log.read_bytes())[:-50])
    reader = LogReader([str(cut)])
    with pytest.raises(InvalidLog, match=r"cannot be read to its end: Compressed file ended"):
        list(reader.batches(ahead=True))
    assert reader.summaries[0].lines > 0


def test_attributes_beyond_the_table() -> None:
    calls = [call(number, address=f"10.0.{number % 30_000 // 250}.{number % 250}") for number in range(70_000)]
    batches = [calls[begin : begin + 4096] for begin in range(0, len(calls), 4096)]
    received = list(read_ahead(lambda: batches, lambda: None, lambda status: None))
    assert received == batches
    assert type(received[0][0]) is RecordedCall
    assert type(received[0][0].attributes) is Attributes


def test_values_of_every_kind() -> None:
    batch = [
        RecordedCall(-5, Attributes(), None, 7, 0, 1 << 40),
        RecordedCall(1 << 60, Attributes(path="/\udcff", user="ü"), 999, None, 1 << 70, 0),
    ]
    assert list(read_ahead(lambda: [batch], lambda: None, lambda status: None)) == [batch]


def test_a_child_that_is_killed_is_an_error() -> None:
    parent = os.getpid()

    def batches() -> Iterator[list[RecordedCall]]:
        yield [call(1)]
        if os.getpid() != parent:
            os.kill(os.getpid(), 9)
        yield [call(2)]

    reading = read_ahead(batches, lambda: None, lambda status: None)
    assert next(reading) == [call(1)]
    if can_fork():
        with pytest.raises(InvalidLog, match="was killed \\(signal 9\\)"):
            next(reading)
    else:
        assert list(reading) == [[call(2)]]


def test_a_reader_that_stops_early_leaves_no_child() -> None:
    readers: list[int] = []
    reading = read_ahead(lambda: ([call(number)] for number in range(10**6)), os.getpid, readers.append)
    next(reading)
    reading.close()
    if readers[0] != os.getpid():
        with pytest.raises(ChildProcessError):
            os.waitpid(readers[0], os.WNOHANG)
