from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.errors import LabError
from gpustate_lab.network import POOLS, Network, choose_subnet, parse_routes, tag_of

networks = st.builds(
    lambda address, length: IPv4Network((address, length), strict=False),
    st.integers(0, 2**32 - 1),
    st.integers(8, 32),
)


@given(st.lists(networks, max_size=30))
def test_the_chosen_subnet_overlaps_no_route(taken: list[IPv4Network]) -> None:
    assert not any(choose_subnet(taken).overlaps(other) for other in taken)


def test_the_next_pool_is_taken_when_the_first_is_routed() -> None:
    assert choose_subnet([IPv4Network("10.0.0.0/8")]) == IPv4Network("172.29.0.0/24")


def test_no_free_subnet_is_one_clear_error() -> None:
    with pytest.raises(LabError, match="no free /24 in"):
        choose_subnet(IPv4Network(pool) for pool in POOLS)


def test_routes_are_read_with_the_default_route_left_out() -> None:
    routes = [{"dst": "default"}, {"dst": "10.217.0.0/24"}, {"dst": "192.0.2.2"}, {}]
    assert list(parse_routes(routes)) == [IPv4Network("10.217.0.0/24"), IPv4Network("192.0.2.2/32")]


def test_names_fit_the_kernel_even_for_the_last_node() -> None:
    network = Network(tag_of(Path("/var/lib/gpustate-lab/lab")), IPv4Network("10.217.0.0/24"))
    assert len(network.bridge) <= 15
    assert len(network.veth(200)) <= 15
    assert len(network.namespace("gpu200")) <= 64
    assert network.address(200) in network.subnet
    assert network.address(1) != network.gateway
