"""The hardware catalogue is whole and names what it lacks."""

from __future__ import annotations

import msgspec
import pytest

from coral.core.profile import catalogue
from coral.errors import ProfileError


def test_every_gpu_has_figures_and_says_where_they_come_from() -> None:
    for name, gpu in catalogue.gpus().items():
        assert gpu.name == name
        assert 10e9 < gpu.memory_bytes < 300e9
        assert 1e11 < gpu.memory_bytes_per_s < 1e13
        assert gpu.flops["float16"] > gpu.flops["float32"] > 0
        assert gpu.link_bytes_per_s > 0
        assert gpu.link_latency_s > 0
        assert len(catalogue.gpu_source(name)) > 20


def test_every_machine_type_has_a_known_gpu_and_a_network() -> None:
    for name, kind in catalogue.machine_types().items():
        assert kind.name == name
        assert kind.gpu in catalogue.gpus()
        assert kind.gpus in (1, 2, 4, 8, 16)
        assert kind.nic_bytes_per_s > 0
        assert 0 < kind.nic_latency_s < 1e-3


def test_figures_of_a_known_machine() -> None:
    kind = catalogue.machine_type("g6e.12xlarge")
    assert (kind.gpu, kind.gpus, kind.nic_bytes_per_s) == ("L40S", 4, 12.5e9)


def test_an_unknown_name_has_near_misses() -> None:
    with pytest.raises(ProfileError, match="A100-80G") as caught:
        catalogue.gpu("A100-80G")
    assert "A100-80GB" in (caught.value.mend or "")
    with pytest.raises(ProfileError, match=r"g6e\.13xlarge"):
        catalogue.machine_type("g6e.13xlarge")


def test_a_gpu_has_one_description() -> None:
    one = catalogue.gpu("L4")
    assert catalogue.distinct([one, one]) == {"L4": one}
    with pytest.raises(ProfileError, match="two clouds describe GPU 'L4' in different ways"):
        catalogue.distinct([one, msgspec.structs.replace(one, memory_bytes=1)])


def test_an_unknown_gpu_says_where_its_figures_go() -> None:
    with pytest.raises(ProfileError, match="in the cloud's `gpus`"):
        catalogue.gpu("L5")
