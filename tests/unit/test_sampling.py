"""core/sampling.py: which links are measured when there are too many to measure all."""

from __future__ import annotations

from itertools import combinations

import pytest

from ciuic_p2p.core.sampling import MOST_FAR, MOST_NEAR, PROBING_SHARE, probing_period_s, sample_peers
from ciuic_p2p.terms import PeerId


def swarm(regions: int, each: int) -> dict[PeerId, str]:
    return {PeerId(f"peer-{region}-{number}"): f"region-{region}" for region in range(regions) for number in range(each)}


def test_a_small_swarm_measures_all():
    peers = swarm(3, MOST_FAR)
    for me in peers:
        assert sample_peers(me, peers) == set(peers) - {me}


def test_in_a_large_swarm_each_measures_few_and_every_region_pair_is_measured():
    peers = swarm(8, 125)
    samples = {me: sample_peers(me, peers) for me in peers}
    assert max(map(len, samples.values())) == MOST_NEAR + 7 * MOST_FAR
    assert all(me not in sample for me, sample in samples.items())
    crossed = {frozenset((peers[me], peers[other])) for me, sample in samples.items() for other in sample}
    assert crossed >= {frozenset(pair) for pair in combinations(set(peers.values()), 2)}
    # And every peer is measured by somebody.
    assert {other for sample in samples.values() for other in sample} == set(peers)


def test_the_choice_stays_when_others_come_far_away():
    peers = swarm(2, 40)
    me = PeerId("peer-0-7")
    before = sample_peers(me, peers)
    after = sample_peers(me, peers | {PeerId("newcomer"): "region-9"})
    assert after == before | {PeerId("newcomer")}


@pytest.mark.parametrize(("links", "line_mbps", "period_s"), [(5, 100.0, 300.0), (5, 1.0, 2097.152), (130, 10.0, 5452.5952)])
def test_probes_take_no_more_than_their_share_of_a_line(links: int, line_mbps: float, period_s: float):
    probe_bytes = 512 << 10
    found = probing_period_s(links, probe_bytes, line_mbps, 300.0)
    assert found == pytest.approx(period_s)
    assert links * probe_bytes * 8e-6 / found <= PROBING_SHARE * line_mbps * 1.0001
