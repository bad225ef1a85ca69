"""A module whose import starts a thread: nothing may be forked from a process that has imported it."""

from __future__ import annotations

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
