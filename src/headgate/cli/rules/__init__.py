"""headgate rules: the commands for rulebooks, in files and on servers.

    validate, explain, test, diff      work on files; they need no server
    compile                            makes the bundle for nginx from a file
    push, pull, history, rollback      work on the versions on a server
    report                             reads counts on a server: live against shadow and candidate
    import, schema                     convert the limits of another limiter; print the JSON Schema for editors

One command in each file; `import` is in imports.py. For `test`, case_format.py parses a table of calls, and
run_cases.py runs it.
"""

from __future__ import annotations

from headgate.cli.command_parser import Commands, group
from headgate.cli.rules import (
    compile,  # noqa: A004
    diff,
    explain,
    history,
    imports,
    pull,
    push,
    report,
    rollback,
    schema,
    test,
    validate,
)


def add(commands: Commands) -> None:
    verbs = group(commands, "rules", "check, explain, test, compare, publish, try and import rulebooks")
    for module in (validate, explain, test, diff, compile, push, pull, history, rollback, report, imports, schema):
        module.add(verbs)
