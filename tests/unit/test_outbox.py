"""Every frame is queued or with one lane until it was acknowledged; a lane that breaks gives back what it has, in order."""

from __future__ import annotations

import pytest

from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.net.outbox import LaneShare, Outbox
from ciuic_p2p.terms import PeerId
from ciuic_p2p.testing.swarm import probe

PEER = PeerId("bert")


def filled(count: int) -> Outbox:
    outbox = Outbox()
    assert outbox.put(probe(part, b"") for part in range(count))
    return outbox


def parts(share: LaneShare, count: int) -> list[int]:
    taken = []
    for _ in range(count):
        turn = share.wait_turn()
        assert turn is not None
        assert turn.frame is not None
        taken.append(turn.frame.header.part)
    return taken


def test_lanes_share_one_queue() -> None:
    outbox = filled(4)
    one, other = outbox.share(PEER), outbox.share(PEER)
    assert parts(one, 1) + parts(other, 2) + parts(one, 1) == [0, 1, 2, 3]
    assert outbox.unacknowledged() == 4


def test_what_was_not_acknowledged_is_sent_again_first_and_in_order() -> None:
    outbox = filled(5)
    broken, other = outbox.share(PEER), outbox.share(PEER)
    parts(broken, 4)
    broken.confirmed(1)
    assert broken.abandon()
    assert not broken.abandon()
    assert broken.wait_turn() is None
    assert parts(other, 4) == [1, 2, 3, 4]
    other.confirmed(4)
    assert outbox.unacknowledged() == 0


def test_discarded_frames_are_not_sent_again() -> None:
    outbox = filled(4)
    share = outbox.share(PEER)
    parts(share, 2)
    outbox.discard(lambda header: header.part in {0, 2})
    share.confirmed(0)
    share.abandon()
    assert parts(outbox.share(PEER), 2) == [1, 3]


def test_acknowledgements_count_discarded_frames_too() -> None:
    outbox = filled(3)
    share = outbox.share(PEER)
    parts(share, 3)
    outbox.discard(lambda header: header.part == 0)
    share.confirmed(2)
    share.abandon()
    assert parts(outbox.share(PEER), 1) == [2]


@pytest.mark.parametrize("counts", [[2], [1, 0], [1 << 63]])
def test_acknowledgements_of_what_was_not_sent_are_refused(counts: list[int]) -> None:
    outbox = filled(2)
    share = outbox.share(PEER)
    parts(share, 1)
    *right, wrong = counts
    for count in right:
        share.confirmed(count)
    with pytest.raises(MalformedMessage):
        share.confirmed(wrong)


def test_received_frames_are_acknowledged_once_with_the_next_turn() -> None:
    outbox = filled(2)
    share = outbox.share(PEER)
    share.confirm_received()
    share.confirm_received()
    first, second = share.wait_turn(), share.wait_turn()
    assert first is not None
    assert second is not None
    assert (first.acknowledge, second.acknowledge) == (2, None)
    share.confirm_received()
    third = share.wait_turn()
    assert third is not None
    assert (third.acknowledge, third.frame) == (3, None)


def test_a_closed_outbox_takes_nothing_and_ends_its_lanes() -> None:
    outbox = filled(2)
    share = outbox.share(PEER)
    outbox.close()
    assert share.wait_turn() is None
    assert not outbox.put([probe(9, b"")])
    assert outbox.unacknowledged() == 0


def test_a_frame_that_cannot_be_sent_is_not_counted() -> None:
    outbox = filled(2)
    share = outbox.share(PEER)
    turn = share.wait_turn()
    assert turn is not None
    assert turn.frame is not None
    share.drop(turn.frame)
    parts(share, 1)
    share.confirmed(1)
    assert outbox.unacknowledged() == 0


def test_a_retired_lane_takes_no_more_frames_and_is_drained_at_the_last_acknowledgement() -> None:
    outbox, told = filled(4), []
    retired, other = outbox.share(PEER), outbox.share(PEER)
    parts(retired, 2)
    retired.retire(lambda: told.append("drained"))
    retired.confirm_received()
    turn = retired.wait_turn()
    assert turn is not None
    assert (turn.acknowledge, turn.frame) == (1, None)
    retired.confirmed(1)
    assert told == []
    retired.confirmed(2)
    assert told == ["drained"]
    assert parts(other, 2) == [2, 3]


def test_a_retired_lane_that_breaks_gives_back_what_it_has_and_is_drained() -> None:
    outbox, told = filled(2), []
    retired = outbox.share(PEER)
    parts(retired, 2)
    retired.retire(lambda: told.append("drained"))
    retired.abandon()
    assert told == ["drained"]
    assert parts(outbox.share(PEER), 2) == [0, 1]


def test_a_lane_that_is_retired_with_nothing_under_way_is_drained_at_once() -> None:
    told: list[str] = []
    Outbox().share(PEER).retire(lambda: told.append("drained"))
    assert told == ["drained"]
