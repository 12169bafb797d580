"""An HTTP server behind nginx that works on a few requests at a time; the others wait in its queue.

with SlowUpstream(threads=4, work=0.05) as upstream:      "/..." answers 200 after its turn and 50 ms
    "/status/503"        answers with that status at once
    "/hang"              answers when the upstream ends, or its client goes away
"""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Self


class SlowUpstream:
    """A server on 127.0.0.1, on an event loop in a thread of its own."""

    def __init__(self, threads: int = 4, work: float = 0.05) -> None:
        self.threads, self.work = threads, work
        self.port = 0
        self.hanging = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._listening: Future[int] = Future()

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._listening.result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopped, self._turn = asyncio.Event(), asyncio.Semaphore(self.threads)
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=1024)
        self._listening.set_result(server.sockets[0].getsockname()[1])
        await self._stopped.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            status = await self._answer(head.split(b" ", 2)[1].decode(), reader)
            writer.write(f"HTTP/1.0 {status} Answer\r\nContent-Length: 2\r\n\r\nok".encode())
            await writer.drain()
        writer.close()

    async def _answer(self, target: str, reader: asyncio.StreamReader) -> int:
        if target.endswith("/hang"):
            self.hanging += 1
            gone, stopped = asyncio.create_task(reader.read(1)), asyncio.create_task(self._stopped.wait())
            await asyncio.wait([gone, stopped], return_when=asyncio.FIRST_COMPLETED)
            self.hanging -= 1
            return 200
        if "/status/" in target:
            return int(target.rpartition("/")[2])
        async with self._turn:
            await asyncio.sleep(self.work)
        return 200
