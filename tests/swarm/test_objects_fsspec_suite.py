"""fsspec's own suite for file systems, over a real daemon."""

from __future__ import annotations

import posixpath
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec.tests.abstract as abstract
import pytest
from daemon_kit import daemons
from object_kit import QUICK

from ciuic_p2p.fs import CiuicFileSystem

IN_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def module_fs() -> Iterator[CiuicFileSystem]:
    """Each test writes some tens of objects: most of the time would go into waiting for the disk."""
    above = IN_MEMORY if IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=above) as folder, daemons(Path(folder), **QUICK) as made:
        peer = made.started("us")
        _ = peer.ready
        yield CiuicFileSystem(home=peer.home)


class CiuicFixtures(abstract.AbstractFixtures):
    """A folder of its own for each test."""

    @pytest.fixture
    def fs(self, module_fs: CiuicFileSystem) -> CiuicFileSystem:
        return module_fs

    @pytest.fixture
    def fs_path(self) -> str:
        return f"suite/{uuid.uuid4().hex}"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return posixpath.join

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        """A folder is there while something is in it, as in other object stores."""
        return False


class TestCopy(abstract.AbstractCopyTests, CiuicFixtures):
    pass


class TestGet(abstract.AbstractGetTests, CiuicFixtures):
    pass


class TestPut(abstract.AbstractPutTests, CiuicFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, CiuicFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, CiuicFixtures):
    pass
