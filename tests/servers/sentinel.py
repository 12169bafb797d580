"""A real master with replicas, and the sentinels that watch it: a test may kill, fail over and restart them all.

It is ready when every sentinel knows all the others and all replicas, and every replica is in sync. Starting one
master, one replica and three sentinels takes 0.4 to 1.5 s. A killed master has an heir 1.6 to 2.8 s later (at half
a second of silence), and a failover takes 2 to 3.6 s.

Law: who is master is never remembered here. It is asked, each time, of the sentinels; the newest word (the
greatest config epoch) holds.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlencode

from tests.servers.raw_redis_client import ErrorReply, Reply
from tests.servers.redis_server import RedisServer, login_of
from tests.servers.server_programs import Kind
from tests.servers.wait_until import until

NAME = "mymaster"
SETTLE_S = 30
# Sentinels greet each other every two seconds, look at a server every ten, and act no more for thirty when they
# were kept from running for two. A test has no time for that. Only how often they look is changed, not
# what they do.
PERIODS = {
    "PING-PERIOD": 200,
    "INFO-PERIOD": 500,
    "ASK-PERIOD": 200,
    "PUBLISH-PERIOD": 200,
    "MIN-LINK-RECONNECT-PERIOD": 1000,
    "TILT-PERIOD": 1000,
}


class Sentinel(RedisServer):
    """One sentinel. It writes what it learns into its own configuration, which survives a restart."""

    def start(self) -> Self:
        super().start()
        self.call("SENTINEL", "DEBUG", *(word for pair in PERIODS.items() for word in pair))
        return self

    def view(self) -> dict[str, str]:
        """All it knows about the master."""
        return _named(self.call("SENTINEL", "MASTER", NAME))

    def good_replicas(self) -> set[int]:
        """The ports of the replicas that it could make master."""
        replies = self.call("SENTINEL", "REPLICAS", NAME)
        replicas = [_named(reply) for reply in replies] if isinstance(replies, list) else []
        return {
            int(replica["port"])
            for replica in replicas
            if replica["flags"] == "slave" and replica["master-link-status"] == "ok"
        }

    def _command_line(self, port: int) -> list[str]:
        if port != self._port:
            settings = [f"port {port}", "bind 127.0.0.1", f"unixsocket {self.unix_path}", f"dir {self._folder}"]
            self._write_settings([*settings, *self._config])
        return [*self._program(), "--sentinel"]


class Sentinels:
    """One master, its replicas, and `count` sentinels of which `quorum` must agree that the master is dead.

    They think so after `down_after_ms` of silence, and then put a replica in its place. `password`
    guards the servers and `sentinel_password` the sentinels. `user` and `sentinel_user` are users of their own
    with those passwords, who may do everything; the default user has the same password.
    """

    name = NAME

    def __init__(
        self,
        kind: Kind = "redis",
        *,
        count: int = 3,
        quorum: int = 2,
        replicas: int = 1,
        down_after_ms: int = 500,
        user: str | None = None,
        password: str | None = None,
        sentinel_user: str | None = None,
        sentinel_password: str | None = None,
        config: Sequence[str] = (),
    ) -> None:
        if (user and password is None) or (sentinel_user and sentinel_password is None):
            raise ValueError("a user needs a password")
        self.kind = kind
        self.nodes: list[RedisServer] = []
        self.sentinels: list[Sentinel] = []
        self._count, self._quorum, self._replicas = count, quorum, replicas
        self._down_after_ms = down_after_ms
        self._user, self._password = user, password
        self._sentinel_user, self._sentinel_password = sentinel_user, sentinel_password
        self._config = ["repl-diskless-sync yes", "repl-diskless-sync-delay 0", *config]
        if password is not None:
            self._config += [f"masterauth {password}", *_user_line(user, password)]

    @property
    def url(self) -> str:
        """The sentinels' addresses with the servers' user and password; the sentinels' own are parameters."""
        watchers = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        logins = {"sentinel_username": self._sentinel_user, "sentinel_password": self._sentinel_password}
        given = urlencode({name: value for name, value in logins.items() if value is not None}, quote_via=quote)
        login = login_of(self._password, self._user)
        return f"redis+sentinel://{login}{watchers}/{NAME}/0{'?' if given else ''}{given}"

    @property
    def master(self) -> RedisServer:
        """The server that the sentinels call master now. It may be dead: they have not noticed, or not agreed."""
        views = [sentinel.view() for sentinel in self.sentinels if sentinel.awake]
        if not views:
            raise RuntimeError("no sentinel is alive to ask")
        newest = max(views, key=lambda view: int(view["config-epoch"]))
        return next(node for node in self.nodes if node.port == int(newest["port"]))

    @property
    def replicas(self) -> list[RedisServer]:
        """The other servers that are alive."""
        master = self.master
        return [node for node in self.nodes if node.awake and node is not master]

    def start(self) -> Self:
        """Start the servers, then the sentinels, and return once all know each other."""
        master = self._start_node([])
        for _ in range(self._replicas):
            self._start_node([f"replicaof 127.0.0.1 {master.port}"])
        # A sentinel learns of the replicas from the master: it should have them by then.
        until(lambda: next(filter(None, (_out_of_sync(node) for node in self.nodes[1:])), None), SETTLE_S)
        for _ in range(self._count):
            watcher = Sentinel(self.kind, password=self._sentinel_password, config=self._watch(master.port))
            self.sentinels.append(watcher)
            watcher.start()
        self.await_ok()
        return self

    def kill_master(self) -> RedisServer:
        """Kill (SIGKILL) the master, and name it. `await_ok()` waits for its heir."""
        victim = self.master
        victim.kill()
        return victim

    def failover(self) -> None:
        """Tell a sentinel to put a replica in the living master's place; return when all know it."""
        before = self.master
        until(self._not_failing_over, SETTLE_S)
        until(lambda: None if self.master is not before else f"{before.port} is still the master", SETTLE_S)
        self.await_ok()

    def restart(self, server: RedisServer) -> None:
        """A new process in place of a server or sentinel, dead or alive; return when it is one of them again."""
        server.restart()
        self.await_ok()

    def heal(self) -> None:
        """Start what is dead and resume what is paused; return when all is whole."""
        everybody = [*self.nodes, *self.sentinels]
        if all(server.awake for server in everybody):
            return
        for server in everybody:
            if not server.alive:
                server.start()
            elif not server.awake:
                server.resume()
        self.await_ok()

    def flush(self) -> None:
        """Forget every key; the replicas follow. Cached scripts stay."""
        self.master.flush()

    def await_ok(self, seconds: float = SETTLE_S) -> None:
        """Return when the living sentinels name one living master, and its replicas follow it."""
        until(self._unsettled, seconds)

    def stop(self) -> None:
        """End them all at once, as a crash would. `heal()` brings them back."""
        for server in [*self.sentinels, *self.nodes]:
            server.kill()

    def close(self) -> None:
        """End them all and remove their folders."""
        for server in [*self.sentinels, *self.nodes]:
            server.close()

    def __enter__(self) -> Self:
        try:
            return self if self.nodes else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_node(self, config: list[str]) -> RedisServer:
        node = RedisServer(self.kind, password=self._password, config=[*self._config, *config])
        self.nodes.append(node)
        return node.start()

    def _watch(self, port: int) -> list[str]:
        secret = [] if self._password is None else [f"sentinel auth-pass {NAME} {self._password}"]
        return [
            f"sentinel monitor {NAME} 127.0.0.1 {port} {self._quorum}",
            f"sentinel down-after-milliseconds {NAME} {self._down_after_ms}",
            f"sentinel failover-timeout {NAME} 5000",
            *secret,
            *_user_line(self._sentinel_user, self._sentinel_password),
        ]

    def _not_failing_over(self) -> str | None:
        try:
            next(sentinel for sentinel in self.sentinels if sentinel.awake).call("SENTINEL", "FAILOVER", NAME)
        except ErrorReply as refusal:
            return f"a sentinel says {refusal}"
        return None

    def _unsettled(self) -> str | None:
        master, replicas = self.master, self.replicas
        if not master.awake:
            return f"the master {master.port} is dead and has no heir"
        if (role := master.info("replication")["role"]) != "master":
            return f"the sentinels call {master.port} master, and it is a {role}"
        watchers = [sentinel for sentinel in self.sentinels if sentinel.awake]
        for sentinel in watchers:
            view = sentinel.view()
            if int(view["port"]) != master.port or view["flags"] != "master":
                return f"a sentinel sees {view['port']} as {view['flags']}, and the master is {master.port}"
            if int(view["num-other-sentinels"]) < len(watchers) - 1:
                return f"a sentinel knows only {view['num-other-sentinels']} others"
            if not sentinel.good_replicas() >= {node.port for node in replicas}:
                return "a sentinel does not see all replicas in good health"
        return next(filter(None, (_out_of_sync(node, master) for node in replicas)), None)


def _out_of_sync(node: RedisServer, master: RedisServer | None = None) -> str | None:
    seen = node.info("replication")
    if seen["role"] != "slave" or seen["master_link_status"] != "up":
        return f"the replica {node.port} is not in sync"
    if master is not None and int(seen["master_port"]) != master.port:
        return f"the replica {node.port} follows {seen['master_port']}, and the master is {master.port}"
    return None


def _user_line(user: str | None, password: str | None) -> list[str]:
    return [] if user is None else [f"user {user} on >{password} ~* &* +@all"]


def _named(reply: Reply) -> dict[str, str]:
    if not isinstance(reply, list):
        raise RuntimeError(f"a sentinel was asked for names and values, and answered {reply!r}")
    words = [word.decode() for word in reply if isinstance(word, bytes)]
    return dict(zip(words[::2], words[1::2], strict=True))
