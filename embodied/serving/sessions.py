"""Sessions of a server's clients, which expire, and their connections, all bounded."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from embodied.serving.rate_limits import Bucket, Rates

ROBOT, SIMULATOR, TOOL = "robot", "simulator", "tool"
PRIORITIES = (ROBOT, SIMULATOR, TOOL)

_MAX_PER_CONNECTION = 64
_MAX_CONNECTIONS = 4096

Key = tuple[str, str]


@dataclass(eq=False)
class Session:
    """One client of one caller.

    Attributes:
        key: Name of the caller and the client's own name, so that no caller can take over another's session.
        peer: Connection of its last message.
        heard: Time of its last message.
        spoken: Time of the last heartbeat sent to it.
        priority: `robot`, `simulator` or `tool`.
        outcome: Number of its last outcome that was counted.
        agents: Policy to the agents that its last `hello` named, as indices in `EnvSpec.agents`.
    """

    key: Key
    peer: bytes
    heard: float
    spoken: float
    priority: str = SIMULATOR
    outcome: int = 0
    agents: dict[str, frozenset[int]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name of the session in statuses."""
        caller, name = self.key
        return f"{caller}/{name}" if caller else name


@dataclass(eq=False)
class _Connection:
    heard: float
    messages: Bucket
    bytes: Bucket
    sessions: OrderedDict[Key, None] = field(default_factory=OrderedDict)


class Sessions:
    """Sessions of a server, the longest silent first.

    In a full table the longest silent session is dropped; it loses its priority and the number of its last outcome. A
    connection with too many names loses its own sessions.

    Args:
        most: Most sessions.
        heartbeat_s: How often a session is sent a heartbeat.
        expire_s: Silence after which a session, or a connection, is dropped.
        rates: Rate limits of one connection.
        now: Seconds.
    """

    def __init__(self, most: int, heartbeat_s: float, expire_s: float, rates: Rates, now: float) -> None:
        self._most, self._heartbeat_s, self._expire_s, self._rates = most, heartbeat_s, expire_s, rates
        self._sessions: OrderedDict[Key, Session] = OrderedDict()
        self._connections: OrderedDict[bytes, _Connection] = OrderedDict()
        self._look = now

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def __contains__(self, session: Session) -> bool:
        return self._sessions.get(session.key) is session

    def charge(self, peer: bytes, size: int, now: float) -> float:
        """Count a message against its connection's rates; returns the seconds it should have waited, 0 for none."""
        line = self._connection(peer, now)
        return line.messages.spend(1, now) or (line.bytes.spend(size, now) if size else 0.0)

    def hear(self, peer: bytes, caller: str, name: str, now: float) -> Session:
        """Session of a message's sender, made where it is unknown. A client without a name is its connection."""
        key = (caller, name or f"unnamed-{peer.hex()}")
        session = self._sessions.get(key)
        if session is None:
            self._make_room(self._connection(peer, now))
            session = self._sessions[key] = Session(key, peer, now, now)
            self._connections[peer].sessions[key] = None
        elif session.peer != peer:
            self._leave(session)
            session.peer = peer
            self._connection(peer, now).sessions[key] = None
        session.heard = now
        self._sessions.move_to_end(key)
        return session

    def forget(self, session: Session) -> None:
        if session in self:
            del self._sessions[session.key]
            self._leave(session)

    def tick(self, now: float) -> list[Session]:
        """Drop silent sessions; returns the sessions that are due a heartbeat."""
        if now < self._look:
            return []
        self._look = now + self._heartbeat_s / 4
        while self._sessions and now - (first := next(iter(self))).heard >= self._expire_s:
            self.forget(first)
        while self._connections and now - next(iter(self._connections.values())).heard >= self._expire_s:
            self._connections.popitem(last=False)
        due = [session for session in self if now - session.spoken >= self._heartbeat_s]
        for session in due:
            session.spoken = now
        return due

    def _connection(self, peer: bytes, now: float) -> _Connection:
        line = self._connections.get(peer)
        if line is None:
            if len(self._connections) >= _MAX_CONNECTIONS:
                self._connections.popitem(last=False)
            messages, size = Bucket(self._rates.messages, now), Bucket(self._rates.bytes, now)
            line = self._connections[peer] = _Connection(now, messages, size)
        line.heard = now
        self._connections.move_to_end(peer)
        return line

    def _make_room(self, line: _Connection) -> None:
        if len(line.sessions) >= _MAX_PER_CONNECTION:
            self.forget(self._sessions[next(iter(line.sessions))])
        elif len(self._sessions) >= self._most:
            self.forget(next(iter(self)))

    def _leave(self, session: Session) -> None:
        line = self._connections.get(session.peer)
        if line is not None:
            line.sessions.pop(session.key, None)
