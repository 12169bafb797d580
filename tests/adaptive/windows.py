"""Windows of calls, drawn by Hypothesis or written by hand."""

from hypothesis import strategies as st

from headgate.adaptive.window import Window

MS = 1_000_000.0


def window(
    response_ms: float,
    in_flight: float,
    *,
    peak: int | None = None,
    refused: int = 0,
    dropped: int = 0,
    samples: int = 20,
    strained: bool = False,
    spread: float = 0.01,
) -> Window:
    """One window, with times in milliseconds."""
    most = peak if peak is not None else int(in_flight) + 1
    response_ns = response_ms * MS if samples else 0.0
    return Window(0.0, response_ns, most, dropped, samples, in_flight, refused, strained, response_ns, spread)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Any window that a gate can gather."""
    samples = draw(st.integers(0, 100))
    dropped = draw(st.integers(0 if samples else 1, 50))
    peak = draw(st.integers(1, 2000))
    return window(
        draw(st.floats(0.001, 1e6)),
        draw(st.floats(1.0, float(peak))),
        peak=peak,
        refused=draw(st.integers(0, 1000)),
        dropped=dropped,
        samples=samples,
        strained=draw(st.booleans()),
        spread=draw(st.floats(0.0, 2.0)),
    )
