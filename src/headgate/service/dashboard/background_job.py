"""Runs a long job for a page in a process of its own, and passes on what it reports.

The process is killed, with all that it started, if the page is closed or the job takes too long.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import IO, Any, Final, NamedTuple

from headgate.errors import InvalidRule

_PROCESS: Final = "headgate.service.dashboard.job_process"
_MAX_LINE_BYTES: Final = 16 * 1024 * 1024  # of a result
_log = logging.getLogger("headgate.service")


class JobBounds(NamedTuple):
    """The most that a job may use: computing time, time, and memory."""

    cpu_s: int
    seconds: float
    max_bytes: int


async def job_events(
    job: dict[str, Any], bounds: JobBounds, file: IO[bytes] | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    """Yields what a job reports; the last is its result, or an error.

    The process gets `file`, which is closed here: one without a name is deleted once the process has read it.
    """
    descriptors: tuple[int, ...] = ()
    if file is not None:
        descriptors = (file.fileno(),)
        job = job | {"descriptor": file.fileno(), "path": f"/dev/fd/{file.fileno()}"}
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            _PROCESS,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_BYTES,
            pass_fds=descriptors,
            start_new_session=True,  # so that what it starts can be killed with it
        )
    finally:
        if file is not None:
            file.close()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(job | {"max_bytes": bounds.max_bytes, "cpu_s": bounds.cpu_s}).encode())
        process.stdin.close()
        deadline = asyncio.get_running_loop().time() + bounds.seconds
        while True:
            async with asyncio.timeout_at(deadline):
                line = await process.stdout.readline()
            event = json.loads(line) if line else _died(await process.wait())
            yield event
            if "phase" not in event:
                return
    except TimeoutError:
        text = f"This took longer than {bounds.seconds:g} s, and was stopped. The command line has no such bound."
        yield {"error": text}
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()  # until its pipes are closed, too


async def job_result(job: dict[str, Any], bounds: JobBounds) -> dict[str, Any]:
    """Returns the result of a job; raises InvalidRule with the sentence of its error."""
    async with aclosing(job_events(job, bounds)) as events:
        async for event in events:
            if "error" in event:
                raise InvalidRule(event["error"])
            if "result" in event:
                result: dict[str, Any] = event["result"]
                return result
    raise AssertionError("a job ends with a result or an error")


def _died(code: int) -> dict[str, Any]:
    _log.error("a job of a page ended with exit code %d and no result", code)
    return {"error": "The work ended without a result. The log of the service may say why."}
