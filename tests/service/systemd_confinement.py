"""Runs Python under a systemd unit's SystemCallFilter, without systemd: -m tests.service.systemd_confinement UNIT
python ...

A forbidden call ends the program (SIGSYS), whatever SystemCallErrorNumber says, so that a test sees it. Memory
that is both written and run is refused as MemoryDenyWriteExecute does, where the kernel can (Linux 6.3).
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

_KILL, _ALLOW = 0x80000000, 0x7FFF0000
_NO_NEW_PRIVILEGES, _MDWE = 38, 65


def allowed_calls(unit: Path) -> set[str]:
    """The names of all calls that the unit allows."""
    allowed: set[str] = set()
    for line in unit.read_text().splitlines():
        name, _, words = line.partition("=")
        if name == "SystemCallFilter":
            calls = {call for word in words.removeprefix("~").split() for call in _expanded(word)}
            allowed = allowed - calls if words.startswith("~") else allowed | calls
    return allowed


def _expanded(word: str) -> set[str]:
    if not word.startswith("@"):
        return {word}
    shown = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", word], capture_output=True, text=True, check=True
    ).stdout
    words = [line.strip() for line in shown.splitlines()[1:]]
    return {call for inner in words if inner and not inner.startswith("#") for call in _expanded(inner)}


def confine(calls: set[str]) -> None:
    """From now on, this process and its children may make these calls only."""
    libc, seccomp = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    made = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(_KILL)))
    for call in calls:
        number = seccomp.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # this machine has it
            assert seccomp.seccomp_rule_add(made, ctypes.c_uint32(_ALLOW), number, 0) == 0, call
    libc.prctl(_MDWE, 1, 0, 0, 0)
    assert libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert seccomp.seccomp_load(made) == 0


if __name__ == "__main__":
    confine(allowed_calls(Path(sys.argv[1])))
    os.execv(sys.executable, sys.argv[2:])
