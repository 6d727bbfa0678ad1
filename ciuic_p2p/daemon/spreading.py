"""The stripes of one put, until each of their shards is with the peer that should hold it. Knows neither files nor versions."""

from __future__ import annotations

from collections.abc import Callable

from ciuic_p2p.core.messages import Message
from ciuic_p2p.core.placement import Holder
from ciuic_p2p.core.stripes import Stripe, assign
from ciuic_p2p.daemon.copying import Copying
from ciuic_p2p.daemon.holdings import Holdings
from ciuic_p2p.terms import PeerId, ShardId


class Spreading(Copying):
    """Lives in the event loop's thread. What `Copying` is for copies: who declines, dies or stalls is replaced."""

    def __init__(
        self,
        me: PeerId,
        holdings: Holdings,
        send: Callable[[PeerId, Message], None],
        name_of: Callable[[PeerId], str],
    ) -> None:
        """send: raises PeerUnreachable."""
        super().__init__(me, holdings, send, name_of, replicas=1)
        self._stripe_of: dict[ShardId, Stripe] = {}

    def add_stripe(self, stripe: Stripe) -> None:
        """All of it is durable here."""
        for shard in stripe.shards:
            self._stripe_of.setdefault(shard, stripe)
        for shard, size_bytes in zip(stripe.shards, stripe.sizes, strict=True):
            self.add(shard, size_bytes)

    def _choose(self, shard: ShardId, size_bytes: int, able: list[Holder], holding: set[PeerId]) -> tuple[PeerId, ...]:
        stripe = self._stripe_of[shard]
        holders = {each: self._holdings.holders_of(each) for each in stripe.shards}
        keeping = {peer for each in holders.values() for peer in each}
        roomy = [holder for holder in able if holder.peer in keeping or holder.free_bytes >= stripe.width]
        wanted = zip(stripe.shards, assign(stripe, roomy, holders), strict=False)
        return tuple(dict.fromkeys(peer for each, peer in wanted if each == shard))

    def _is_enough(self, shard: ShardId, holding: set[PeerId], needed: int) -> bool:
        """This peer has all of it in the beginning, which is what the others are for."""
        return bool(self._targets[shard]) and holding.issuperset(self._targets[shard])
