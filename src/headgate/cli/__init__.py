"""The command line: it calls the library, and decides nothing itself.

    headgate limit "100/s"        what a limit means, in words
    headgate take|peek KEY        ask an engine, as a program would; refund, reset: correct what it counts
    headgate pause KEY SPAN       refuses a key for a while
    headgate keys                 the counters, busiest first
    headgate overrides            limits of single keys
    headgate stats                what each rule allowed and refused
    headgate top                  the same, live
    headgate dashboard            the page that operators keep open, where no service runs
    headgate rules                the rulebook: validate, explain, test, diff, push, pull, and so on
    headgate init                 looks at a project, and proposes a rulebook and the lines to add
    headgate doctor               checks server, rulebook and application, and names the line to change
    headgate suggest LOG          finds a limit in a log
    headgate replay LOG           decides recorded traffic by a rulebook
    headgate simulate SHAPE       plays a shape of traffic through limits, side by side
    headgate serve                the check service: gateways ask over HTTP, and Envoy over gRPC
    headgate nginx                nginx as a gateway: a configuration, and whether nginx accepts it
    headgate lua                  the scripts that run inside Redis and Valkey, and the Lua for nginx
    headgate simulate             compare limiters, also adaptive ones, on a simulated server
    headgate demo                 watch a flash sale: the same calls at seven gates
    headgate completion           completes commands and options in a shell

Every command takes --json: one document on stdout, times in seconds, and errors as {"error": ...} on stderr.
Without it the output is for people, and an error is one sentence on stderr.

Exit codes, which scripts may rely on:
    0      done; or: the answer is yes
    1      an engine did not answer
    2      invalid input: a bad limit, an invalid rulebook, an unknown command
    3      the answer is no: take or peek was refused, a case of `rules test` failed, a `rules diff --exit-code`
           found a difference, an override exists already or does not exist, `rules report` finds a limit unsafe,
           `doctor` found an error, `init` wrote nothing for lack of a yes
    130    interrupted

Modules:
    limit              headgate limit
    take               headgate take, peek, refund and reset
    pause              headgate pause
    keys               headgate keys
    overrides          headgate overrides
    stats              headgate stats
    top, top_screen    headgate top, and what it shows
    dashboard          headgate dashboard
    rules              headgate rules
    init, project      headgate init
    doctor, doctor_checks   headgate doctor
    suggest, replay    headgate suggest and replay
    serve              headgate serve
    nginx              headgate nginx
    lua                headgate lua
    simulate           headgate simulate
    simulate_shape     plays a shape of traffic through limits
    simulation_case    reads the cases of simulated servers
    demo               headgate demo
    flash_sale         simulates the flash sale of the demo
    demo_chart         draws it
    completion         headgate completion
    command_parser     declares commands and their options
    output             JSON or text, and exit codes
    text_table         formats tables
    text_style         colours, and Unicode or ASCII
    full_screen        draws on the alternate screen
    engine_option      --engine and --prefix
    rulebook_option    --rules
    counter_options    --limit and --rule
    application_option   --app
    log_options        logs, their formats, and --html
    progress           a line of progress with an estimate
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import headgate
from headgate.cli import (
    completion,
    dashboard,
    demo,
    doctor,
    init,
    keys,
    limit,
    lua,
    nginx,
    overrides,
    pause,
    replay,
    rules,
    serve,
    simulate,
    stats,
    suggest,
    take,
    top,
)
from headgate.cli.command_parser import Parser
from headgate.cli.output import ENGINE_UNAVAILABLE, INTERRUPTED, INVALID, Output
from headgate.errors import CorruptState, EngineUnavailable, HeadgateError, InvalidRulebook
from headgate.service.log_format import error_line

_CODES = "".join((__doc__ or "").partition("Modules:")[0].partition("Exit codes")[1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command, and returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    # In a process that was started without one of them it is None, and print(file=None) writes to stdout.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    parser = tree()
    try:
        args = parser.parse_args(arguments)
        output: Output | int = args.run(args) if args.run else _help(parser)
        code = output.write(as_json=args.json) if isinstance(output, Output) else output
        sys.stdout.flush()
        return code
    except (CorruptState, EngineUnavailable) as error:
        return _fail(error, ENGINE_UNAVAILABLE, arguments)
    except HeadgateError as error:
        return _fail(error, INVALID, arguments)
    except BrokenPipeError:
        _discard_stdout()  # the reader of the pipe is gone
        return 0
    except OSError as error:
        _discard_stdout()
        return _fail(
            HeadgateError(f"This cannot be written or read: {error.strerror or error}."), INVALID, arguments
        )
    except KeyboardInterrupt:
        return INTERRUPTED


def tree() -> Parser:
    """Returns the parser of all commands."""
    parser = Parser(
        prog="headgate",
        description="Rate limits: decide calls, publish rules, run the check service.",
        epilog=_CODES.rstrip(),
    )
    parser.add_argument("--version", action="version", version=f"headgate {headgate.__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in (
        limit,
        take,
        pause,
        keys,
        overrides,
        stats,
        top,
        dashboard,
        rules,
        init,
        doctor,
        suggest,
        replay,
        simulate,
        serve,
        nginx,
        lua,
        demo,
    ):
        module.add(commands)
    completion.add(commands, tree)
    return parser


def _help(parser: Parser) -> int:
    parser.print_help()
    return 0


def _discard_stdout() -> None:
    """Redirects stdout to /dev/null: Python would flush it once more at exit, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: HeadgateError, code: int, argv: Sequence[str]) -> int:
    if "--json" in argv:  # not from the parser: the command line itself may be invalid
        print(json.dumps({"error": str(error)} | _problems(error)), file=sys.stderr)
    elif serve.logs_json(argv):
        print(error_line(str(error), **_problems(error)), file=sys.stderr)
    elif isinstance(error, InvalidRulebook):
        print("headgate:", "\n".join(error.messages), file=sys.stderr)
    else:
        print(f"headgate: {error}", file=sys.stderr)
    return code


def _problems(error: HeadgateError) -> dict[str, object]:
    """Returns all problems of an invalid rulebook, as a document."""
    if not isinstance(error, InvalidRulebook):
        return {}
    return {"problems": [{"line": line, "problem": sentence} for line, sentence in error.problems]}
