"""Reads logs in a second process, ahead of the one that works on their calls.

The child parses lines and puts calls in order; the parent decides or counts them meanwhile, on another core. Calls
cross the pipe in frames, one for each batch: their times, lines and so on as columns, and their attributes as
numbers of a table that both sides keep, because calls of one client often have the same ones.
"""

from __future__ import annotations

import marshal
import os
import pickle
import struct
from array import array
from collections.abc import Callable, Generator, Iterable
from itertools import repeat
from typing import Any, BinaryIO, TypeVar

from headgate.errors import InvalidLog
from headgate.rules.attributes import Attributes
from headgate.traffic.recorded_call import RecordedCall
from headgate.traffic.run_in_parallel import can_fork

MIN_BYTES = 8_000_000  # of logs, below which a second process is not worth its start
MAX_TABLE = 20_000  # attributes that both sides keep

Status = TypeVar("Status")
_length = struct.Struct("<IB")
_CALLS, _STATUS, _ERROR, _END = range(4)
_new_call = tuple.__new__


def read_ahead(
    batches: Callable[[], Iterable[list[RecordedCall]]],
    status: Callable[[], Status],
    on_status: Callable[[Status], None],
) -> Generator[list[RecordedCall], None, None]:
    """Yields batches that a child makes; `status` is called there after each batch, `on_status` here before it.

    An error of the child is raised here. Where a process cannot fork, the batches are made here.
    """
    if not can_fork():
        for batch in batches():
            on_status(status())
            yield batch
        on_status(status())
        return
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        os.close(receiving)
        _run_child(sending, batches, status)
    os.close(sending)
    ended = False
    try:
        with open(receiving, "rb", buffering=1 << 16) as pipe:
            ended = yield from _receive(pipe, on_status)
    finally:
        _, code = os.waitpid(child, 0)  # if this side stops early, the child fails at its next write
    if not ended:
        raise InvalidLog(
            f"The process that reads the logs was killed (signal {os.WTERMSIG(code)}): is there enough memory?"
            if os.WIFSIGNALED(code)
            else "The process that reads the logs ended before the logs did."
        )


def _receive(pipe: BinaryIO, on_status: Callable[[Any], None]) -> Generator[list[RecordedCall], None, bool]:
    """Yields the batches of all frames; returns whether the child came to its end."""
    table: list[Attributes] = []
    while head := pipe.read(_length.size):
        if len(head) < _length.size:
            return False
        size, kind = _length.unpack(head)
        data = pipe.read(size)
        if len(data) < size:
            return False
        if kind == _STATUS:
            on_status(pickle.loads(data))
        elif kind == _CALLS:
            yield _unpack(data, table)
        elif kind == _ERROR:
            raise pickle.loads(data)
        else:
            return True
    return False


def _run_child(
    sending: int, batches: Callable[[], Iterable[list[RecordedCall]]], status: Callable[[], object]
) -> None:
    """Sends all batches, and ends the process without any of the parent's cleanups."""
    code = 1
    try:
        with open(sending, "wb", buffering=0) as pipe:
            try:
                packer = _Packer()
                for batch in batches():
                    _send(pipe, _STATUS, pickle.dumps(status()))
                    _send(pipe, _CALLS, packer.pack(batch))
                _send(pipe, _STATUS, pickle.dumps(status()))
                _send(pipe, _END, b"")
            except Exception as error:
                _send(pipe, _STATUS, pickle.dumps(status()))
                _send(pipe, _ERROR, pickle.dumps(error))
        code = 0
    finally:
        os._exit(code)


def _send(pipe: Any, kind: int, data: bytes) -> None:
    view = memoryview(_length.pack(len(data), kind) + data)
    while view:
        view = view[pipe.write(view) :]


class _Packer:
    """Packs batches for the pipe, and numbers the attributes of calls."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[tuple[str, str], ...], int] = {}

    def pack(self, batch: list[RecordedCall]) -> bytes:
        times_us, attributes, statuses, durations, costs, lines, records = zip(*batch, strict=True)
        reset = len(self._numbers) > MAX_TABLE
        if reset:
            self._numbers.clear()
        numbers, indexes = self._numbers, array("I")
        added: list[dict[str, str]] = []
        for each in attributes:
            items = tuple(each.items())
            number = numbers.get(items)
            if number is None:
                number = numbers[items] = len(numbers)
                added.append(dict(items))
            indexes.append(number)
        columns = [_column(column) for column in (statuses, durations, costs, records)]
        fields = array("q", times_us).tobytes(), array("q", lines).tobytes(), indexes.tobytes()
        return marshal.dumps((reset, added, *fields, *columns[:3], pickle.dumps(columns[3])))


def _column(values: tuple[Any, ...]) -> Any:
    """Returns the values, or None if all are None."""
    return None if values.count(None) == len(values) else values


def _unpack(data: bytes, table: list[Attributes]) -> list[RecordedCall]:
    reset, added, times_us, lines, indexes, statuses, durations, costs, records = marshal.loads(data)
    if reset:
        table.clear()
    for items in added:
        attributes = Attributes.__new__(Attributes)
        dict.update(attributes, items)
        table.append(attributes)
    columns = (
        array("q", times_us),
        map(table.__getitem__, array("I", indexes)),
        *(repeat(None) if column is None else column for column in (statuses, durations, costs)),
        array("q", lines),
        pickle.loads(records) or repeat(None),
    )
    return list(map(_new_call, repeat(RecordedCall), zip(*columns, strict=False)))  # repeat has no end
