"""Which tests share a worker where several run side by side (`pytest -n 2`): those of a file, so that what
they share is made once, and all that start whole systems, so that they do not starve one another."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent
SYSTEMS = ("tests/end_to_end", "tests/core/serve", "plugins/engines", "plugins/clouds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        file = item.path.relative_to(ROOT).as_posix()
        group = "systems" if file.startswith(SYSTEMS) else file
        item.add_marker(pytest.mark.xdist_group(group))
