"""What a proxy does at which point of a conversation."""

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


class Phase(enum.Enum):
    """When a rule acts."""

    BEFORE = "before"
    """The request was read whole; the server has not seen it."""
    AFTER = "after"
    """The server has answered; the client has not seen the reply."""


class Deed(enum.Enum):
    """What a rule does once its call has returned."""

    PASS = "pass"
    """Go on as if there were no rule (for rules that only call)."""
    CUT = "cut"
    """Close both sides: before = the request never ran, after = it ran and nobody knows."""
    HOLD = "hold"
    """Hang until `Rule.release` is set or the client gives up, then go on."""
    ERROR = "error"
    """Answer with the rule's error and do not forward the request (phase BEFORE only)."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the rules see it."""

    kind: str
    """What it is for, by the protocol's own classification."""
    text: str
    """The statement, or the command with its arguments; undecodable bytes replaced."""
    connection: int
    """Number of the client connection, from 1."""


@dataclass(eq=False)
class Rule:
    """One thing to do at one point; made by `Proxy.when`."""

    kind: str
    phase: Phase
    deed: Deed
    call: Callable[[Request], object] | None = None
    """Called before the deed."""
    skip: int = 0
    """Matches to let pass first."""
    times: int = 1
    """Matches to act on after that; 0 = all."""
    error: int | str = 0
    where: Callable[[Request, bytes], bool] | None = None
    """Narrows it, by request and reply."""
    label: str = ""
    """What kind of fault this is, for the count of them."""
    matched: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    """Set as soon as the rule acts (before `call`)."""
    done: threading.Event = field(default_factory=threading.Event)
    """Set when `call` has returned and the deed has begun."""
    release: threading.Event = field(default_factory=threading.Event)
    """Set by the test to let a held request go on."""

    def __post_init__(self) -> None:
        if not self.label:
            of_cut = "reply lost" if self.phase is Phase.AFTER else "connection cut"
            labels = {Deed.CUT: of_cut, Deed.ERROR: f"error {self.error}"}
            self.label = labels.get(self.deed, self.deed.value)

    @property
    def acted(self) -> int:
        """How many times the rule has acted."""
        acted = max(0, self.matched - self.skip)
        return min(acted, self.times) if self.times else acted

    def takes(self, request: Request, phase: Phase, reply: bytes) -> bool:
        """Count a match, and tell whether it is one to act on."""
        if self.phase is not phase or self.kind not in ("*", request.kind):
            return False
        if self.where is not None and not self.where(request, reply):
            return False
        self.matched += 1
        acted = self.matched - self.skip
        return acted > 0 and (not self.times or acted <= self.times)
