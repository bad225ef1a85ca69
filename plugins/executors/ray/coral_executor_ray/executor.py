"""A `concurrent.futures.Executor` whose calls are Ray tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from concurrent.futures import wait as all_ended
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from coral_executor_ray.cluster import join, leave

if TYPE_CHECKING:
    from coral_executor_ray.options import RayOptions

P = ParamSpec("P")
T = TypeVar("T")


class RayExecutor(Executor):
    """The cluster is joined with the first call and left at the shutdown: without work none is started.

    A worker or machine that dies breaks its call with BrokenExecutor. A `with` block that ends by an
    exception calls off what still runs.
    """

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._ray: ModuleType | None = None
        self._call: Any = None
        self._ended = False
        self._running: dict[Future[Any], Any] = {}

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._ended:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._ray is None:
                self._ray = join(self._options)
                self._call = self._ray.remote(max_retries=0)(_call)
            reference = self._call.remote(fn, args, kwargs)
            self._running[future] = reference
        future.set_running_or_notify_cancel()
        reference.future().add_done_callback(lambda done: self._settle(future, done))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._ended = True
            running = dict(self._running)
            ray, self._ray = self._ray, None
            self._call = None
        if ray is None:
            return
        if cancel_futures:
            for reference in running.values():
                ray.cancel(reference, force=True)
        last = threading.Thread(target=_leave_after, args=(ray, list(running)))
        last.start()
        if wait:
            last.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(wait=True, cancel_futures=kind is not None)

    def _settle(self, future: Future[Any], done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(_plain(error))
        with self._lock:
            self._running.pop(future, None)


def _call(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return fn(*args, **kwargs)


def _leave_after(ray: ModuleType, running: list[Future[Any]]) -> None:
    all_ended(running)
    leave(ray)


def _plain(error: BaseException) -> BaseException:
    """What the function itself raised, or BrokenExecutor for what went wrong around it."""
    from ray.exceptions import RayError, RayTaskError

    if isinstance(error, RayTaskError):
        cause: BaseException = error.cause
        return cause
    if isinstance(error, RayError):
        broken = BrokenExecutor(f"Ray: {error}")
        broken.__cause__ = error
        return broken
    return error


def build(options: RayOptions) -> RayExecutor:
    return RayExecutor(options)
