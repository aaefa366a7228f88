"""The servers that tests of connectors talk to: started in a temporary folder on a free port, and ended.

A test takes one by a fixture of its suite, and creates a new database, bucket, stream or key in it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from tests.left_out import postgres

_DEADLINE_S: Final = 60
_USER: Final = "postgres"

ACCESS_KEY: Final = "key"
SECRET_KEY: Final = "hush"  # of each S3


def free_port() -> int:
    """Return a port of this machine that no one listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(ready: Callable[[], bool], what: str, deadline_s: float = _DEADLINE_S) -> None:
    """Wait until ``ready`` returns true; an error of it counts as false."""
    ends = time.monotonic() + deadline_s
    while time.monotonic() < ends:
        with contextlib.suppress(Exception):
            if ready():
                return
        time.sleep(0.02)
    raise TimeoutError(f"{what} within {deadline_s} s")


def _answers(port: int) -> Callable[[], bool]:
    def answers() -> bool:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True

    return answers


@dataclass
class Server:
    """A server that can be killed and started again, with what it has kept."""

    folder: Path
    port: int
    command: list[str]
    options: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    ready: Callable[[int], bool] | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready: it listens, and answers if that takes it longer."""
        with (self.folder / "log").open("ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out, **self.options)
        ready = _answers(self.port) if self.ready is None else partial(self.ready, self.port)
        wait_until(ready, f"{self.command[0]} is ready at {self.port}; its log is {self.folder / 'log'}")

    def kill(self) -> None:
        """Kill it, as a machine that fails does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """End it in order."""
        assert self.process is not None
        self.process.send_signal(2)  # PostgreSQL: a fast shutdown; Redis and NATS: an orderly one
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def _served(server: Server) -> Iterator[Server]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _serves_sql(port: int) -> bool:
    """PostgreSQL listens while it still repairs its files after it was killed."""
    import psycopg

    with psycopg.connect(f"host=127.0.0.1 port={port} user={_USER} dbname=postgres", connect_timeout=5) as connection:
        return connection.execute("SELECT NOT pg_is_in_recovery()").fetchone() == (True,)


def _owner() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam(_USER)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def postgres_server(**settings: Any) -> Iterator[Server]:
    """Run a PostgreSQL with logical replication; its superuser is ``postgres``, without a password."""
    # Its user must be able to enter the folder, and may not enter that of the tests with Ray.
    folder = Path(tempfile.mkdtemp(prefix="malstrom-pg-", dir="/tmp"))
    owner = _owner()
    if owner:
        shutil.chown(folder, owner["user"], owner["group"])
    data = folder / "data"
    options = {**owner, "cwd": folder, "env": {**os.environ, "LC_ALL": "C.UTF-8"}}
    made = subprocess.run(
        [postgres("initdb"), "-D", str(data), "-U", _USER, "--auth=trust", "-E", "UTF8", "--no-sync"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE_S,
        **options,
    )
    assert made.returncode == 0, made.stderr
    port = free_port()
    chosen = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "wal_level": "logical",
        "max_prepared_transactions": 10,
        "max_connections": 60,
        "shared_buffers": "32MB",
        "fsync": "off",  # what is killed here is a process, never the machine
        **settings,
    }
    flags = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
    server = Server(folder, port, [postgres("postgres"), "-D", str(data), *flags], options, ready=_serves_sql)
    try:
        with _served(server):
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def redis_server() -> Iterator[Server]:
    """Run a Redis that writes each change to its file before it answers."""
    with tempfile.TemporaryDirectory(prefix="malstrom-redis-") as folder:
        port = free_port()
        flags = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        flags += ["--appendonly", "yes", "--appendfsync", "always"]
        with _served(Server(Path(folder), port, ["redis-server", *flags], {})) as server:
            yield server


@contextmanager
def nats_server() -> Iterator[Server]:
    """Run a NATS with JetStream."""
    with tempfile.TemporaryDirectory(prefix="malstrom-nats-") as folder:
        port = free_port()
        command = ["nats-server", "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", folder]
        with _served(Server(Path(folder), port, command, {})) as server:
            yield server


@contextmanager
def kafka_server() -> Iterator[Server]:
    """Run noida-db as a broker of Kafka, with transactions."""
    binary = Path(str(files("noida_db"))) / "noida-db"
    binary.chmod(0o755)
    with tempfile.TemporaryDirectory(prefix="malstrom-kafka-") as folder:
        port = free_port()
        command = [str(binary), "start", "--only", "kafka", "--host", "127.0.0.1", "--kafka-port", str(port)]
        with _served(Server(Path(folder), port, [*command, "--data-dir", folder], {})) as server:
            yield server


@contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3 that heeds conditions, in this process; yield its address."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@dataclass(frozen=True)
class Seaweed:
    """The addresses of a SeaweedFS: of its S3, and of its REST catalog of Iceberg, whose tables are in `WAREHOUSE`."""

    s3: str
    catalog: str


WAREHOUSE: Final = "s3://tables"


def catalog_of(address: str) -> dict[str, str]:
    """Return the properties of the REST catalog at ``address``."""
    login = {"credential": f"{ACCESS_KEY}:{SECRET_KEY}", "oauth2-server-uri": f"{address}/v1/oauth/tokens"}
    return {"type": "rest", "uri": address, "warehouse": WAREHOUSE, **login}


@contextmanager
def seaweed_server() -> Iterator[Seaweed]:
    """Run SeaweedFS, an S3 that stores on disk, in another process."""
    names = ("master", "volume", "filer", "s3", "admin")
    ports = {f"-{name}.port{more}": free_port() for name in names for more in ("", ".grpc")}
    ports["-s3.port.iceberg"] = free_port()
    chosen = [f"{name}={port}" for name, port in ports.items()] + [f"-tableBucket={WAREHOUSE.removeprefix('s3://')}"]
    off = ["-webdav=false", "-admin.ui=false", "-s3.autoCreateBucket=false", "-s3.port.lance=0"]
    program = str(Path(sys.executable).with_name("weed"))
    with tempfile.TemporaryDirectory(prefix="malstrom-s3-") as folder:
        command = [program, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *chosen, *off]
        options = {"env": {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}}
        with _served(Server(Path(folder), ports["-s3.port"], command, options, ready=_makes_buckets)) as server:
            seaweed = Seaweed(f"http://127.0.0.1:{server.port}", f"http://127.0.0.1:{ports['-s3.port.iceberg']}")
            wait_until(partial(_has_warehouse, seaweed.catalog), "SeaweedFS has its bucket for tables")
            yield seaweed


def make_folders(address: str, path: str) -> None:
    """Make a bucket in the S3 at ``address``, and objects that mark the folders of ``path`` in it."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        endpoint_override=address,
        region="us-east-1",
        allow_bucket_creation=True,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=1),
    ).create_dir(path)


def _makes_buckets(port: int) -> bool:
    make_folders(f"http://127.0.0.1:{port}", "ready")
    return True


def _has_warehouse(catalog: str) -> bool:
    from pyiceberg.catalog import load_catalog

    load_catalog("ready", **catalog_of(catalog)).list_namespaces()
    return True
