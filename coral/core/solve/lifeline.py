"""A pipe whose closing ends a process group, done by the kernel.

The parent holds the writing end and never writes. When the last holder is gone, however it went, the kernel
sends SIGKILL to the group of the child that tied itself to the reading end: to a child that hangs inside a
library with the interpreter's lock held, and to what that child has started. (The kernel's other means,
`PR_SET_PDEATHSIG`, fires already when the *thread* that started the child ends.)
"""

from __future__ import annotations

import fcntl
import os
import signal
from select import POLLHUP, poll


def tie_to(reading_end: int) -> None:
    """In the child, the leader of its own process group: end with whoever holds the writing end."""
    fcntl.fcntl(reading_end, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(reading_end, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(reading_end, fcntl.F_GETFL)
    fcntl.fcntl(reading_end, fcntl.F_SETFL, flags | os.O_ASYNC)
    waiting = poll()
    waiting.register(reading_end, POLLHUP)
    if waiting.poll(0):  # it was gone before the kernel was asked
        os.killpg(os.getpgrp(), signal.SIGKILL)
