"""Base of the contract suites: their tests hold for every plugin, unless one says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_REASON = "_overrides_contract"


def overrides_contract(*, reason: str) -> Callable[[F], F]:
    """Mark a test that takes the place of one of the contract's, with the reason why it must."""
    if not reason.strip():
        raise ValueError("a contract test is overridden for a stated reason only")

    def mark(test: F) -> F:
        setattr(test, _REASON, reason)
        return test

    return mark


class Contract:
    """A suite. Subclasses define its fixtures and may add tests."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name, value in vars(cls).items():
            if not name.startswith("test"):
                continue
            suite = next((base for base in cls.__mro__[1:] if name in vars(base)), None)
            if suite is not None and not getattr(value, _REASON, None):
                raise TypeError(
                    f"{cls.__name__}.{name} overrides a test of {suite.__name__}: "
                    "mark it with @overrides_contract(reason=...), or give it another name"
                )

    def _undefined(self, fixture: str) -> NoReturn:
        raise LookupError(f"{type(self).__name__} has to define the fixture `{fixture}`")
