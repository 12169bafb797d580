"""The repository as the house rules see it: what git tracks or would track."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headgate"


def files() -> list[Path]:
    """Tracked files, and new ones that are not ignored: a rule should speak before the commit."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = (ROOT / name.decode() for name in listing.stdout.split(b"\0") if name)
    return sorted(path for path in paths if path.is_file())


def texts() -> list[tuple[str, str]]:
    """Name and text of every file that is text."""
    found = []
    for path in files():
        try:
            found.append((str(path.relative_to(ROOT)), path.read_text()))
        except UnicodeDecodeError:
            continue
    return found
