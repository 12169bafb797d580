"""headgate rules: the rulebook, from the file to the servers.

    validate, explain, test, diff      of files alone; no server is asked
    compile                            the same, for nginx
    push, pull, history, rollback      of the editions on a server
    import, schema                     what people have, as a rulebook; what editors want to know

One command in each file. compare.py says what two books differ in; calls.py reads a table of calls and trial.py
plays it; plated.py is what a push publishes for gateways.
"""

from __future__ import annotations

from headgate.cli.parser import Commands, group
from headgate.cli.rules import (
    compile,  # noqa: A004
    diff,
    explain,
    history,
    imports,
    pull,
    push,
    rollback,
    schema,
    test,
    validate,
)


def add(commands: Commands) -> None:
    verbs = group(commands, "rules", "the rulebook: check, explain, test, compare and publish it")
    for module in (validate, explain, test, diff, compile, push, pull, history, rollback, imports, schema):
        module.add(verbs)
