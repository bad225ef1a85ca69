"""A solver in a process of its own, kept between solves and killed at a hard deadline."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import asdict, replace

from coral.core.plugins import PluginRecord
from coral.core.solve.frames import Answer, Ask, Failed, Found, Message, Ready
from coral.core.solve.memory import available_bytes
from coral.core.solve.process import SolverProcess
from coral.errors import CoralError, PluginError, ProtocolError, SolverError, UsageError
from coral.hookspecs.solver import OnIncumbent
from coral.types.program import Floats, Program, Solution, SolverFeatures

START_S = 60.0
"""How long its process may take to build the solver."""
ENDING_S = 2.0
"""How long a process that has closed its socket may take to be gone, until it is killed."""
LEAST_MARGIN_S = 2.0
MARGIN = 0.1
"""What a solve may take beyond its own time limit: so long at least, or this share of the limit."""

FEASIBILITY = 1e-6
"""Largest violation of a program by a start that still is an incumbent."""
ERRORS: dict[str, type[CoralError]] = {"PluginError": PluginError, "UsageError": UsageError}
"""What a solver raises arrives as this, else as SolverError."""


class Incumbent(NamedTuple):
    x: Floats
    bound: float


def _known(program: Program, start: Floats | None) -> Incumbent | None:
    """The start as a first incumbent, where it is one."""
    if start is None or len(start) != program.columns or program.violation(start) > FEASIBILITY:
        return None
    return Incumbent(np.asarray(start, dtype=np.float64), -math.inf)


def hard_limit_s(time_limit_s: float) -> float:
    return time_limit_s + max(LEAST_MARGIN_S, MARGIN * time_limit_s)


class SupervisedSolver:
    """Solves as the solver of that name does, in a child process.

    The process is started at once, and again where it had to be killed. It is killed when a solve with a
    time limit overruns `hard_limit_s` of it, when its caller leaves a solve by an exception, and by the
    kernel when its caller is gone. A solve that ended so, or by the process' own death, is answered by the
    last incumbent it told of (`feasible`), or by the start where that satisfies the program, else by
    SolverError. Threads take turns.

    `memory_bytes`: most that the solver's process may allocate; where not given, what is available when a
    solve begins, beyond what it holds already. Names of a program's variables are not sent.
    """

    def __init__(
        self,
        name: str,
        options: dict[str, Any],
        record: PluginRecord,
        *,
        memory_bytes: int | None = None,
        start_s: float = START_S,
        hard_limit_s: Callable[[float], float] = hard_limit_s,
    ) -> None:
        self._name = name
        self._options = options
        self._record = record
        self._memory_bytes = memory_bytes
        self._start_s = start_s
        self._hard_limit_s = hard_limit_s
        self._features: SolverFeatures | None = None
        self._lock = threading.Lock()
        self._process: SolverProcess | None = None
        self._start()

    @property
    def features(self) -> SolverFeatures:
        """The solver's own, once it is built, but for what it does to its process."""
        with self._lock:
            if self._features is None:
                self._ready()
        assert self._features is not None
        return self._features

    @property
    def pid(self) -> int | None:
        """The process of the next solve, where it has been started."""
        return self._process.pid if self._process else None

    def solve(
        self,
        program: Program,
        *,
        work_limit: int | None,
        time_limit_s: float | None,
        gap: float,
        start: Floats | None = None,
        on_incumbent: OnIncumbent | None = None,
    ) -> Solution:
        """See `coral.hookspecs.solver.Solver`. Also raises what the solver's own `build` raises."""
        ask = Ask(work_limit=work_limit, time_limit_s=time_limit_s, gap=gap)
        arrays = {name: value for name, value in asdict(program).items() if name != "names"}
        if start is not None:
            arrays["start"] = np.asarray(start, dtype=np.float64)
        with self._lock:
            process = self._ready()
            if self._memory_bytes is None and (more := available_bytes()) is not None:
                process.grow_by(more)
            began = time.monotonic()
            deadline = None if time_limit_s is None else began + self._hard_limit_s(max(0.0, time_limit_s))
            last: Incumbent | None = None
            try:
                process.frames.send(ask, arrays, deadline)
                while True:
                    message, found = process.frames.receive(deadline)
                    if not isinstance(message, Found):
                        break
                    last = Incumbent(found["x"], message.bound)
                    if on_incumbent is not None:
                        on_incumbent(last.x.copy(), last.bound)
            except TimeoutError:
                self._end()
                why = (
                    f"was killed {time.monotonic() - began:.1f} s into a solve of at most {time_limit_s:g} s"
                )
            except EOFError:
                why = f"took its process down ({self._end(ENDING_S)})"
            except (ProtocolError, KeyError) as error:
                why = f"sent what is no answer ({error})"
            except BaseException:
                self._end()
                raise
            else:
                return self._solution(message, found)
            self._end()
        return self._left_over(program, last or _known(program, start), why, time.monotonic() - began)

    def close(self) -> None:
        """End the process. The next solve starts another."""
        with self._lock:
            self._end()

    def _start(self) -> SolverProcess:
        memory = available_bytes() if self._memory_bytes is None else self._memory_bytes
        try:
            process = SolverProcess(self._name, self._options, self._record, memory)
        except OSError as error:
            raise SolverError(f"no process can be started for solver {self._name!r}: {error}") from error
        self._process = process
        self._finalizer = weakref.finalize(self, process.end)
        return process

    def _end(self, wait_s: float = 0.0) -> str:
        process, self._process = self._process, None
        if process is None:
            return "ended"
        self._finalizer.detach()
        return process.end(wait_s)

    def _ready(self) -> SolverProcess:
        """A process that has built the solver and takes an ask. The lock is held."""
        if self._process is not None and not self._process.alive():
            self._end()  # between two solves, or before the first
        process = self._process or self._start()
        if process.ready:
            return process
        try:
            message, _ = process.frames.receive(time.monotonic() + self._start_s)
        except TimeoutError:
            self._end()
            raise SolverError(f"solver {self._name!r} was not built within {self._start_s:g} s") from None
        except (EOFError, ProtocolError) as error:
            how = self._end(ENDING_S)
            raise SolverError(
                f"the process of solver {self._name!r} died while the solver was built ({how}; {error})"
            ) from error
        except BaseException:
            self._end()
            raise
        if not isinstance(message, Ready):
            self._end()
            raise self._error(message)
        process.ready = True
        self._features = replace(message.features, may_abort_process=False)
        return process

    def _solution(self, message: Message, found: dict[str, Floats]) -> Solution:
        if not isinstance(message, Answer):
            raise self._error(message)
        return Solution(x=found.get("x"), row_duals=found.get("row_duals"), **asdict(message))

    def _error(self, message: Message) -> CoralError:
        if not isinstance(message, Failed):
            return SolverError(f"solver {self._name!r} sent a {type(message).__name__}")
        return ERRORS.get(message.error, SolverError)(message.message, mend=message.mend)

    def _left_over(self, program: Program, last: Incumbent | None, why: str, seconds: float) -> Solution:
        if last is None or len(last.x) != program.columns:
            raise SolverError(
                f"solver {self._name!r} {why}",
                mend="what it printed went to standard error; another solver: `solver: {use: ...}`",
            )
        return Solution(
            status="feasible",
            termination=f"the solver {why}; this is its last incumbent",
            x=last.x,
            objective=float(program.cost @ last.x),
            bound=last.bound,
            seconds=seconds,
            failure=f"solver {self._name!r} {why}",
        )
