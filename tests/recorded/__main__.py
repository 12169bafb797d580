"""python -m tests.recorded DIR: replay every *.jsonl of a folder in memory, on Redis and on Valkey.

Cases of rules, which decide nothing, are left to tests/rules."""

import sys
from pathlib import Path

from tests.recorded.driven_engines import ReplayEngine, all_engines
from tests.recorded.replay import OF_RULES, replay, sort_cases
from tests.recorded.report import ReplayReport


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        return _refuse("say which folder holds the vectors: python -m tests.recorded DIR")
    folder = Path(arguments[0])
    paths = sorted(path for path in folder.glob("*.jsonl") if path.name not in OF_RULES)
    if not paths:
        return _refuse(f"there is no *.jsonl file in {folder}.")
    with all_engines() as places:
        report = replay_files(paths, places)
    return 0 if report.good else 1


def replay_files(paths: list[Path], places: list[ReplayEngine]) -> ReplayReport:
    """Replay these files on these places, and print what was found."""
    report = ReplayReport([engine.name for engine in places])
    _print(report.head())
    for path in paths:
        file = sort_cases(path)
        _print(report.enter(file, [replay(file, engine) for engine in places]))
    _print(report.summary())
    return report


def _print(lines: list[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _refuse(why: str) -> int:
    print(f"conform: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
