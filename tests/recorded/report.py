"""Prints the results of a replay as a table, and whether it passed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.recorded.replay import ReplayTally, StepMismatch, VectorFile
from tests.recorded.step_result import HINGES

# Steps that hinge on less than a microsecond may be this part of all, no more.
_HINGING = 0.005
_SHOWN = 5

_HEAD = f"{'file':<25} {'engine':<9}{'cases':>7}{'steps':>8}{'compared':>10}{'mismatches':>12}{'apart':>8}"


@dataclass
class ReplayReport:
    """Files come in one by one, each with a tally for every engine; lines go out."""

    engines: Sequence[str]
    files: list[VectorFile] = field(default_factory=list)
    tallies: list[ReplayTally] = field(default_factory=list)

    def head(self) -> list[str]:
        return [_HEAD, "-" * len(_HEAD)]

    def enter(self, file: VectorFile, tallies: Sequence[ReplayTally]) -> list[str]:
        """The lines of one file."""
        self.files.append(file)
        self.tallies += tallies
        lines = []
        if file.cases:
            lines += [_row(file, *row) for row in zip(self.engines, tallies, strict=True)]
        lines += self._reasons(tallies)
        for what, cases in file.uncovered.items():
            steps = sum(len(case.steps) for case in cases)
            name = "" if file.cases else file.name
            lines.append(f"{name:<25} not covered: {len(cases)} cases, {steps} steps of {what}")
        lines += [f"  ! {trouble}" for trouble in file.troubles]
        for engine, tally in zip(self.engines, tallies, strict=True):
            lines += [f"  ! {trouble}" for trouble in tally.troubles]
            lines += [f"  ! {file.name} on {engine}: {_mismatch_line(one)}" for one in tally.mismatches[:_SHOWN]]
            if len(tally.mismatches) > _SHOWN:
                lines.append(f"  ! {file.name} on {engine}: and {len(tally.mismatches) - _SHOWN} more")
        return lines

    def _reasons(self, tallies: Sequence[ReplayTally]) -> list[str]:
        """Returns how many steps were counted apart, under each reason, on each engine."""
        reasons = dict.fromkeys(reason for tally in tallies for reason in tally.apart)
        lines = []
        for reason in reasons:
            counts = [tally.apart[reason] for tally in tallies]
            each = str(counts[0]) if len(set(counts)) == 1 else " / ".join(map(str, counts))
            lines.append(f"{'':<25} apart: {each} {reason}")
        return lines

    def summary(self) -> list[str]:
        steps, compared = self._sum("steps"), self._sum("compared")
        mismatches = sum(len(tally.mismatches) for tally in self.tallies)
        lines = [
            "-" * len(_HEAD),
            f"{len(self.files)} files on {', '.join(self.engines)}: {steps} steps, {compared} compared, "
            f"{mismatches} mismatches, {steps - compared} apart, "
            f"of which {self._hinging} hinge on less than 1 us.",
        ]
        if self._hinges_too_often:
            lines.append(f"  ! {_HINGING:.1%} of the steps or more hinge on less than 1 us: that is too many.")
        if self.good:
            lines.append("All that was compared agrees." if compared else "Nothing was compared.")
        else:
            lines.append("It does NOT agree: see the lines marked with !")
        return lines

    @property
    def good(self) -> bool:
        """Returns whether everything could be read and nothing differs."""
        troubles = any(file.troubles for file in self.files) or any(one.troubles for one in self.tallies)
        differs = any(tally.mismatches for tally in self.tallies)
        return not troubles and not differs and not self._hinges_too_often

    @property
    def _hinging(self) -> int:
        return sum(tally.apart[HINGES] for tally in self.tallies)

    @property
    def _hinges_too_often(self) -> bool:
        return self._hinging > 0 and self._hinging >= _HINGING * self._sum("steps")

    def _sum(self, what: str) -> int:
        return sum(getattr(tally, what) for tally in self.tallies)


def _row(file: VectorFile, engine: str, tally: ReplayTally) -> str:
    apart = sum(tally.apart.values())
    return (
        f"{file.name:<25} {engine:<9}{tally.cases:>7}{tally.steps:>8}{tally.compared:>10}"
        f"{len(tally.mismatches):>12}{apart:>8}"
    )


def _mismatch_line(mismatch: StepMismatch) -> str:
    differences = "; ".join(f"{fact.name}: expected {fact.expected}, got {fact.got}" for fact in mismatch.facts)
    return f"{mismatch.case}, step {mismatch.step}: {differences}"
