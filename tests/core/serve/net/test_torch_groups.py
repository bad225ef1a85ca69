"""Process groups of torch: what gloo does when something is wrong, and how NCCL is driven."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest

from coral.core.serve.net.communicator import PathBroken
from coral.core.serve.net.routable import interface_of

torch = pytest.importorskip("torch", reason="the groups are torch's")

from coral.core.serve.net.torch_backends import FOREVER, GlooBackend, NcclBackend  # noqa: E402
from coral.core.serve.net.torch_groups import TorchCommunicator, TorchMaker  # noqa: E402
from coral.core.serve.net.torch_store import dialled, distributed  # noqa: E402

HOST = "127.0.0.1"
SOON_S = 20.0
"""For what is quick, on a machine that does much else."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


Pair = tuple[TorchCommunicator, TorchCommunicator]
Paired = Callable[..., Pair]


@pytest.fixture
def paired(pool: ThreadPoolExecutor) -> Iterator[Paired]:
    ends: list[TorchCommunicator] = []

    def pair(to: TorchMaker, of: TorchMaker | None = None, name: str = "n") -> Pair:
        receiver = pool.submit(to.receiver, name)
        sender = pool.submit((of or to).sender, name, to.address)
        ends.extend(both := (sender.result(SOON_S * 3), receiver.result(SOON_S * 3)))
        return both

    yield pair
    for end in ends:
        end.abort()


def gloo(patience_s: float = 60.0, host: str = HOST) -> TorchMaker:
    return TorchMaker("gloo", host, GlooBackend(host, patience_s), patience_s)


def test_a_receiver_may_be_busy_for_longer_than_ends_wait_for_each_other(
    paired: Paired, pool: ThreadPoolExecutor
) -> None:
    """The group was given three seconds to be made; gloo would take them for every operation as well, and
    close the pair for good."""
    sender, receiver = paired(gloo(patience_s=3.0))
    sent = pool.submit(sender.send, b"abc")
    time.sleep(4.0)
    assert bytes(receiver.recv(3)) == b"abc"
    sent.result(SOON_S)


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_abort_is_noticed_at_both_ends_at_once(who: str, paired: Paired, pool: ThreadPoolExecutor) -> None:
    sender, receiver = paired(gloo())
    if who == "sender":
        waiting: list[Future[Any]] = [pool.submit(sender.send, bytes(1 << 20))]
    else:
        waiting = [pool.submit(receiver.recv, 8)]
    time.sleep(0.2)
    began = time.monotonic()
    (receiver if who == "sender" else sender).abort()
    assert time.monotonic() - began < 5, "it waits for nobody"
    for one in waiting:
        with pytest.raises(PathBroken):
            one.result(SOON_S)
    for use in (lambda: sender.send(b"x"), lambda: receiver.recv(1)):
        with pytest.raises(PathBroken):
            use()


def test_abort_wakes_whoever_waits_at_the_same_end(paired: Paired, pool: ThreadPoolExecutor) -> None:
    _, receiver = paired(gloo())
    waiting = pool.submit(receiver.recv, 8)
    time.sleep(0.2)
    receiver.abort()
    with pytest.raises(PathBroken):
        waiting.result(SOON_S)


def test_a_sender_that_does_not_come_holds_nobody_up(paired: Paired, pool: ThreadPoolExecutor) -> None:
    """Ends that wait at one store, of whom one waits in vain."""
    to = gloo(patience_s=8.0)
    in_vain = pool.submit(to.receiver, "never")
    time.sleep(0.3)
    sender, receiver = paired(to)
    assert not in_vain.done()
    sent = pool.submit(sender.send, b"abc")
    assert bytes(receiver.recv(3)) == b"abc"
    sent.result(SOON_S)
    with pytest.raises(PathBroken, match="no group never"):
        in_vain.result(SOON_S * 2)


def test_everything_listens_at_the_pinned_address_alone(paired: Paired) -> None:
    def listening() -> set[tuple[str, int]]:
        connections = psutil.Process().net_connections(kind="tcp")
        return {(one.laddr.ip, one.laddr.port) for one in connections if one.status == psutil.CONN_LISTEN}

    before = listening()
    to = gloo(host="127.0.0.3")
    paired(to, gloo(host="127.0.0.2"))
    found = {address for address, _ in listening() - before}
    assert found == {"127.0.0.3", "127.0.0.2"}
    assert to.address.startswith("gloo@127.0.0.3:")


def test_a_pair_leaves_nothing_in_the_store(paired: Paired) -> None:
    to = gloo()
    _, receiver = paired(to)
    seen = dialled(to.address.partition("@")[2], "", 10.0).underlying_store
    assert len(seen.list_keys()) == 2
    receiver.abort()
    assert seen.list_keys() == []


def test_no_default_group_is_made(paired: Paired) -> None:
    paired(gloo())
    assert not distributed().is_initialized()


class StandInWork:
    """Ends when both sides have posted, and then only for those who ask whether it has."""

    def __init__(self) -> None:
        self.met = threading.Event()
        self.fault: str | None = None

    def is_completed(self) -> bool:
        return self.met.is_set() or self.fault is not None

    def exception(self) -> str | None:
        return self.fault

    def wait(self, *_: object) -> None:
        raise AssertionError("a wait could be for ever")


class StandInNccl:
    """The methods of ProcessGroupNCCL that are used, over the memory of this process; one pair at a time."""

    meeting: ClassVar[queue.SimpleQueue[tuple[Any, StandInWork]]] = queue.SimpleQueue()
    made: ClassVar[list[StandInNccl]] = []

    class Options:
        def __init__(self) -> None:
            self._timeout = timedelta(0)
            self.config = SimpleNamespace(blocking=1)

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        assert size == 2
        store.set(str(rank), "here")
        store.wait([str(1 - rank)])
        self.options = options
        self.pending: list[StandInWork] = []
        self.aborted = threading.Event()
        self.made.append(self)

    def send(self, tensors: list[Any], to: int, tag: int) -> StandInWork:
        return self._posted(lambda work: self.meeting.put((tensors[0], work)))

    def recv(self, tensors: list[Any], of: int, tag: int) -> StandInWork:
        def meet(work: StandInWork) -> None:
            def take() -> None:
                sent, other = self.meeting.get()
                tensors[0].copy_(sent)
                other.met.set()
                work.met.set()

            threading.Thread(target=take, daemon=True).start()

        return self._posted(meet)

    def abort(self) -> None:
        self.aborted.set()
        threading.Event().wait(60)  # as it may where the other end is gone

    def shutdown(self) -> None:
        raise AssertionError("only abort returns where the other end is gone")

    def _posted(self, post: Callable[[StandInWork], None]) -> StandInWork:
        work = StandInWork()
        self.pending.append(work)
        post(work)
        return work


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> TorchMaker:
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    monkeypatch.setattr("coral.core.serve.net.torch_backends.ABORT_S", 0.2)
    StandInNccl.made.clear()
    monkeypatch.setattr(StandInNccl, "meeting", queue.SimpleQueue())
    return TorchMaker("nccl", HOST, NcclBackend("cpu", interface_of(HOST), StandInNccl), 20.0)


def test_nccl_is_driven_as_it_says(nccl: TorchMaker, paired: Paired, pool: ThreadPoolExecutor) -> None:
    """The first operation connects, so it is done while the pair is made; the interface is pinned; no
    operation has a deadline at which the library would end the process; nothing waits in the library."""
    assert nccl.address.startswith(f"nccl@{HOST}:")
    sender, receiver = paired(nccl)
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "2"
    assert [len(group.pending) for group in StandInNccl.made] == [1, 1]
    assert all(group.options._timeout == FOREVER for group in StandInNccl.made)
    assert all(group.options.config.blocking == 0 for group in StandInNccl.made)
    for data in (b"abc", bytes(1 << 16)):
        sent = pool.submit(sender.send, data)
        assert bytes(receiver.recv(len(data))) == data
        sent.result(SOON_S)


def test_nccl_is_aborted_and_never_destroyed(
    nccl: TorchMaker, paired: Paired, pool: ThreadPoolExecutor
) -> None:
    sender, receiver = paired(nccl)
    waiting = pool.submit(receiver.recv, 8)
    time.sleep(0.1)
    began = time.monotonic()
    receiver.abort()
    assert time.monotonic() - began < 10, "also where abort does not return"
    with pytest.raises(PathBroken, match="aborted"):
        waiting.result(SOON_S)
    aborted = [group for group in StandInNccl.made if group.aborted.is_set()]
    assert len(aborted) == 1
    assert aborted[0] in NcclBackend.ended, "its destructor is never run"
    assert not sender._aborted


def test_a_fault_that_nccl_tells_breaks_the_pair(
    nccl: TorchMaker, paired: Paired, pool: ThreadPoolExecutor
) -> None:
    _, receiver = paired(nccl)
    waiting = pool.submit(receiver.recv, 8)
    deadline = time.monotonic() + SOON_S
    while not any(len(group.pending) == 2 for group in StandInNccl.made):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    next(group for group in StandInNccl.made if len(group.pending) == 2).pending[-1].fault = "remote error"
    with pytest.raises(PathBroken, match="remote error"):
        waiting.result(SOON_S)
