"""When compiled loops are asked for, and that all goes on without them."""

from __future__ import annotations

import sys
import threading

import pytest

from ciuic_p2p.daemon.values import COMPUTING, computing
from ciuic_p2p.tensors import kernels
from ciuic_p2p.tensors.codecs.registry import all_codecs


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_ready", None)
    monkeypatch.setattr(kernels, "_asked", False)


def test_without_numba_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it raises ImportError
    monkeypatch.delitem(sys.modules, "ciuic_p2p.tensors.compiled", raising=False)
    monkeypatch.delattr("ciuic_p2p.tensors.compiled", raising=False)

    assert not kernels.prepare()
    assert kernels.kernels() is None


def test_a_large_model_asks_for_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = threading.Semaphore(0)
    monkeypatch.setattr(kernels, "prepare", prepared.release)

    kernels.prepare_soon(kernels.WORTH_VALUES - 1)
    assert not kernels._asked

    for _ in range(2):
        kernels.prepare_soon(kernels.WORTH_VALUES)
    assert prepared.acquire(timeout=30)
    for thread in threading.enumerate():
        if thread.name == "kernels":
            thread.join(30)
    assert not prepared.acquire(blocking=False)


def test_the_gate_stands_open_only_where_a_loop_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    gated = {codec.name for codec in all_codecs() if computing(codec) is COMPUTING}
    assert gated == {codec.name for codec in all_codecs()}

    monkeypatch.setattr(kernels, "_ready", object())
    assert {codec.name for codec in all_codecs() if computing(codec) is not COMPUTING} == {"float32", "int8", "int4"}
