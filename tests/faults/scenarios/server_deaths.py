"""Servers that die, freeze, or are replaced. These need servers of the stage's own."""

import tempfile
import threading
from pathlib import Path

import redis

from countersink.stream.connection import command, connect
from countersink.stream.names import GROUP
from tests.faults.scenarios.entry_kinds import EntryKinds
from tests.faults.stage import ACKNOWLEDGE, APPLIED_WITHIN, Stage
from tests.support.processes import Child
from tests.support.proxies import Deed, Phase
from tests.support.servers import RedisServer
from tests.support.traffic import STREAM, add, send, send_together
from tests.support.waiting import eventually


def both_servers_killed(stage: Stage) -> None:
    """SIGKILL and restart of Redis (AOF always) and MySQL under load, with entries of all kinds, in
    random order.
    """
    kinds, worker = EntryKinds(stage), stage.worker()
    kinds.send(50)
    with stage.trickle():
        servers = [stage.redis_server, stage.mysql_server]
        stage.random.shuffle(servers)
        _let_some_through(stage, worker)
        together = stage.random.random() < 0.5
        print("together" if together else "one after the other")
        for server in servers:
            server.kill()
            stage.faults[f"{server.name} kill"] += 1
            if not together:
                server.start()
                kinds.send(50)
                _let_some_through(stage, worker)
        for server in servers:
            server.start()  # unless it was
        _let_some_through(stage, worker)
    stage.wait_applied()
    stage.end(worker)
    stage.finish("both servers killed")
    kinds.members.check("both servers killed")


def servers_frozen(stage: Stage) -> None:
    """Either server hangs for longer than Redis's socket time-out, and comes back."""
    server = stage.random.choice([stage.redis_server, stage.mysql_server])
    worker = stage.worker()
    with stage.trickle():
        _let_some_through(stage, worker)
        server.freeze()
        stage.faults[f"{server.name} frozen"] += 1
        try:
            threading.Event().wait(6.0)  # longer than the 5 s socket time-out
        finally:
            server.thaw()
        _let_some_through(stage, worker)
    stage.wait_applied()
    stage.end(worker)
    stage.finish("frozen server")


def replica_promoted(stage: Stage) -> None:
    """A replica that missed the last entries is promoted, and hands out their stream ids again.

    What the worker applied from the old primary and acknowledges on the new one must not remove
    the other events that have those stream ids there; what the new primary still holds as
    pending, though it was acknowledged on the old one, is not counted again.
    """
    with (
        tempfile.TemporaryDirectory(prefix="csk-") as directory,
        RedisServer(Path(directory) / "redis", appendfsync="always") as replica,
    ):
        _replicate(stage, replica)
        with connect(_url_of(stage, replica)) as new:
            try:
                _promote(stage, replica, new)
            finally:
                stage.redis_proxy.upstream = ("127.0.0.1", stage.redis_server.port)
                stage.redis_proxy.cut_all()
                stage.redis.flushall()  # the old primary holds what it never heard acknowledged


def _promote(stage: Stage, replica: RedisServer, new: redis.Redis) -> None:
    worker = stage.worker()
    known = stage.send(4)
    stage.wait_applied()
    # the replica holds these as pending; their acknowledgement never reaches it
    held = stage.when(ACKNOWLEDGE, Phase.BEFORE, Deed.HOLD)
    known += stage.send(4)
    stage.wait_for(held.reached, "held", worker)
    stage.redis.wait(1, 10_000)
    command(new, "REPLICAOF", "NO", "ONE")
    stage.faults["replica promoted"] += 1
    held.release.set()
    stage.wait_applied()
    # applied from the old primary only; the worker's acknowledgement goes to the new one
    lost = stage.when(ACKNOWLEDGE, Phase.BEFORE, Deed.HOLD)
    old_entries = [stage.entry() for _ in range(6)]
    stream_ids = send_together(stage.redis, old_entries)  # so that one batch has them all
    stage.wait_for(lost.reached, "held", worker)
    for stream_id in stream_ids:  # other events, same stream ids: as at the same millisecond
        add(new, stage.entry().fields(), stream_id=stream_id)
    stage.redis_proxy.upstream = ("127.0.0.1", replica.port)
    stage.redis_proxy.cut_all()
    stage.redis_proxy.forget()
    send(new, *[stage.entry() for _ in range(3)])
    send(new, *known)  # a producer that never heard of them being stored
    eventually(lambda: new.xlen(STREAM) == 0, APPLIED_WITHIN, message=worker.output)
    pending = command(new, "XPENDING", STREAM, GROUP)
    assert pending[0] == 0, pending
    stage.end(worker)
    stage.check("replica promoted")


def _replicate(stage: Stage, replica: RedisServer) -> None:
    """Make it a replica with its primary's password, as one meant to be promoted has."""
    password = stage.redis_server.password
    client = connect(replica.url)
    client.config_set("masterauth", password)
    command(client, "REPLICAOF", "127.0.0.1", stage.redis_server.port)
    client.config_set("requirepass", password)
    client.close()
    client = connect(_url_of(stage, replica))
    eventually(lambda: client.info("replication")["master_link_status"] == "up")
    client.close()


def _url_of(stage: Stage, replica: RedisServer) -> str:
    return f"redis://:{stage.redis_server.password}@127.0.0.1:{replica.port}/0"


def _let_some_through(stage: Stage, worker: Child) -> None:
    """Wait until the worker has committed a few more batches."""
    counts = stage.mysql_proxy.counts
    before = counts["commit"]
    eventually(lambda: counts["commit"] >= before + 5, APPLIED_WITHIN, message=worker.output)
