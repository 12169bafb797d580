"""Prints the table of faults row by row, and the details of rows that fail."""

from __future__ import annotations

from tests.chaos.thresholds import FaultResult

WIDTHS = (27, 15, 8, 9, 12, 8, 9, 7, 17, 11, 0)
HEAD = (
    *("fault", "fallback", "calls", "by Redis", "by fallback", "errors", "stall ms", "timer"),
    *("over-admitted", "back after", ""),
)


def table_head() -> list[str]:
    return [_line(HEAD), "-" * len(_line(HEAD))]


def row_lines(result: FaultResult) -> list[str]:
    """A row, and beneath it what fails and what there is to say."""
    row = _line(
        (
            result.fault,
            result.fallback,
            f"{result.calls:,}",
            f"{result.by_redis:,}",
            f"{result.by_fallback:,}",
            f"{result.errors:,}",
            f"{result.stall * 1000:.0f}",
            f"{result.timer * 1000:.0f}",
            _over(result),
            "never" if result.recovery_seconds is None else f"{result.recovery_seconds:.2f} s",
            "FAIL" if result.failures else "pass",
        )
    )
    notes = [f"    {note}" for note in result.notes]
    if result.forgotten is not None:
        lost, of = result.forgotten
        notes.append(f"    forgotten by the failover, and so to be admitted again: {lost} of {of:,} units")
    return [row, *notes, *(f"  ! {failure}" for failure in result.failures)]


def _over(result: FaultResult) -> str:
    """Returns where Redis decided, where an outage begins or is partial, where all are cut off."""
    if result.over is None:
        return "all pass"
    return " / ".join(f"{part:.0%}" for part in result.over)


def _line(cells: tuple[str, ...]) -> str:
    left = "".join(f"{cell:<{width}}" for cell, width in zip(cells[:2], WIDTHS, strict=False))
    right = "".join(f"{cell:>{width}}" for cell, width in zip(cells[2:-1], WIDTHS[2:-1], strict=True))
    return f"{left}{right}  {cells[-1]}".rstrip()
