"""Reads from a client of redis-py or valkey-py which server it is for, and how to log in there.

What is not understood is refused: a guessed address would be that of an unrelated server, and the
lock there would protect nothing.
"""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, Optional
from urllib.parse import quote

from ._errors import OptionError

if TYPE_CHECKING:
    from types import ModuleType
    from typing import NoReturn

Files = tuple[Optional[str], Optional[str], Optional[str]]

# Subclasses may connect to somewhere else, as those for Sentinel do.
_POOLS = ("ConnectionPool", "BlockingConnectionPool")
_SENTINEL_POOL = "SentinelConnectionPool"
_PLAIN = ("Connection", "SentinelManagedConnection")
_ENCRYPTED = ("SSLConnection", "SentinelManagedSSLConnection")
_SOCKET = "UnixDomainSocketConnection"
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
# What a URL and these files cannot express, beside all other settings of TLS.
_UNKNOWN = ("redis_connect_func", "valkey_connect_func")


class Server(NamedTuple):
    """A server, or the master of a group under Sentinel."""

    url: str
    files: Optional[Files] = None
    """The root certificates, the certificate and its key; None without TLS."""


def exceptions() -> ModuleType:
    """The errors of redis-py, or of valkey-py if only that is installed."""
    for library in ("redis", "valkey"):
        try:
            return import_module(library + ".exceptions")
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.split(".")[0] != library:
                raise
    raise ModuleNotFoundError(
        "lockmod.compat raises the errors of redis-py or valkey-py, and neither is installed: "
        "pip install lockmod[redis]",
        name="redis",
    )


class _Unclear(Exception):
    """What keeps the address from being known."""


def server(client: object) -> Server:
    """The server of a client, or of a URL."""
    if isinstance(client, str):
        return Server(client)
    try:
        return _server(client)
    except _Unclear as why:
        _refuse(client, str(why))


def _refuse(client: object, why: str) -> NoReturn:
    raise OptionError(
        f"{type(client).__name__} does not tell which server it is for, because {why}: give a URL "
        "(redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://) or a lockmod.Locker"
    )


def _is(kind: type, *names: str) -> bool:
    return kind.__module__.split(".")[0] in ("redis", "valkey") and kind.__name__ in names


def _class(value: object) -> type:
    return type(value)


def _server(client: object) -> Server:
    pool, connection, settings = _settings(client)
    if _is(_class(pool), _SENTINEL_POOL):
        return _group(pool, settings)
    return settings.socket() if _is(connection, _SOCKET) else settings.tcp()


def _settings(client: object) -> tuple[Any, type, _Settings]:
    """The pool of a client, the class of its connections, and their settings."""
    pool: Any = getattr(client, "connection_pool", None)
    if pool is None and _is(_class(client), "RedisCluster", "ValkeyCluster"):
        raise _Unclear("it is for a Cluster, which has many")
    if pool is None:
        raise _Unclear("it has no connection_pool for one server")
    kind = _class(pool)
    if not _is(kind, *_POOLS, _SENTINEL_POOL):
        raise _Unclear(f"its connection_pool is of the unknown class {kind.__name__}")
    settings: dict[str, Any] = pool.connection_kwargs
    connection: type = pool.connection_class
    if not _is(connection, *_PLAIN, *_ENCRYPTED, _SOCKET):
        raise _Unclear(f"its connections are of the unknown class {connection.__name__}")
    is_encrypted = _is(connection, *_ENCRYPTED)
    for name, value in settings.items():
        is_of_tls = is_encrypted and name.startswith("ssl_") and name not in _FILES
        if value and name in _UNKNOWN or is_of_tls and not _is_usual(connection, name, value):
            raise _Unclear(f"its {name} would not be used")
    files: Any = tuple(settings.get(name) for name in _FILES)
    return pool, connection, _Settings(settings, files if is_encrypted else None)


def _is_usual(connection: type, name: str, value: object) -> bool:
    """Whether a setting of TLS is the default, or checks what is checked here in any case."""
    if value is None or (name == "ssl_check_hostname" and value is True):
        return True
    if name == "ssl_cert_reqs" and getattr(value, "name", value) in ("required", "CERT_REQUIRED"):
        return True
    inits = (vars(kind).get("__init__", object.__init__) for kind in connection.__mro__)
    asked = (signature(init).parameters.get(name) for init in inits)
    return any(one is not None and one.default == value for one in asked)


class _Settings(NamedTuple):
    """The settings of a pool's connections."""

    all: dict[str, Any]
    files: Optional[Files]

    @property
    def scheme(self) -> str:
        return "redis" if self.files is None else "rediss"

    @property
    def database(self) -> int:
        return self.all.get("db") or 0

    def login(self) -> tuple[str, str]:
        """User and password, quoted for a URL.

        Without a user, it is named: a server that asks for no password takes any from that user,
        as with redis-py, and refuses one without a name.
        """
        user, password = self.all.get("username"), self.all.get("password")
        provider = self.all.get("credential_provider")
        if provider is not None:
            if not _is(_class(provider), "UsernamePasswordCredentialProvider"):
                raise _Unclear("its credential_provider may return another login each time")
            user, password = provider.username, provider.password
        return _quoted(user or ("default" if password else "")), _quoted(password or "")

    def secret(self) -> str:
        """The login as the part of a URL before the host."""
        user, password = self.login()
        return f"{user}:{password}@" if user or password else ""

    def place(self) -> str:
        # A pool that was made without one has the default of redis-py.
        host = self.all.get("host", "localhost")
        if not host:
            raise _Unclear("it names no host")
        host = f"[{host}]" if ":" in host else host
        return f"{host}:{self.all.get('port') or 6379}"

    def tcp(self) -> Server:
        url = f"{self.scheme}://{self.secret()}{self.place()}/{self.database}"
        return Server(url, self.files)

    def socket(self) -> Server:
        path = self.all.get("path")
        if not path:
            raise _Unclear("it names no path")
        user, password = self.login()
        fields = [("user", user), ("pass", password), ("db", self.database)]
        query = "&".join(f"{key}={value}" for key, value in fields if value)
        return Server(f"unix://{quote(path)}" + (f"?{query}" if query else ""))


def _group(pool: Any, master: _Settings) -> Server:
    """The master of a group under Sentinel."""
    manager: Any = pool.sentinel_manager
    if not pool.is_master:
        raise _Unclear("it is for a replica, and only the master grants locks")
    kind = _class(manager)
    if not _is(kind, "Sentinel"):
        raise _Unclear(f"its Sentinels are of the unknown class {kind.__name__}")
    if getattr(manager, "_force_master_ip", None):
        raise _Unclear("its force_master_ip would not be used")
    sentinels = [_settings(one)[2] for one in manager.sentinels]
    if not sentinels:
        raise _Unclear("it has no Sentinels")
    if len({(one.login(), one.files) for one in sentinels}) > 1:
        raise _Unclear("its Sentinels differ in their login or in TLS")
    if sentinels[0].files != master.files:
        raise _Unclear("the master and the Sentinels differ in TLS")
    places = ",".join(one.place() for one in sentinels)
    user, password = sentinels[0].login()
    fields = [("sentinel_username", user), ("sentinel_password", password)]
    query = "&".join(f"{key}={value}" for key, value in fields if value)
    name, database = _quoted(pool.service_name), master.database
    url = f"{master.scheme}+sentinel://{master.secret()}{places}/{name}/{database}"
    return Server(url + (f"?{query}" if query else ""), master.files)


def _quoted(value: object) -> str:
    return quote(value if isinstance(value, (str, bytes)) else str(value), safe="")
