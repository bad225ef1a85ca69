"""Requests in flight: routed, followed token by token, moved when their instance fails, ended once.

``table`` is told of everything and delivers tokens; ``placing`` says where a request goes, who waits and
who is refused; ``handover`` takes one from its prefill to its decode instance; ``routes`` keeps
what is on every instance.
"""

from coral.core.serve.coordinator.requests.options import RequestOptions
from coral.core.serve.coordinator.requests.table import RequestTable

__all__ = ["RequestOptions", "RequestTable"]
