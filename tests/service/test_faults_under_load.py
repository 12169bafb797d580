"""Faults and attacks under load: other clients do not notice for long, and the service survives.

The reason for its length: every fault is tried on the same service, with the same clients.
"""

import logging
import queue
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import grpc
import pytest
from envoy.service.rate_limit_quota.v3 import rlqs_pb2, rlqs_pb2_grpc  # type: ignore[import-untyped]
from envoy.service.ratelimit.v3 import rls_pb2  # type: ignore[import-untyped]

from headgate.service import log_format
from headgate.service.envoy import rls
from tests.fuzz import http2_frame_builder
from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.service.background_clients import BackgroundClients, descriptors, memory_mib, processor_seconds
from tests.service.service_harness import Service, reply_of
from tests.service.test_supervisor import BOOK, FORWARDED

IDLE = 10_000
FEW = 20  # descriptors that come and go
PROMPT = 3.0  # seconds: a busy machine, and far less than any of our timeouts
CHECK_BODY = b'{"attributes": {"user": "ann"}}'


@pytest.fixture
def many_files() -> Iterator[int]:
    """As many descriptors as this machine gives us; how many connections that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield min(IDLE, (hard - 500) // 3 * 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def over_grpc(service: Service, *, seconds: float = 10) -> int:
    """The overall code."""
    alone = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(service.grpc, options=alone) as channel:
        call: Any = channel.unary_unary(rls.PATH)
        request = rls_pb2.RateLimitRequest(
            domain="d", descriptors=[{"entries": [{"key": "user", "value": "bob"}]}]
        )
        answer = rls_pb2.RateLimitResponse.FromString(call(request.SerializeToString(), timeout=seconds))
        return int(answer.overall_code)


def _fewer(service: Service, count: int) -> str | None:
    now = descriptors(service.pid)
    return f"{now} descriptors are open" if now < count else None


def promptly(service: Service) -> None:
    began = time.monotonic()
    assert service.check()["allowed"]
    assert over_grpc(service) == rls_pb2.RateLimitResponse.OK
    assert time.monotonic() - began < PROMPT


# Connections.


def test_ten_thousand_idle_connections_block_no_request(many_files: int) -> None:
    with Service(BOOK) as service, ExitStack() as idle:
        promptly(service)
        before, memory = descriptors(service.pid), memory_mib(service.pid)
        for number in range(many_files):
            line = idle.enter_context(connected(service.grpc if number % 2 else service.http))
            if number % 2:
                line.sendall(
                    http2_frame_builder.PREFACE + http2_frame_builder.frame(http2_frame_builder.SETTINGS, 0, 0)
                )
        until(lambda: _fewer(service, before + many_files - FEW), 20)
        promptly(service)
        assert memory_mib(service.pid) - memory < 300, "some 10 KiB each, and three times that for a bad day"
        idle.close()
        until(lambda: None if _fewer(service, before + FEW) else "they are held", 20)
        promptly(service)


@pytest.mark.parametrize("where", ["http", "grpc"])
def test_descriptors_that_are_used_up_are_waited_for(where: str) -> None:
    service = Service(BOOK)
    service.before = ("prlimit", "--nofile=64:64")
    with service, ExitStack() as held:
        promptly(service)
        lines = [held.enter_context(connected(getattr(service, where))) for _ in range(100)]
        time.sleep(0.5)
        used, began = processor_seconds(service.pid), time.monotonic()
        lines[0].settimeout(5)
        if where == "http":  # who was there before is served, and who comes to the other door
            lines[0].sendall(b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n")
            assert lines[0].recv(1000).startswith(b"HTTP/1.1 200")
            assert over_grpc(service) == rls_pb2.RateLimitResponse.OK
        else:
            assert service.check()["allowed"]
        time.sleep(1)
        assert (processor_seconds(service.pid) - used) / (time.monotonic() - began) < 0.5, "it spins"
        assert descriptors(service.pid) < 64
        held.close()
        until(lambda: None if descriptors(service.pid) < 45 else "they are held", 10)
        promptly(service)
        assert len(service.output.splitlines()) < 20
        assert "Traceback" not in service.output


HELLO = http2_frame_builder.PREFACE + http2_frame_builder.frame(http2_frame_builder.SETTINGS, 0, 0)  # of HTTP/2
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n"
QUEUED = {"rules": [{"name": "slow", "when": {"path": "/"}, "limit": "1/5s queue 5"}, *BOOK["rules"]]}


@pytest.mark.parametrize(
    ("where", "sent"),
    [*(("http", sent) for sent in (b"", b"G", b"P", HEALTH, HELLO)), ("grpc", b"P"), ("grpc", HELLO)],
    ids=["http-nothing", "http-G", "http-P", "http-request", "http-http2", "grpc-P", "grpc-http2"],
)
def test_silent_connections_block_no_client(where: str, sent: bytes) -> None:
    """More of them than are accepted; and a client whose request is under way is not cut off."""
    service = Service(QUEUED)
    service.before = ("prlimit", "--nofile=1024:1024")
    with service, ExitStack() as silent, service.connection() as waits:
        assert service.send_request("GET", "/auth/forward", headers=FORWARDED).status == 200
        waits.timeout = 30
        waits.request("GET", "/auth/forward", headers=FORWARDED)  # answered after 5 s
        for _ in range(500):
            silent.enter_context(connected(getattr(service, where))).sendall(sent)

        def answered() -> str | None:
            try:
                if where == "grpc":
                    return None if over_grpc(service, seconds=5) == rls_pb2.RateLimitResponse.OK else "refused"
                assert service.send_request("GET", "/healthz").status == 200
                return None if service.check()["allowed"] else "refused"
            except (OSError, grpc.RpcError) as error:
                return str(error)

        until(answered, 8)  # 1.5 s, on a machine that has nothing else to do
        assert reply_of(waits).status == 200


def test_a_quota_stream_is_not_cut_off_for_being_silent() -> None:
    service = Service(BOOK)
    service.before = ("prlimit", "--nofile=1024:1024")
    report = rlqs_pb2.RateLimitQuotaUsageReports(domain="d")
    report.bucket_quota_usages.add().bucket_id.bucket["name"] = "all"
    with service, ExitStack() as silent, grpc.insecure_channel(service.grpc) as channel:
        reports: queue.Queue[Any] = queue.Queue()
        stub = rlqs_pb2_grpc.RateLimitQuotaServiceStub(channel)
        answers = stub.StreamRateLimitQuotas(iter(reports.get, None))
        reports.put(report)
        assert next(answers).bucket_action
        lines = [silent.enter_context(connected(service.grpc)) for _ in range(500)]
        for line in lines:
            line.sendall(HELLO)
        lines[0].settimeout(20)
        while lines[0].recv(4096):  # until it is closed
            pass
        reports.put(report)
        assert next(answers).bucket_action
        reports.put(None)


def test_peers_that_answer_no_ping_are_closed() -> None:
    with Service(BOOK) as service, ExitStack() as dead:
        lines = [dead.enter_context(connected(address)) for address in (service.http, service.grpc)]
        began = time.monotonic()
        for line in lines:
            line.sendall(HELLO)
        for line in lines:
            line.settimeout(50)  # they are pinged after 20 s, and have 10 s to answer
            while line.recv(4096):
                pass
        assert time.monotonic() - began < 50, "grpc gives up after 60 s by itself"


def test_slow_clients_hold_nobody_but_themselves() -> None:
    with Service(BOOK) as service, ExitStack() as slow:
        heads = [slow.enter_context(connected(service.http)) for _ in range(100)]
        bodies = [slow.enter_context(connected(service.http)) for _ in range(100)]
        deaf = [slow.enter_context(connected(service.http)) for _ in range(20)]
        calls = [slow.enter_context(connected(service.grpc)) for _ in range(100)]
        memory = memory_mib(service.pid)
        for line in heads:
            line.sendall(b"POST /v1/check HTTP/1.1\r\n")
        for line in bodies:
            line.sendall(b"POST /v1/check HTTP/1.1\r\nhost: h\r\ncontent-length: 31\r\n\r\n")
        for line in deaf:  # asks for more than anybody's buffers hold, and reads nothing
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.setblocking(False)
            requests = b"GET /openapi.json HTTP/1.1\r\nhost: h\r\n\r\n" * 2000
            assert line.send(requests) > 0
        for line in calls:
            line.sendall(
                b"".join(
                    http2_frame_builder.request_frames(rls.PATH.encode(), b"\0\0\0", kind=b"application/grpc")
                )[:-1]
            )
        for number in range(3):
            for line in heads:
                line.sendall(b"x-%d: 1\r\n" % number)
            for line, letter in zip(bodies, CHECK_BODY * 4, strict=False):
                line.sendall(bytes((letter,)))
            promptly(service)
        assert memory_mib(service.pid) - memory < 200
        # The head must have come within 10 s, and then they are let go.
        heads[0].settimeout(20)
        assert b" 200 " not in heads[0].recv(1000)


def test_a_body_in_too_many_parts_is_not_put_together() -> None:
    with Service(BOOK) as service, closing(connected(service.http)) as line:
        line.settimeout(60)
        line.sendall(b"POST /v1/check HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n")
        line.sendall(b"1\r\n \r\n" * 3000 + b"%x\r\n%s\r\n0\r\n\r\n" % (len(CHECK_BODY), CHECK_BODY))
        answer = line.recv(4096)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in answer  # the rest is not read, so nobody may ask on it again


# Calls that are none.


@pytest.mark.parametrize(
    "path", [b"/\xff", b"/envoy.service.rateli\xbbit.v3.RateLimitService/ShouldRateLimit", b"", b"/x/y"]
)
def test_no_name_of_a_method_ends_the_server(path: bytes) -> None:
    with Service(BOOK) as service:
        with closing(connected(service.grpc)) as line:
            line.sendall(
                b"".join(http2_frame_builder.request_frames(path, b"\0\0\0\0\0", kind=b"application/grpc"))
            )
            until(lambda: None if line.recv(4096) else "no answer", 5)
        promptly(service)
        with grpc.insecure_channel(service.grpc) as channel:
            call: Any = channel.unary_unary("/x/y")
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", timeout=10)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
        service.send_signal(signal.SIGTERM)
        assert service.wait() == 0
        assert "error" not in service.output


def test_malformed_requests_are_not_logged() -> None:
    with Service(BOOK) as service:
        for fields in ([(b"content-ty\xf9e", b"x")], [(b"te", b"x")], [(b":status", b"x")]):
            whole = http2_frame_builder.request_frames(rls.PATH.encode(), b"\0\0\0\0\0", kind=b"application/grpc")
            head = http2_frame_builder.header_block(
                [(b":method", b"POST"), (b":scheme", b"http"), (b":path", rls.PATH.encode()), *fields]
            )
            whole[2] = http2_frame_builder.frame(
                http2_frame_builder.HEADERS, http2_frame_builder.END_HEADERS, 1, head
            )
            with closing(connected(service.grpc)) as line:
                line.sendall(b"".join(whole))
                assert line.recv(4096)
                time.sleep(0.1)
        promptly(service)
        assert len(service.output.splitlines()) == 3, service.output


def test_one_sentence_does_not_fill_the_disk() -> None:
    with Service(BOOK) as service, service.connection() as line:
        began = time.monotonic()
        for _ in range(400):
            line.request("GET", "/auth/forward")
            assert reply_of(line).status == 400
        seconds = 2 + time.monotonic() - began
        assert service.output.count("cannot be answered") <= log_format.MAX_REPEATS_PER_S * seconds
        time.sleep(1)
        line.request("GET", "/auth/forward")
        reply_of(line)
        assert "not_written=" in service.output


def test_repeated_operator_actions_are_always_logged() -> None:
    seldom = log_format.RepeatFilter()

    def written(name: str, level: int) -> int:
        made = (
            logging.LogRecord(name, level, "", 0, "the same", (), None)
            for _ in range(log_format.MAX_REPEATS_PER_S * 3)
        )
        return sum(map(seldom.filter, made))

    assert (
        written(log_format.AUDIT_LOGGER, logging.WARNING)
        == written("headgate.service", logging.INFO)
        == log_format.MAX_REPEATS_PER_S * 3
    )
    assert (
        log_format.MAX_REPEATS_PER_S
        <= written("headgate.service", logging.WARNING)
        <= log_format.MAX_REPEATS_PER_S * 2
    )  # it may be another second


# Redis.


@pytest.mark.parametrize("fallback", ["local", "allow", "deny", None])
def test_redis_is_killed_and_comes_back(fallback: str | None) -> None:
    rule = {"name": "all", "limit": "1000000/day fixed"} | ({"fallback": fallback} if fallback else {})
    with RedisServer() as redis, Service({"rules": [rule]}, engine=redis.url + "?deadline=500ms") as service:

        def send_request() -> str:
            reply = service.post("check", attributes={})
            if reply.status == 503:
                assert reply.headers["retry-after"] == "1"
                return "undecided"
            response = reply.json
            return ("passed" if response["allowed"] else "refused") + (" degraded" if response["degraded"] else "")

        meanwhile = {"local": "passed degraded", "allow": "passed degraded", "deny": "refused degraded"}
        without = meanwhile.get(fallback or "", "undecided")
        with BackgroundClients(send_request) as load:
            load.more("passed")
            redis.kill()
            load.more(without)
            if fallback is None:
                with pytest.raises(grpc.RpcError) as refused:
                    over_grpc(service)
                assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
            else:
                assert over_grpc(service) == (2 if fallback == "deny" else 1)
            redis.start()
            load.more("passed")
        assert load.slowest < 0.5 + PROMPT
        assert set(load.seen) <= {"passed", without}
        assert "Traceback" not in service.output


# The book.


def test_a_book_is_broken_and_mended_under_load() -> None:
    with Service(BOOK) as service:
        with BackgroundClients(lambda: str(service.check()["limit"])) as load:
            load.more("1000000/day fixed")
            for broken in ("rules: [", "rules: [{name: all, limit: lots}]", "", "\0\xff", "[]"):
                service.write(broken)
                time.sleep(0.1)
            until(
                lambda: (
                    None if "rules.yaml" in service.output.partition("serves")[2].partition("\n")[2] else "untold"
                ),
                10,
            )
            load.more("1000000/day fixed")
            service.book.unlink()
            load.more("1000000/day fixed")
            service.write({"rules": [{"name": "all", "limit": "2000000/day fixed"}]})
            load.more("2000000/day fixed")
        assert set(load.seen) == {"1000000/day fixed", "2000000/day fixed"}
        assert "Traceback" not in service.output


# The end.


def test_a_stop_under_load_answers_every_accepted_request() -> None:
    queue = {"rules": [{"name": "slow", "when": {"path": "/"}, "limit": "20/s queue 60"}, *BOOK["rules"]]}
    with Service(queue) as service:
        statuses: list[int] = []
        odd: list[BaseException] = []

        def wait() -> None:
            try:
                statuses.append(service.send_request("GET", "/auth/forward", headers=FORWARDED).status)
            except BaseException as error:
                odd.append(error)

        waiting = [threading.Thread(target=wait) for _ in range(40)]
        for client in waiting:
            client.start()
        # Some are answered, so all have been taken: each takes its place when it comes.
        until(lambda: None if len(statuses) > 5 else "not yet", 10)
        stayed = len(statuses)
        service.send_signal(signal.SIGTERM)
        for client in waiting:
            client.join()
        assert (statuses, odd) == ([200] * 40, [])
        assert stayed < 40
        assert service.wait() == 0


# Secrets.


def test_secrets_are_not_logged() -> None:
    secrets = {"secret": "s3cr3t-of-receipts-0123", "admin_token": "t0k3n-of-operators-4567"}
    with RedisServer(password="p4ssw0rd-of-redis") as redis:
        with Service(BOOK, engine=redis.url + "?deadline=200ms", log_level="debug", **secrets) as service:
            receipt = service.post("check", attributes={"user": "pr1v4te"}, receipt=True).json["receipt"]
            assert service.post("refund", receipt=receipt).status == 200
            assert service.post("refund", receipt=receipt[:-1]).status == 404
            service.send_request(
                "GET", "/auth/forward", headers={"Authorization": "b34rer", "Cookie": "sid=c00kie"}
            )
            redis.kill()
            assert service.post("check", attributes={"user": "pr1v4te"}).status == 503
            assert service.send_request("GET", "/auth/forward", headers=FORWARDED).status == 503
            output = service.output
        for word in (*secrets.values(), "p4ssw0rd", receipt[:40], "pr1v4te", "b34rer", "c00kie"):
            assert word not in output
        assert "No decision" in output


def test_a_foreign_value_is_reported_over_every_protocol(server: RedisServer) -> None:
    server.call("RPUSH", "hg2:fw:all:{all}", "not ours")
    message = "the key hg2:fw:all:{all} holds a value that headgate did not write"
    with Service(BOOK, engine=server.url) as service:
        reply = service.send_request("POST", "/v1/check", CHECK_BODY)
        assert reply.status == 500
        assert message in reply.json["detail"]
        assert service.send_request("GET", "/auth/forward", headers=FORWARDED).status == 503
        with pytest.raises(grpc.RpcError) as refused:
            over_grpc(service)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert message in str(refused.value.details())
        server.call("DEL", "hg2:fw:all:{all}")
        assert service.send_request("POST", "/v1/check", CHECK_BODY).status == 200
