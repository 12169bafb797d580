"""The process that replays calls for a preview: reads a job on stdin, writes its result on stdout, both JSON.

The job names two rulebooks as text, and the calls: packed records, an engine whose recent records are read, or a
log file. It is not a command for people; `headgate replay` is.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgate.errors import HeadgateError
from headgate.rules import load
from headgate.rules.rule import Rulebook
from headgate.telemetry.decision_record import Record
from headgate.telemetry.recent_records import RecentRecordsReader, unpack_record
from headgate.traffic.reader import LogReader, ReadOptions
from headgate.traffic.replay import needed_attributes, replay_calls
from headgate.traffic.report.documents import replay_document

MAX_LISTED = 20


def main() -> None:
    job = json.load(sys.stdin)
    try:
        result = replay_job(job)
    except HeadgateError as error:
        result = {"error": str(error)}
    json.dump(result, sys.stdout)


def replay_job(job: dict[str, Any]) -> dict[str, Any]:
    """Replays the calls of a job."""
    new, old = (load.parse(text, format=kind) for text, kind in (job["new"], job["old"]))
    if job.get("log"):
        return _replay(job["log"], new, old)
    records = sorted(_records(job), key=lambda record: (record["at_us"], record["seq"]))
    if not records:
        return {"calls": 0}
    with tempfile.TemporaryDirectory(prefix="headgate-preview-") as folder:
        path = Path(folder) / "records.jsonl"
        path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
        return _replay(str(path), new, old)


def _records(job: dict[str, Any]) -> Iterator[Record]:
    """Yields the recent records of a job."""
    if job["packed"] is None:
        url, prefix = job["engine"]
        reader = RecentRecordsReader(url, prefix=prefix)
        try:
            yield from reader.records(seconds=job["seconds"])
        finally:
            reader.close()
        return
    for packed in job["packed"]:
        with suppress(ValueError):
            record = unpack_record(base64.b64decode(packed))
            if record is not None:
                yield record


def _replay(path: str, new: Rulebook, old: Rulebook) -> dict[str, Any]:
    reader = LogReader([path], ReadOptions(needed=needed_attributes(new, old)))
    return replay_document(replay_calls(reader.batches(), new, old, MAX_LISTED))


if __name__ == "__main__":
    main()
