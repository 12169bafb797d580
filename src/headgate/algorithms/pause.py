"""The pause: a key whose clock stands still, so that nobody passes until it goes on.

Somebody else says "not before ten past": a partner that answered 429, an operator, a failing backend. From then
on every call on the key is refused until ten past, whatever its limit would allow. Callers that wait are not sent
away: the hands of the key's clock are held, and their turns come in the same order, with the same distances, that
much later. When the clock goes on it stays behind by the length of the pause: what was used before the pause is
not older for it, and no burst waits at its end.

Measure. A state is three whole numbers of microseconds:

    until_us    when the pause ends, or ended
    lag_us      how far the key's clock is behind: the length of all pauses while the key was in use
    stamp_us    when it was last paused

The clock of a key is `clock_us(state, now_us)`, and a decision on it is the ordinary one, at that instant: no
algorithm knows of pauses. A limit whose windows begin at fixed edges cannot be late; its clock is set ahead to the
end of the pause instead, so that its edges stay where they are. A waiter whose window passes while it is paused
then takes a place in a later one, behind those who came meanwhile.

Laws (tests/algorithms/test_pause.py, tests/contract/test_pause.py):
  - no call passes, and no place in a queue is served, between the pause and its end;
  - a pause never shortens a longer one;
  - the clock of a key never jumps: it stands, or it goes as fast as the real one (with edges: it never goes back);
  - places in the queue keep their order and their distances (with edges: those in windows that outlast the pause);
  - if the real clock is set back behind the stamp, the pause ends that much earlier: no pause lasts longer than it
    was meant to.
"""

from __future__ import annotations

from headgate.algorithms.limit import MAX_CLOCK_SWING_US, SECOND

MAX_PAUSE_US = 3600 * SECOND  # the longest pause, unless the limiter or the rule sets another

# until_us, lag_us, stamp_us
State = tuple[int, int, int]


def current_state(state: State, now_us: int) -> State:
    """Returns the state as it counts now: the same object, unless the clock was set back behind it."""
    until_us, lag_us, stamp_us = state
    if stamp_us <= now_us + MAX_CLOCK_SWING_US:
        return state
    return until_us - (stamp_us - now_us), lag_us, now_us


def left_us(state: State | None, now_us: int) -> int:
    """Returns how long a current state still pauses; 0: it does not."""
    return 0 if state is None else max(0, state[0] - now_us)


def clock_us(state: State | None, now_us: int, has_edges: bool) -> int:
    """Returns the time of a key's own clock: it stands still during a pause, and stays behind after it.

    `has_edges`: the windows of the limit begin at fixed instants. Then the clock is at the end of the pause
    while the pause lasts, and is never behind.
    """
    if state is None:
        return now_us
    until_us, lag_us, _ = state
    latest_us = max(now_us, until_us)
    return latest_us if has_edges else latest_us - lag_us


def extended(state: State | None, now_us: int, duration_us: int) -> State:
    """Returns a current state after a pause from now on; the same object if a longer pause is under way."""
    until_us = now_us + duration_us
    if state is None:
        return until_us, duration_us, now_us
    paused_until_us, lag_us, _ = state
    if until_us <= paused_until_us:
        return state
    return until_us, lag_us + until_us - max(now_us, paused_until_us), now_us


def pack(state: State) -> str:
    until_us, lag_us, stamp_us = state
    return f"{until_us}:{lag_us}:{stamp_us}"


def unpack(text: str) -> State:
    until_us, lag_us, stamp_us = text.split(":")
    return int(until_us), int(lag_us), int(stamp_us)
