"""python -m tests.fuzz [--inputs N] [--seed S] [--kind KIND] [--engine ENGINE] [--only N]"""

import argparse
import sys
import time

from tests.fuzz.fuzz_runner import ENGINES, KINDS, FuzzFailure, fuzz
from tests.fuzz.http2_sequences import SequenceFailure, fuzz_sequences

INPUTS = 120_000
SEQUENCES = 100_000  # of frames, without a service
HTTP2 = "http2"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kind", choices=[*KINDS, HTTP2], action="append")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input of each kind")
    parser.add_argument("--only", type=int, help="one input, by its number")
    args = parser.parse_args()
    kinds = args.kind or [*KINDS, HTTP2]
    first = args.first if args.only is None else args.only
    inputs = args.inputs if args.only is None else 1
    sys.stdout.write(f"fuzz: seed {args.seed}\n")
    total = 0
    try:
        if HTTP2 in kinds:
            kinds = [kind for kind in kinds if kind != HTTP2]
            fuzz_sequences(inputs or SEQUENCES, args.seed, first)
            sys.stdout.write(f"  {HTTP2:9} {'':6} {inputs or SEQUENCES:7} sequences of frames\n")
            total += inputs or SEQUENCES
        for report in (
            fuzz(kinds, args.engine or list(ENGINES), inputs or INPUTS, args.seed, first) if kinds else ()
        ):
            sys.stdout.write(f"  {report}\n")
            sys.stdout.flush()
            total += report.inputs
    except (FuzzFailure, SequenceFailure) as fault:
        sys.stderr.write(f"fuzz: {fault}\n")
        return 1
    sys.stdout.write(f"fuzz: {total} inputs; no crash, no 500, nobody left waiting\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
