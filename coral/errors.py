"""Every error that Coral raises on purpose.

::

    CoralError                      has `mend`: the next step for whoever reads it
    ├── ConfigError                 all faults of a config, each with its path            exit 2
    ├── UsageError                  a command or call was given something it cannot take  exit 2
    ├── PluginError                 a plugin is missing, broken, doubled or of another API exit 2
    ├── InfeasibleError             nothing that can be rented satisfies what is asked    exit 3
    ├── SourceError                 a model's files cannot be had or read
    ├── ProfileError                a step cost is missing, not finite, or out of range
    │   ├── UnknownDegree           nothing is known of a tensor parallel degree
    │   └── BrokenRun               a measuring run of an engine failed
    ├── LibraryError                a template library is missing, stale or damaged
    ├── StoreError                  what outlives the coordinator cannot be read or written
    ├── SolverError                 a solver failed, aborted, or its answer does not hold
    ├── CloudError
    │   ├── NoCapacity              the offer cannot be had now
    │   ├── QuotaExceeded
    │   └── CloudAuthError
    ├── EngineError                 an engine cannot hold or run what it was given
    │   └── NoRoom                  not enough free KV blocks; nothing was reserved
    ├── ProtocolError               a peer sent what it must not (malformed, wrong version)
    └── RequestError                a request that is refused; has OpenAI's shape
"""

from __future__ import annotations

from collections.abc import Sequence


class CoralError(Exception):
    """Base of all errors raised on purpose: the thing, the place and the next step."""

    exit_code = 1

    def __init__(self, message: str, *, mend: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.message}\n  {self.mend}" if self.mend else self.message


class UsageError(CoralError):
    exit_code = 2


class Fault:
    """One thing wrong with a config: where, what, and what to do about it."""

    __slots__ = ("mend", "message", "path")

    def __init__(self, path: str, message: str, mend: str | None = None) -> None:
        self.path = path
        self.message = message
        self.mend = mend

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message}" + (f" ({self.mend})" if self.mend else "")

    def __repr__(self) -> str:
        return f"Fault({str(self)!r})"


class ConfigError(CoralError):
    """All faults of one config, never only the first."""

    exit_code = 2

    def __init__(self, faults: Sequence[Fault], source: str | None = None) -> None:
        self.faults = tuple(faults)
        self.source = source
        head = f"{len(self.faults)} fault(s)" + (f" in {source}" if source else "")
        super().__init__("\n".join([head, *(f"  {fault}" for fault in self.faults)]))


class PluginError(CoralError):
    exit_code = 2


class InfeasibleError(CoralError):
    exit_code = 3


class SourceError(CoralError):
    pass


class ProfileError(CoralError):
    pass


class UnknownDegree(ProfileError):
    """Nothing is known of a tensor parallel degree; of others, there is."""


class BrokenRun(ProfileError):
    """A measuring run failed, hung, or left what cannot be read: not that nothing is known."""


class LibraryError(CoralError):
    pass


class StoreError(CoralError):
    pass


class SolverError(CoralError):
    pass


class CloudError(CoralError):
    pass


class NoCapacity(CloudError):
    pass


class QuotaExceeded(CloudError):
    pass


class CloudAuthError(CloudError):
    pass


class EngineError(CoralError):
    pass


class NoRoom(EngineError):
    pass


class ProtocolError(CoralError):
    pass


class RequestError(CoralError):
    """A request that is refused, in the shape OpenAI's clients expect.

    `status` is the HTTP status, `param` the field at fault, `code` OpenAI's machine-readable word,
    `retry_after_s` what a 429 or 503 tells the client to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
