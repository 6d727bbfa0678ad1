"""From files to batches: the right tokens, and after a stop anywhere the next ones."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import fsspec
import numpy as np
import pytest
from data_kit import PARAGRAPHS, corpus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ciuic_p2p.data import sources as formats
from ciuic_p2p.data.cleaning import ExactDuplicates, Length, NearDuplicates, normalise
from ciuic_p2p.data.formats.lines import read_jsonl
from ciuic_p2p.data.leased import LeasedReader
from ciuic_p2p.data.leases import Ledger, Trainer, settle
from ciuic_p2p.data.pipeline import Pipeline
from ciuic_p2p.data.positions import UNBOUNDED, Positions
from ciuic_p2p.data.records import Place, Read
from ciuic_p2p.data.slots import Slots
from ciuic_p2p.data.sources import Source
from ciuic_p2p.data.tokens import END, encode, end_of, load_tokeniser, train_tokeniser
from ciuic_p2p.errors import LocalError, MalformedMessage, Transient
from ciuic_p2p.terms import PeerId

pytest.importorskip("tokenizers")
pytest.importorskip("datasketch")


@pytest.fixture(scope="module")
def tokeniser() -> Any:
    return train_tokeniser(PARAGRAPHS[:400], 600)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    """Two corpora, of which the second repeats itself and some of the first."""
    folder = tmp_path_factory.mktemp("corpora")
    repeated = random.Random(0).choices(PARAGRAPHS[100:180], k=120)
    return [corpus(folder, "a", PARAGRAPHS[:150]), corpus(folder, "b", repeated)]


STEPS = (normalise, Length(least=50), ExactDuplicates(window=40), NearDuplicates(window=20, permutations=32))


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_documents_come_out_as_tokens_that_decode_to_them(sources: list[Source], tokeniser: Any) -> None:
    pipeline = Pipeline(sources[:1]).clean(normalise).tokenise(tokeniser)
    expected = [normalise(text) for number in range(3) for text in PARAGRAPHS[:150][number::3]]
    assert [tokeniser.decode(ids.tolist()) for ids in pipeline] == expected


def test_packed_sequences_are_the_documents_one_after_the_other(sources: list[Source], tokeniser: Any) -> None:
    documents = list(Pipeline(sources).tokenise(tokeniser))
    stream = np.concatenate([np.append(ids, end_of(tokeniser)) for ids in documents])
    batches = list(Pipeline(sources).tokenise(tokeniser, documents=5).pack(64).batch(8))
    assert [found.shape for found in batches[:-1]] == [(8, 64)] * (len(batches) - 1)
    assert batches[0].dtype == np.int64
    whole = len(stream) // 64
    assert np.array_equal(np.concatenate(batches), stream[: whole * 64].reshape(whole, 64))


KINDS = {
    "texts": lambda pipeline, tokeniser: pipeline,
    "cleaned": lambda pipeline, tokeniser: pipeline.clean(*STEPS),
    "tokens": lambda pipeline, tokeniser: pipeline.clean(*STEPS).tokenise(tokeniser, documents=7),
    "packed": lambda pipeline, tokeniser: pipeline.clean(*STEPS).tokenise(tokeniser, documents=7).pack(37),
    "short": lambda pipeline, tokeniser: pipeline.tokenise(tokeniser, documents=7).pack(3).batch(50),
    "long": lambda pipeline, tokeniser: pipeline.clean(*STEPS).tokenise(tokeniser).pack(1000).batch(2),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_after_a_stop_anywhere_the_stream_goes_on_with_the_next(
    kind: str, sources: list[Source], tokeniser: Any, data: st.DataObject
) -> None:
    def made() -> Pipeline:
        return KINDS[kind](Pipeline(sources, [2, 1], seed=3, passes=2), tokeniser)

    # given what comes without a stop, and where it stands after each
    uninterrupted = made()
    expected, positions = [], []
    for value in uninterrupted:
        expected.append(value)
        positions.append(uninterrupted.positions())
    # when it stops twice, and goes on elsewhere
    first = data.draw(st.integers(0, len(expected)))
    second = data.draw(st.integers(first, len(expected)))
    one, two, three = made(), made(), made()
    found = list(itertools.islice(one, first))
    two.resume(json.loads(json.dumps(one.positions())))
    found += list(itertools.islice(two, second - first))
    assert second == first or two.positions() == positions[second - 1]
    three.resume(json.loads(json.dumps(two.positions())))
    found += list(three)
    # then nothing came twice, and nothing is missing
    assert same(found, expected)
    assert list(three) == []


def test_iterating_goes_on_until_it_is_rewound(sources: list[Source]) -> None:
    pipeline = Pipeline(sources, passes=None)
    first = list(itertools.islice(pipeline, 10))
    second = list(itertools.islice(pipeline, 10))
    pipeline.rewind()
    assert list(itertools.islice(pipeline, 20)) == first + second


def test_after_a_lost_connection_the_loop_begins_again_where_it_was(
    sources: list[Source], tokeniser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(sources).clean(*STEPS).tokenise(tokeniser).pack(64)
    expected = list(pipeline)
    pipeline.rewind()

    def read_a_little(stream: IO[bytes], place: Place) -> Iterator[Read]:
        yield from itertools.islice(read_jsonl(stream, place), 30)
        raise ConnectionResetError("by peer")

    found = []
    with monkeypatch.context() as broken:
        broken.setitem(formats._STREAMED, "jsonl", read_a_little)
        with pytest.raises(Transient, match="ConnectionResetError"):
            found.extend(pipeline)
    assert same(found + list(pipeline), expected)


@pytest.mark.parametrize("ending", [".parquet", ".tar", ".txt.gz"])
def test_a_pipeline_reads_every_format_from_any_file_system(ending: str, tokeniser: Any) -> None:
    # given real paragraphs in memory, as another format
    texts = [" ".join(text.split()) for text in PARAGRAPHS[:60]]
    content = io.BytesIO()
    if ending == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": texts}), content, row_group_size=13)
    elif ending == ".tar":
        with tarfile.open(fileobj=content, mode="w") as archive:
            for number, text in enumerate(texts):
                info = tarfile.TarInfo(f"{number:03}.txt")
                info.size = len(text.encode())
                archive.addfile(info, io.BytesIO(text.encode()))
    else:
        content.write(gzip.compress("\n".join(texts).encode()))
    with fsspec.open(f"memory://kinds/a{ending}", "wb") as file:
        file.write(content.getvalue())
    field = "txt" if ending == ".tar" else "text"
    # when it is read with a stop, then all of it comes
    made = [Pipeline([Source(url=f"memory://kinds/a{ending}")], text=field).tokenise(tokeniser) for _ in range(2)]
    found = list(itertools.islice(made[0], 20))
    made[1].resume(made[0].positions())
    found += list(made[1])
    assert [tokeniser.decode(ids.tolist()) for ids in found] == texts


def test_positions_in_something_else_are_refused(sources: list[Source], tokeniser: Any, tmp_path: Path) -> None:
    positions = Pipeline(sources).positions()
    for other in (
        Pipeline(sources, [2, 1]),
        Pipeline(sources, seed=1),
        Pipeline(sources).clean(normalise),
        Pipeline(sources).tokenise(tokeniser),
        Pipeline([sources[0], corpus(tmp_path, "b", ["another"])]),
    ):
        with pytest.raises(LocalError, match="of another pipeline, or files were added"):
            other.resume(positions)
    Pipeline(sources).batch(3).resume(positions)


def test_a_copy_of_the_data_elsewhere_is_the_same_data(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here, there = (Pipeline([corpus(tmp_path / name, "a", PARAGRAPHS[:20])]) for name in ("here", "there"))
    first = list(itertools.islice(here, 7))
    there.resume(here.positions())
    assert first + list(there) == [text for number in range(3) for text in PARAGRAPHS[:20][number::3]]


@pytest.mark.parametrize("change", [{"skip": -1}, {"reading": []}, {"warm_from": [[99, 0, 0, 99, 0]] * 2}, {"more": 1}])
def test_broken_positions_are_refused(sources: list[Source], change: dict[str, Any]) -> None:
    pipeline = Pipeline(sources)
    with pytest.raises(MalformedMessage):
        pipeline.resume(pipeline.positions() | change)


def test_a_record_without_text_is_named(sources: list[Source]) -> None:
    with pytest.raises(LocalError, match="holds no text in 'content', it has: text"):
        list(Pipeline(sources, text="content"))


def test_packing_needs_tokens(sources: list[Source]) -> None:
    with pytest.raises(LocalError, match="call tokenise before pack"):
        Pipeline(sources).pack(8)


def test_a_text_cannot_end_its_document(tokeniser: Any) -> None:
    [ids] = encode(tokeniser, [f"before{END}after"])
    assert end_of(tokeniser) not in ids.tolist()
    assert tokeniser.decode(ids.tolist()) == f"before{END}after"


def test_any_text_has_tokens(tokeniser: Any) -> None:
    text = "naïve 中文 🜁 \x07 \t"
    [ids] = encode(tokeniser, [text])
    assert tokeniser.decode(ids.tolist()) == text


def test_a_tokeniser_is_saved_and_loaded(tokeniser: Any, tmp_path: Path) -> None:
    tokeniser.save(str(tmp_path / "tokenizer.json"))
    assert load_tokeniser(tmp_path / "tokenizer.json").to_str() == tokeniser.to_str()
    with pytest.raises(LocalError, match="is no tokeniser"):
        load_tokeniser(tmp_path / "none.json")
    with pytest.raises(LocalError, match="has no token '</s>'"):
        end_of(tokeniser, "</s>")
    with pytest.raises(LocalError, match="a vocabulary of 100"):
        train_tokeniser(["a"], 100)


class Peer:
    """One trainer of several that share a stream."""

    def __init__(self, name: str, pipeline: Pipeline) -> None:
        self.name = PeerId(name)
        self.reader = LeasedReader(pipeline)
        self.given: list[str] = []
        """Since its last report."""

    def train(self, rng: random.Random) -> None:
        for text in self.reader:
            self.given.append(text)
            if rng.random() < 0.1:
                break


@pytest.mark.parametrize("seed", range(12))
def test_peers_with_leases_read_every_document_once_a_pass(sources: list[Source], seed: int) -> None:
    # given peers that join, fall behind and die, and documents that count once they are reported
    rng = random.Random(seed)
    documents = list(Pipeline(sources))
    ledger = Ledger(positions=Positions(count=UNBOUNDED))
    peers = [Peer(f"peer{i}", Pipeline(sources)) for i in range(3)]
    slots: Counter[tuple[int, int]] = Counter()
    texts: Counter[str] = Counter()
    for epoch in range(1000):
        there = [Trainer(peer=peer.name, samples_per_s=rng.choice([1.0, 4.0])) for peer in peers]
        reports, ended = {}, Slots()
        for peer in peers:
            ended |= peer.reader.ended()
            if rng.random() < 0.8:  # or it misses the epoch
                reports[peer.name] = peer.reader.used()
                slots.update((number, slot) for number, slot in peer.reader.used() if slot < len(documents))
                texts.update(peer.given)
                peer.given = []
        ledger = settle(ledger, there, reports, 20, ended)
        if ledger.positions.finished >= 2:
            break
        for peer in peers:
            peer.reader.hold(ledger.lease_of(peer.name))
            peer.train(rng)
        if rng.random() < 0.2 and len(peers) > 1:
            peers.pop(rng.randrange(len(peers)))
        if rng.random() < 0.2 and len(peers) < 6:
            peers.append(Peer(f"late{epoch}", Pipeline(sources)))
    # then each place of two passes counted once, and so did what stands there
    assert set(slots.values()) == {1}
    assert {(number, slot) for number in range(2) for slot in range(len(documents))} <= set(slots)
    assert texts == Counter(documents[slot] for _, slot in slots)


def test_a_leased_reader_packs_what_its_lease_says(sources: list[Source], tokeniser: Any) -> None:
    pipeline = Pipeline(sources).tokenise(tokeniser, documents=3)
    documents = list(pipeline)
    reader = LeasedReader(pipeline.pack(16), chunk=5)
    lease = Slots.of([(0, 3, 5), (0, 8, 9)])
    reader.hold(lease)
    assert reader.used().count == 0
    mine = documents[15:25] + documents[40:45]
    stream = np.concatenate([np.append(ids, end_of(tokeniser)) for ids in mine])
    found, most = [], 0
    for sequence in reader:
        found.append(sequence)
        # a chunk is used when all its tokens were given
        whole = [sum(len(ids) + 1 for ids in mine[: 5 * chunks]) for chunks in range(4)]
        assert reader.used().count == max(chunks for chunks in range(4) if whole[chunks] <= 16 * len(found))
        most = max(most, reader.used().count)
    assert np.array_equal(np.concatenate(found), stream[: len(stream) // 16 * 16])
    assert reader.used() == lease
    assert list(reader) == []


def test_a_lease_may_change_between_two_values(sources: list[Source]) -> None:
    documents = list(Pipeline(sources))
    reader = LeasedReader(Pipeline(sources), chunk=2)
    reader.hold(Slots.of([(0, 0, 2)]))
    stream = iter(reader)
    found = [next(stream) for _ in range(2)]
    assert list(reader.used()) == [(0, 0)]
    # when the first is reported, the second is kept, and another is added
    reader.hold(Slots.of([(0, 1, 2), (0, 7, 8)]))
    found += list(stream)
    assert found == documents[:4] + documents[14:16]
    assert list(reader.used()) == [(0, 1), (0, 7)]
    # when a lost peer's chunk comes back that lies before, then it is read
    reader.hold(Slots.of([(0, 3, 4), (0, 200, 201)]))
    assert list(reader) == documents[6:8]
    assert list(reader.ended().stretches()) == [(0, len(documents) // 2 + len(documents) % 2, UNBOUNDED)]
