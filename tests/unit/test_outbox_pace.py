"""Frames leave no faster than they may, acknowledgements at once, and no lane sleeps on what another should do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.net.outbox import CREDIT_S, TELL_AFTER_S, TELL_FRAMES, LaneShare, Outbox, Turn
from ciuic_p2p.terms import PeerId
from ciuic_p2p.testing.swarm import probe

PEER = PeerId("bert")
FRAME_BYTES = 125_000
MBPS = 10.0
FRAME_S = FRAME_BYTES * 8e-6 / MBPS
PATIENCE_S = 10.0
"""Until a test with real threads fails."""


class VirtualClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class VirtualWake:
    """In place of a lane's condition: who waits moves the clock. Without a limit it would wait for ever."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def wait(self, limit_s: float | None) -> None:
        assert limit_s is not None, "nothing would ever wake it"
        self._clock.now_s += limit_s + 1e-9

    def notify(self) -> None:
        """Nobody else runs."""


class VirtualOutbox:
    """An outbox whose lanes take turns in one thread; every frame is as large as `size_bytes` says."""

    def __init__(self, lanes: int = 1, size_bytes: Callable[[int], int] = lambda _: FRAME_BYTES) -> None:
        self.clock = VirtualClock()
        self.outbox = Outbox(self.clock)
        self.lanes = [self.outbox.share(PEER) for _ in range(lanes)]
        for lane in self.lanes:
            lane._wake = VirtualWake(self.clock)  # type: ignore[assignment]
        self._size_bytes = size_bytes
        self._parts = 0
        self.left: list[tuple[float, int]] = []
        """When, and how large."""

    def put(self, count: int) -> None:
        self.outbox.put(probe(part, b"") for part in range(self._parts, self._parts + count))
        self._parts += count

    def send(self, count: int) -> list[float]:
        """The seconds, from now on, at which the next frames leave."""
        began_s, before = self.clock.now_s, len(self.left)
        while len(self.left) < before + count:
            lane = self.lanes[len(self.left) % len(self.lanes)]
            turn = lane.wait_turn()
            assert turn is not None
            assert turn.frame is not None
            size_bytes = self._size_bytes(turn.frame.header.part)
            lane.spend(size_bytes)
            self.left.append((self.clock.now_s, size_bytes))
        return [at_s - began_s for at_s, _ in self.left[before:]]


# -- the rate, in virtual time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 4])
def test_frames_leave_at_the_rate(lanes: int) -> None:
    virtual = VirtualOutbox(lanes)
    virtual.outbox.pace(MBPS)
    virtual.put(20)
    assert virtual.send(20) == pytest.approx([number * FRAME_S for number in range(20)], abs=1e-6)


def test_without_a_rate_nothing_waits() -> None:
    virtual = VirtualOutbox()
    virtual.put(50)
    assert virtual.send(50) == [0.0] * 50


@given(sizes=st.lists(st.integers(1, 1 << 20), min_size=1, max_size=60), mbps=st.floats(0.5, 1000), lanes=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_no_more_leaves_than_the_rate_allows_but_for_one_frame(sizes: list[int], mbps: float, lanes: int) -> None:
    virtual = VirtualOutbox(lanes, sizes.__getitem__)
    virtual.outbox.pace(mbps)
    virtual.put(len(sizes))
    bytes_per_s = mbps * 125_000
    sent_bytes = 0
    # A frame's size is known when it was taken: what comes before it is paid, and it is taken for as large as the one before.
    for at_s, size_bytes in zip(virtual.send(len(sizes)), sizes, strict=True):
        assert sent_bytes <= at_s * bytes_per_s + 1
        sent_bytes += size_bytes
    assert virtual.clock.now_s - 1000.0 <= sum(sizes) / bytes_per_s + 1e-6


def test_lanes_that_take_frames_before_any_is_sealed_pay_for_all() -> None:
    # Given four lanes that each take a frame before the size of any is known,
    virtual = VirtualOutbox(4)
    virtual.outbox.pace(MBPS)
    virtual.put(5)
    for lane in virtual.lanes:
        assert lane.wait_turn() is not None
    # when they say how large it was,
    for lane in virtual.lanes:
        lane.spend(FRAME_BYTES)
    # then the next one waits for all of them.
    assert virtual.send(1) == pytest.approx([4 * FRAME_S], abs=1e-6)


def test_what_was_not_sent_while_nothing_waited_is_made_up_for_a_little_only() -> None:
    virtual = VirtualOutbox()
    virtual.outbox.pace(1000.0)
    virtual.put(1)
    virtual.send(1)
    virtual.clock.now_s += 3600
    virtual.put(100)
    frame_s = FRAME_BYTES * 8e-9
    at_s = virtual.send(100)
    assert at_s == pytest.approx([max(0.0, number * frame_s - CREDIT_S) for number in range(100)], abs=1e-6)


def test_a_frame_that_was_not_wanted_costs_nothing() -> None:
    virtual = VirtualOutbox(size_bytes=lambda part: 0 if part == 1 else FRAME_BYTES)
    virtual.outbox.pace(MBPS)
    virtual.put(4)
    assert virtual.send(4) == pytest.approx([0, FRAME_S, FRAME_S, 2 * FRAME_S], abs=1e-6)


def test_a_new_rate_is_that_of_the_next_frame() -> None:
    virtual = VirtualOutbox()
    virtual.outbox.pace(MBPS / 1000)
    virtual.put(10)
    virtual.send(1)
    virtual.outbox.pace(MBPS)
    assert virtual.send(3) == pytest.approx([FRAME_S, 2 * FRAME_S, 3 * FRAME_S], abs=1e-6)
    virtual.outbox.pace(None)
    assert virtual.send(3) == pytest.approx([0, 0, 0], abs=1e-6)


# -- acknowledgements ---------------------------------------------------------------------------------------------------------


def told(turn: Turn | None) -> int | None:
    assert turn is not None
    assert turn.frame is None
    return turn.acknowledge


def test_acknowledgements_do_not_wait_for_the_frames_time() -> None:
    virtual = VirtualOutbox()
    virtual.outbox.pace(0.5)
    virtual.put(2)
    virtual.send(1)
    (lane,) = virtual.lanes
    before_s = virtual.clock.now_s
    lane.confirm_received()
    assert told(lane.wait_turn()) == 1
    assert virtual.clock.now_s == before_s
    for _ in range(TELL_FRAMES):
        lane.confirm_received()
    assert told(lane.wait_turn()) == 1 + TELL_FRAMES
    assert virtual.clock.now_s == before_s


@pytest.mark.parametrize("waits", [0, 2], ids=["idle", "with-a-frame-that-waits"])
def test_a_few_received_frames_are_told_together_and_soon(waits: int) -> None:
    # Given a lane that has just acknowledged
    virtual = VirtualOutbox()
    virtual.outbox.pace(0.5)
    (lane,) = virtual.lanes
    if waits:
        virtual.put(waits)
        virtual.send(1)
    lane.confirm_received()
    assert told(lane.wait_turn()) == 1
    before_s = virtual.clock.now_s
    # when fewer frames came than are worth a message,
    for _ in range(TELL_FRAMES - 1):
        lane.confirm_received()
    # then they are told when TELL_AFTER_S has passed, together.
    assert told(lane.wait_turn()) == TELL_FRAMES
    assert virtual.clock.now_s - before_s == pytest.approx(TELL_AFTER_S, abs=1e-6)


def test_after_a_pause_the_first_frame_is_told_at_once() -> None:
    virtual = VirtualOutbox()
    (lane,) = virtual.lanes
    for count in (1, 2, 3):
        virtual.clock.now_s += 2 * TELL_AFTER_S
        before_s = virtual.clock.now_s
        lane.confirm_received()
        assert told(lane.wait_turn()) == count
        assert virtual.clock.now_s == before_s


# -- who is woken, with real threads ------------------------------------------------------------------------------------------


class SendingThread:
    """A lane's: takes turns until the lane ends, and stays in a turn for as long as the test wants it to."""

    def __init__(self, share: LaneShare, turns: list[tuple[LaneShare, Turn]], is_held: bool = False) -> None:
        self.share = share
        self._turns = turns
        self._may_go_on = threading.Event()
        if not is_held:
            self._may_go_on.set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (turn := self.share.wait_turn()) is not None:
            if turn.frame is not None:
                self.share.spend(FRAME_BYTES)
            self._turns.append((self.share, turn))
            self._may_go_on.wait(PATIENCE_S)

    def end(self) -> None:
        self._may_go_on.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def until(done: Callable[[], bool]) -> None:
    """Fails when it never is; how long it takes does not matter."""
    ends_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < ends_s
        time.sleep(0.001)


def is_keeper(outbox: Outbox, share: LaneShare) -> bool:
    with outbox._lock:
        return outbox._keeper is share


def idle(outbox: Outbox) -> int:
    with outbox._lock:
        return len(outbox._idle)


def waits_for_a_time_far_away() -> tuple[Outbox, list[tuple[LaneShare, Turn]]]:
    """An outbox of which one frame has left and the next one's time is hours away."""
    outbox = Outbox()
    outbox.pace(1e-4)
    outbox.put([probe(0, b""), probe(1, b"")])
    first = outbox.share(PEER)
    assert first.wait_turn() is not None
    first.spend(FRAME_BYTES)
    first.confirmed(1)
    first.abandon()
    return outbox, []


def frames_of(turns: list[tuple[LaneShare, Turn]]) -> list[int]:
    return [turn.frame.header.part for _, turn in turns if turn.frame is not None]


@pytest.mark.parametrize("mbps", [None, 1e6])
def test_a_quicker_rate_wakes_who_waits_for_a_time_by_the_old_one(mbps: float | None) -> None:
    outbox, turns = waits_for_a_time_far_away()
    thread = SendingThread(outbox.share(PEER), turns)
    until(lambda: is_keeper(outbox, thread.share))
    assert frames_of(turns) == []
    outbox.pace(mbps)
    until(lambda: frames_of(turns) == [1])
    outbox.close()
    thread.end()


def test_one_lane_is_woken_for_each_frame() -> None:
    outbox, turns = Outbox(), []
    outbox._lock = threading.RLock()  # type: ignore[assignment]
    threads = [SendingThread(outbox.share(PEER), turns, is_held=True) for _ in range(6)]
    until(lambda: idle(outbox) == 6)
    with outbox._lock:  # before any thread runs: whom nobody wakes stays in the list
        outbox.put([probe(0, b"")])
        assert idle(outbox) == 5
    until(lambda: frames_of(turns) == [0])
    assert idle(outbox) == 5
    with outbox._lock:
        outbox.put([probe(1, b""), probe(2, b"")])
        assert idle(outbox) == 3
    until(lambda: sorted(frames_of(turns)) == [0, 1, 2])
    assert idle(outbox) == 3
    outbox.close()
    for thread in threads:
        thread.end()


@pytest.mark.parametrize("way", ["retire", "abandon"])
def test_the_lane_that_waits_for_a_frames_time_hands_it_over_when_it_ends(way: str) -> None:
    outbox, turns = waits_for_a_time_far_away()
    ending = SendingThread(outbox.share(PEER), turns)
    until(lambda: is_keeper(outbox, ending.share))
    other = SendingThread(outbox.share(PEER), turns)
    until(lambda: idle(outbox) == 2)
    if way == "retire":
        ending.share.retire(lambda: None)
    else:
        ending.share.abandon()
    until(lambda: is_keeper(outbox, other.share))
    outbox.pace(None)
    until(lambda: frames_of(turns) == [1])
    outbox.close()
    for thread in (ending, other):
        thread.end()


@pytest.mark.parametrize("way", ["retire", "abandon"])
def test_a_lane_that_was_woken_for_a_frame_and_ends_wakes_another(way: str) -> None:
    # Given two idle lanes,
    outbox, turns = Outbox(), []
    outbox._lock = threading.RLock()  # type: ignore[assignment]
    threads = [SendingThread(outbox.share(PEER), turns) for _ in range(2)]
    until(lambda: idle(outbox) == 2)
    woken = outbox._idle[0]
    # when the one that a frame wakes ends before its thread gets to run,
    with outbox._lock:
        outbox.put([probe(0, b"")])
        if way == "retire":
            woken.retire(lambda: None)
        else:
            woken.abandon()
    # then the other one sends it.
    until(lambda: frames_of(turns) == [0])
    assert [share is woken for share, _ in turns] == [False]
    outbox.close()
    for thread in threads:
        thread.end()


def test_a_lane_that_only_acknowledges_leaves_the_waiting_frame_to_another() -> None:
    # Given a lane that waits for the frame's time, and an idle one,
    outbox, turns = waits_for_a_time_far_away()
    busy = SendingThread(outbox.share(PEER), turns, is_held=True)
    until(lambda: is_keeper(outbox, busy.share))
    other = SendingThread(outbox.share(PEER), turns)
    until(lambda: idle(outbox) == 2)
    # when the first is busy with an acknowledgement that its connection does not take,
    busy.share.confirm_received()
    until(lambda: [turn.acknowledge for _, turn in turns] == [1])
    # then the other waits in its place.
    until(lambda: is_keeper(outbox, other.share))
    outbox.pace(None)
    until(lambda: frames_of(turns) == [1])
    outbox.close()
    for thread in (busy, other):
        thread.end()
