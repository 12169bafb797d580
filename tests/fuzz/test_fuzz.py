"""The short form of `make fuzz`: a few thousand inputs of every kind, the same each time."""

import signal
from random import Random

import pytest

from headgate.service.grpc_server.unary_calls import UnaryCall
from tests.fuzz import fuzz_runner
from tests.fuzz.fuzz_runner import KINDS, fuzz
from tests.fuzz.http2_sequences import SequenceFailure, fuzz_sequences
from tests.fuzz.json_bodies import fault
from tests.fuzz.service_under_attack import BOOK, ServiceProbe
from tests.service.service_harness import Service

SEED = 6


@pytest.mark.parametrize(("engine", "inputs"), [("memory", 2400), ("redis", 600)])
def test_every_input_is_answered_or_refused(engine: str, inputs: int) -> None:
    reports = list(fuzz(list(KINDS), [engine], inputs, SEED))
    assert [each.kind for each in reports] == list(KINDS)
    assert sum(each.inputs for each in reports) >= inputs * 0.99


def test_sequences_of_frames_leave_nothing_behind() -> None:
    fuzz_sequences(1000, SEED)


def test_a_sequence_that_fails_tells_how_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnaryCall, "_release_buffer", lambda call: None)
    with pytest.raises(SequenceFailure, match=r"(?s)sequence \d+: .*--kind http2 --seed 6 --only \d+$"):
        fuzz_sequences(1000, SEED)


def test_the_judge_finds_faulty_responses() -> None:
    assert fault(500, b"{}", {200})
    assert fault(400, b"no document", {400})
    assert fault(400, b'"' + b"x" * 5000 + b'"', {400})
    assert fault(200, b"{}", {200}) is None
    with Service(BOOK) as service:
        judge = ServiceProbe(service)
        judge.warm()
        assert judge.faults() == []
        with (service.folder / "stderr").open("ab") as log:
            log.write(b"Traceback (most recent call last)\n")
        assert "it logged a mistake" in judge.faults()[0]
        assert judge.faults() == []
        judge.first_kb -= 10**6
        assert "it grew" in judge.faults()[0]
        judge.first_kb += 10**6
        service.send_signal(signal.SIGKILL)
        service.wait()
        assert "the service ended with -9" in judge.faults()[0]


def test_an_input_is_the_same_again_and_a_fault_tells_how_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class OddNumbers:
        def __init__(self, service: Service) -> None: ...

        async def open(self) -> None: ...

        async def close(self) -> None: ...

        def make(self, rng: Random) -> int:
            return rng.randrange(100)

        async def send(self, made: int) -> str | None:
            return f"{made} is odd" if made % 2 else None

    monkeypatch.setitem(KINDS, "odd", (OddNumbers, 100))
    with pytest.raises(
        fuzz_runner.FuzzFailure,
        match=r"(?s)input 1 of odd: 65 is odd.*--kind odd --engine memory --seed 6 --only 1$",
    ):
        list(fuzz(["odd"], ["memory"], 50, SEED))
