"""What a draft asks of lines, cables and processors, in values.

Each topology is counted in its own way, by regions and not pair by pair: all are trees, but of very different numbers of
edges, and a thousand peers must cost no more than their spans.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ciuic_p2p.core.messages import HIERARCHICAL, RING
from ciuic_p2p.core.planning.draft import Draft
from ciuic_p2p.core.planning.network import Ground


@dataclass(frozen=True, slots=True)
class Loads:
    """What a draft asks of the network, in values. Per peer, by number."""

    up: list[int]
    down: list[int]
    encoded: list[int]
    decoded: list[int]
    flows: list[int]
    """How many peers it sends to while the round is under way."""
    cables: dict[tuple[int, int], int] = field(default_factory=dict)
    """(region, region): from the first to the second."""
    cable_flows: dict[tuple[int, int], int] = field(default_factory=dict)
    pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    """(region, region), the lower number first: the most that one pair of their peers carries one way."""
    depth: int = 1
    """Levels of the trees."""
    latency_ms: float = 0.0
    """Up the longest tree and down again."""


def count_loads(draft: Draft, ground: Ground, count: int) -> Loads:
    """Of a whole round of `count` values."""
    if draft.topology == HIERARCHICAL:
        return _count_hierarchy(draft, ground, count)
    if draft.topology == RING:
        return _count_ring(draft, ground, count)
    return _count_direct(draft, ground, count)


def _owned(draft: Draft, peers: int) -> list[int]:
    owned = [0] * peers
    for piece in draft.pieces:
        owned[piece.owner] += piece.count
    return owned


def _of_regions(ground: Ground, values: list[int]) -> list[int]:
    found = [0] * len(ground.regions)
    for peer, value in enumerate(values):
        found[ground.region_of[peer]] += value
    return found


def _count_direct(draft: Draft, ground: Ground, count: int) -> Loads:
    """Butterfly and star."""
    peers, listeners = len(ground.peers), ground.listener_count
    owned = _owned(draft, peers)
    loads = Loads(
        up=[count - mine + mine * (peers - 1 + listeners) for mine in owned],
        down=[count - mine + mine * (peers - 1) for mine in owned],
        encoded=[count + mine for mine in owned],
        decoded=[count + mine * peers for mine in owned],
        flows=_flows_to_owners(owned, listeners),
        latency_ms=_longest_ms(ground, {ground.region_of[peer] for peer, mine in enumerate(owned) if mine}),
    )
    of_regions = _of_regions(ground, owned)
    owners = _of_regions(ground, [int(mine > 0) for mine in owned])
    most = [max((owned[peer] for peer in members), default=0) for members in ground.members]
    for one, members in enumerate(ground.members):
        for other, others in enumerate(ground.members):
            key, pair = (one, other), (min(one, other), max(one, other))
            receivers = len(others) + ground.listeners[other]
            if one != other:
                loads.cables[key] = len(members) * of_regions[other] + of_regions[one] * receivers
                loads.cable_flows[key] = len(members) * owners[other] + owners[one] * (receivers - owners[other])
            if members and others and (one != other or len(members) > 1):
                loads.pairs[pair] = most[one] + (most[other] if one != other else _second(owned, members))
    return loads


def _second(owned: list[int], members: tuple[int, ...]) -> int:
    return sorted(owned[peer] for peer in members)[-2]


def _flows_to_owners(owned: list[int], listeners: int) -> list[int]:
    owners = sum(mine > 0 for mine in owned)
    return [(len(owned) - 1 + listeners) if mine else owners for mine in owned]


def _longest_ms(ground: Ground, owners: set[int]) -> float:
    """The longest round trip between a peer and an owner. owners: regions that have any."""
    trips = (
        ground.rtt_between_ms(one, other)
        for one, members in enumerate(ground.members)
        for other in owners
        if members and (one != other or len(members) > 1)
    )
    return max(trips, default=0.0)


def _count_hierarchy(draft: Draft, ground: Ground, count: int) -> Loads:
    peers, groups, listeners = len(ground.peers), len(draft.groups), ground.listener_count
    owned, carried = _owned(draft, peers), [0] * peers
    between: dict[tuple[int, int], int] = {}  # (carrier, owner) → values
    for piece in draft.pieces:
        for carrier in piece.carriers:
            carried[carrier] += piece.count
            if carrier != piece.owner:
                between[carrier, piece.owner] = between.get((carrier, piece.owner), 0) + piece.count
    others = [len(ground.members[region]) - 1 for region in ground.region_of]
    sides = list(zip(owned, carried, others, strict=True))
    loads = Loads(
        up=[count - held + held * near + held - mine + mine * (groups - 1 + listeners) for mine, held, near in sides],
        down=[count - held + held * near + held - mine + mine * (groups - 1) for mine, held, near in sides],
        # A peer alone in its region sums up nothing: its contribution goes on as it is.
        encoded=[count + (held if near else mine) for mine, held, near in sides],
        decoded=[count + (held if near else mine) * (near + 1) + mine * (groups - 1) for mine, held, near in sides],
        flows=_flows_in_hierarchy(ground, carried, owned, between),
        depth=2 if any(others) else 1,
        latency_ms=_hierarchy_ms(ground, draft),
    )
    of_regions = _of_regions(ground, owned)
    for one, members in enumerate(ground.members):
        for other, more in enumerate(ground.members):
            if one != other and members:
                partial_sums = of_regions[other] if more else 0
                loads.cables[one, other] = partial_sums + of_regions[one] * (bool(more) + ground.listeners[other])
        if len(members) > 1:
            loads.pairs[one, one] = sum(sorted(carried[peer] for peer in members)[-2:])
    _count_crossings(loads, ground, between)
    return loads


def _count_crossings(loads: Loads, ground: Ground, between: dict[tuple[int, int], int]) -> None:
    for (carrier, owner), values in between.items():
        one, other = ground.region_of[carrier], ground.region_of[owner]
        pair = (min(one, other), max(one, other))
        loads.pairs[pair] = max(loads.pairs.get(pair, 0), values + between.get((owner, carrier), 0))
        for key in ((one, other), (other, one)):
            loads.cable_flows[key] = loads.cable_flows.get(key, 0) + 1


def _flows_in_hierarchy(ground: Ground, carried: list[int], owned: list[int], between: dict[tuple[int, int], int]) -> list[int]:
    across = [0] * len(carried)
    for pair in between:
        for peer in pair:
            across[peer] += 1
    carriers = _of_regions(ground, [int(held > 0) for held in carried])
    flows = []
    for peer, region in enumerate(ground.region_of):
        near = len(ground.members[region]) - 1 if carried[peer] else carriers[region]
        flows.append(near + across[peer] + (ground.listener_count if owned[peer] else 0))
    return flows


def _hierarchy_ms(ground: Ground, draft: Draft) -> float:
    """Within the region, and from there to the owner's."""
    owning = {ground.region_of[piece.owner] for piece in draft.pieces}
    longest = 0.0
    for region, members in enumerate(ground.members):
        if members:
            near = ground.rtt_between_ms(region, region) if len(members) > 1 else 0.0
            far = max((ground.rtt_between_ms(region, other) for other in owning if other != region), default=0.0)
            longest = max(longest, near + far)
    return longest


def _count_ring(draft: Draft, ground: Ground, count: int) -> Loads:
    peers, listeners = len(ground.peers), ground.listener_count
    order, owned = draft.groups[0], _owned(draft, len(ground.peers))
    before = {peer: order[place - 1] for place, peer in enumerate(order)}
    passed = [count - mine for mine in owned]  # on from each peer to the next, and back as results
    received = [passed[before[peer]] for peer in range(peers)]
    loads = Loads(
        up=[passed[peer] + received[peer] + owned[peer] * listeners for peer in range(peers)],
        down=[passed[peer] + received[peer] for peer in range(peers)],
        encoded=[2 * count] * peers,
        decoded=[2 * count + received[peer] for peer in range(peers)],
        flows=[2 + (listeners if owned[peer] else 0) for peer in range(peers)],
        depth=peers - 1,
        latency_ms=_ring_ms(ground, order),
    )
    of_regions = _of_regions(ground, owned)
    for peer in order:
        one, other = ground.region_of[before[peer]], ground.region_of[peer]
        pair = (min(one, other), max(one, other))
        loads.pairs[pair] = max(loads.pairs.get(pair, 0), passed[before[peer]])
        for key in ((one, other), (other, one)) if one != other else ():
            loads.cables[key] = loads.cables.get(key, 0) + passed[before[peer]]
            loads.cable_flows[key] = loads.cable_flows.get(key, 0) + 1
    for one, values in enumerate(of_regions):
        for other, listening in enumerate(ground.listeners):
            if one != other and listening:
                loads.cables[one, other] = loads.cables.get((one, other), 0) + values * listening
    return loads


def _ring_ms(ground: Ground, order: tuple[int, ...]) -> float:
    """All the way round but for the shortest hop."""
    hops = [
        ground.rtt_between_ms(ground.region_of[here], ground.region_of[there])
        for here, there in zip(order, (*order[1:], order[0]), strict=True)
    ]
    return sum(hops) - min(hops)
