"""What cleaning keeps, drops and remembers."""

from __future__ import annotations

import random
import unicodedata

import pytest
from data_kit import PARAGRAPHS
from hypothesis import given
from hypothesis import strategies as st

from ciuic_p2p.data.cleaning import Document, ExactDuplicates, Length, NearDuplicates, Remembering, begin, normalise, window_of
from ciuic_p2p.errors import LocalError


def kept(step: Remembering, texts: list[str], passes: list[int] | None = None) -> list[int]:
    """Indices of the documents that a step lets by."""
    wash = step.begin()
    numbers = passes or [0] * len(texts)
    return [i for i, text in enumerate(texts) if wash(Document(text, i, numbers[i])) is not None]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("e\u0301", "é"),
        ("a\x00b\x1bc\x9fd", "abcd"),
        ("a\tb\r\nc\rd", "a\tb\nc\nd"),
        ("\ufeffa\u200bb", "ab"),
        ("a\ud800b", "ab"),
        ("  \n ", None),
        ("\x00", None),
        ("می\u200cخواهم", "می\u200cخواهم"),
    ],
)
def test_text_is_normalised(text: str, clean: str | None) -> None:
    assert normalise(text) == clean


@given(st.text(alphabet=st.characters()))
def test_what_is_normalised_stays_as_it_is_and_can_be_written(text: str) -> None:
    clean = normalise(text)
    if clean is not None:
        clean.encode()
        assert unicodedata.is_normalized("NFC", clean)
        assert normalise(clean) == clean


def test_length_is_in_characters() -> None:
    step = Length(least=2, most=3)
    assert [step(text) for text in ("é", "éé", "ééé", "éééé")] == [None, "éé", "ééé", None]


def test_exact_duplicates_are_dropped_within_the_window_and_the_pass() -> None:
    assert kept(ExactDuplicates(window=3), list("abacaada")) == [0, 1, 3, 6]
    assert kept(ExactDuplicates(window=2), list("abcabc")) == [0, 1, 2, 3, 4, 5]
    assert kept(ExactDuplicates(window=9), list("abab"), [0, 0, 1, 1]) == [0, 1, 2, 3]


def changed(text: str, share: float, rng: random.Random) -> str:
    words = text.split()
    for i in rng.sample(range(len(words)), round(share * len(words))):
        words[i] = f"other{i}"
    return " ".join(words)


def test_near_duplicates_are_dropped_and_others_are_not() -> None:
    # given real paragraphs that are not alike, and of each one a copy with hardly a word changed
    pytest.importorskip("datasketch")
    rng = random.Random(1)
    originals = list({text for text in PARAGRAPHS if 100 < len(text.split()) < 300})[:60]
    originals.sort()
    assert len(originals) > 30
    distinct = kept(NearDuplicates(), originals)
    assert len(distinct) >= len(originals) - 2
    originals = [originals[i] for i in distinct]
    close = [changed(text, 0.005, rng) for text in originals]
    far = [changed(text, 0.5, rng) for text in originals]
    # when they come one after the other
    found = kept(NearDuplicates(threshold=0.7), originals + close + far)
    # then the copies are dropped, but for few by chance, and what is half changed is kept
    count = len(originals)
    assert len([i for i in found if count <= i < 2 * count]) <= count // 20
    assert [i for i in found if i < count or i >= 2 * count] == [*range(count), *range(2 * count, 3 * count)]


def test_near_duplicates_are_forgotten_with_their_window_and_in_another_pass() -> None:
    pytest.importorskip("datasketch")
    texts = [" ".join(f"{name}{i}" for i in range(30)) for name in "abcabc"]
    assert kept(NearDuplicates(window=3), texts) == [0, 1, 2]
    assert kept(NearDuplicates(window=2), texts) == [0, 1, 2, 3, 4, 5]
    assert kept(NearDuplicates(window=9), texts, [0, 0, 0, 1, 1, 1]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("step", [ExactDuplicates(window=8), NearDuplicates(window=8, permutations=16, words=1, threshold=0.5)])
def test_what_a_step_decides_follows_from_its_window(step: Remembering) -> None:
    # given documents of which many are alike
    pytest.importorskip("datasketch")
    rng = random.Random(2)
    texts = [" ".join(rng.choices("abcdefgh", k=4)) for _ in range(400)]
    found = kept(step, texts)
    # when one begins anew anywhere, then it decides the same once it has read a window of documents
    for start in range(0, 390, 17):
        wash = step.begin()
        later = [i for i in range(start, 400) if wash(Document(texts[i], i, 0)) is not None]
        assert [i for i in later if i >= start + step.window] == [i for i in found if i >= start + step.window]


def test_steps_follow_one_another_and_their_windows_add_up() -> None:
    steps = (str.strip, normalise, ExactDuplicates(window=5), Length(least=2), ExactDuplicates(window=7))
    wash = begin(steps)
    assert [wash(Document(text, i, 0)) for i, text in enumerate([" ab ", "a", "ab\r", "cd"])] == ["ab", None, None, "cd"]
    assert window_of(steps) == 12


def test_without_its_library_a_step_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasketch", None)
    with pytest.raises(LocalError, match=r"pip install 'ciuic-p2p\[data\]'"):
        NearDuplicates().begin()


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(LocalError, match="a window of 0 documents"):
        ExactDuplicates(window=0).begin()
