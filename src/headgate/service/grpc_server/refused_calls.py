"""Calls that are refused by their head: of an unknown method, with compressed messages, or not gRPC at all."""

from __future__ import annotations

from headgate.service.grpc_server.header_blocks import RESPONSE_HEAD, http_status, trailers
from headgate.service.grpc_server.streams import Http2Stream

_NOT_GRPC = b"This address answers gRPC only: POST, with a content-type of application/grpc.\n"


class RefusedCall(Http2Stream):
    """A call that is refused. gRPC has its status at once, plain HTTP when its request has ended."""

    __slots__ = ()
    runs = False

    def opened(self) -> None:
        refusal = self.head.refusal
        assert refusal is not None
        if refusal.http_status is None:
            self.finish(RESPONSE_HEAD + trailers(refusal.code, refusal.message, refusal.metadata))

    def receive(self, payload: bytes, ended: bool) -> None:
        self.connection.credit(self, len(payload))
        if ended:
            self._answer_http()

    def time_out(self) -> None:
        self._answer_http()

    def _answer_http(self) -> None:
        refusal = self.head.refusal
        if self.is_open and refusal is not None and refusal.http_status is not None and not self.unsent:
            self.connection.send_head(self, http_status(refusal.http_status))
            self.end_with_data(_NOT_GRPC)
