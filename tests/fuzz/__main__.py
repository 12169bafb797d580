"""python -m tests.fuzz [--inputs N] [--seed S] [--kind KIND] [--engine ENGINE] [--only N]"""

import argparse
import sys
import time

from tests.fuzz.batches import ENGINES, KINDS, FuzzFailure, fuzz

INPUTS = 120_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input of each kind")
    parser.add_argument("--only", type=int, help="one input, by its number")
    args = parser.parse_args()
    first, inputs = (args.first, args.inputs) if args.only is None else (args.only, 1)
    sys.stdout.write(f"fuzz: seed {args.seed}\n")
    total = 0
    try:
        for told in fuzz(args.kind or list(KINDS), args.engine or list(ENGINES), inputs, args.seed, first):
            sys.stdout.write(f"  {told}\n")
            sys.stdout.flush()
            total += told.inputs
    except FuzzFailure as fault:
        sys.stderr.write(f"fuzz: {fault}\n")
        return 1
    sys.stdout.write(f"fuzz: {total} inputs; no crash, no 500, nobody left waiting\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
