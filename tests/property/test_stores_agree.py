"""Whatever is done to them, the store on a disk and the one in memory say the same, also after a restart of the former."""

from __future__ import annotations

import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ciuic_p2p.errors import ShardMissing, StoreFull
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.memory import MemoryStore
from ciuic_p2p.store.shards import shard_id_of

QUOTA_BYTES = 60
contents = st.sampled_from([bytes([number]) * size for number, size in enumerate((0, 1, 10, 20, 30, 61))])


def outcome(action):
    try:
        return action()
    except (ShardMissing, StoreFull) as error:
        return type(error)


class Stores(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.memory = MemoryStore(QUOTA_BYTES, grace_s=2.0)
        self.disk = self.open()
        self.now_s = 0.0

    def open(self):
        return DiskStore(self.folder.name, QUOTA_BYTES, reserve_bytes=0, grace_s=2.0)

    def teardown(self):
        self.disk.close()
        self.folder.cleanup()

    @rule(data=contents)
    def put(self, data):
        assert outcome(lambda: self.disk.put(data)) == outcome(lambda: self.memory.put(data))

    @rule(data=contents)
    def get(self, data):
        shard = shard_id_of(data)
        got = outcome(lambda: self.disk.get(shard))
        assert got == outcome(lambda: self.memory.get(shard))
        assert not isinstance(got, bytes) or got == data

    @rule(data=contents)
    def damage(self, data):
        shard = shard_id_of(data)
        if data and self.memory.has(shard):
            (self.disk.folder / "shards" / shard[:2] / shard).write_bytes(b"!" * len(data))
            self.memory.damage(shard, b"!" * len(data))

    @rule(keep=st.lists(contents), passed_s=st.integers(0, 3))
    def collect(self, keep, passed_s):
        self.now_s += passed_s
        shards = [shard_id_of(data) for data in keep]
        assert self.disk.collect(shards, self.now_s) == self.memory.collect(shards, self.now_s)

    @rule()
    def restart(self):
        self.disk.close()
        self.disk = self.open()
        for shard in self.memory.shards():  # A restart begins each grace anew.
            self.memory._grace.forgive(shard)

    @invariant()
    def the_same_is_there(self):
        assert set(self.disk.shards()) == set(self.memory.shards())
        assert self.disk.used_bytes == self.memory.used_bytes == sum(map(self.disk.size_bytes, self.disk.shards()))


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
