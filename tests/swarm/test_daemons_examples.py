"""The examples, each as two processes at two real daemons: they average, they learn, they leave the same state behind."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from daemon_kit import PATIENCE_S, PeerProcess, daemons, wait_for
from safetensors.numpy import load_file

from ciuic_p2p.config import child_environment
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import SnapshotOrder, View

PROJECT = Path(__file__).parents[2]
EPOCHS = 6
NEEDS = {
    "plain_loop": (),
    "accelerate_loop": ("accelerate",),
    "huggingface_trainer": ("transformers", "accelerate"),
    "lightning_trainer": ("pytorch_lightning",),
}
SMALL = ("--context=16", "--words=300", "--width=32", "--layers=2", "--experts=4", "--batch-size=4")


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PeerProcess]]:
    with daemons(tmp_path_factory.mktemp("examples")) as made:
        yield made.swarm("us", "eu")


class ExampleProcess:
    """One trainer, of which the run has the name of the script."""

    def __init__(self, peer: PeerProcess, script: str, *flags: str) -> None:
        self.peer = peer
        self._script = script
        self._said, self._complained = (peer.home.with_suffix(f".{script}.{what}") for what in ("said", "complained"))
        argv = [sys.executable, str(PROJECT / "examples" / f"{script}.py"), f"--run={script}", f"--epochs={EPOCHS}", *flags]
        # One thread each: on few cores two processes that wait for each other's threads take ten times as long.
        environment = child_environment(CIUIC_HOME=str(peer.home), PYTHONPATH=str(PROJECT), OMP_NUM_THREADS="1")
        with self._said.open("wb") as said, self._complained.open("wb") as complained:
            self.process = subprocess.Popen(argv, stdout=said, stderr=complained, env=environment)
        peer.at_end.append(self.process.kill)

    def wait_until_it_trains(self) -> None:
        def holds() -> bool:
            assert self.process.poll() is None, self.complaint()
            return bool(self.peer.run(self._script).get("training"))

        wait_for(holds, f"{self._script} trains at {self.peer.name}")

    def wait_for_its_end(self) -> None:
        assert self.process.wait(PATIENCE_S) == 0, self.complaint()

    def complaint(self) -> str:
        return self._complained.read_text()

    def rows(self) -> list[dict[str, Any]]:
        """What it printed: JSON, or the literals that transformers prints."""
        lines = [line for line in self._said.read_text().splitlines() if line.startswith("{")]
        return [json.loads(line) if line.startswith('{"') else ast.literal_eval(line) for line in lines]

    def losses(self) -> list[float]:
        """Of its rounds."""
        found = [row.get("ciuic/loss", row.get("loss")) for row in self.rows()]
        return [float(loss) for loss in found if loss is not None]


def train_together(peers: list[PeerProcess], script: str, *flags: str) -> list[ExampleProcess]:
    """They learn, and end with the same state. The first is held until the second has come, so that it does not end before."""
    processes = [ExampleProcess(peer, script, "--inner-steps=5", *flags) for peer in peers]
    first, second = processes
    first.wait_until_it_trains()
    first.process.send_signal(signal.SIGSTOP)
    try:
        second.wait_until_it_trains()
    finally:
        first.process.send_signal(signal.SIGCONT)
    for process in processes:
        process.wait_for_its_end()
    ends = [peer.run(script) for peer in peers]
    assert [end["epoch"] for end in ends] == [EPOCHS, EPOCHS]
    assert ends[0]["state_hash"] == ends[1]["state_hash"]
    assert len(peers[0].rounds(script)[EPOCHS - 1]["members"]) == 2, "the round that led to it was both's"
    for process in processes:
        assert process.losses()[-1] < process.losses()[0]
    wait_for(lambda: not any(peer.run(script)["training"] for peer in peers), "both have left")
    return processes


def skip_without(*libraries: str) -> None:
    for library in libraries:
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed: pip install 'ciuic-p2p[integrations]'")


@pytest.mark.parametrize("script", NEEDS)
def test_two_peers_learn_together(peers: list[PeerProcess], script: str) -> None:
    skip_without(*NEEDS[script])
    train_together(peers, script)


def test_a_language_model_with_experts_is_trained_saved_and_read_back(peers: list[PeerProcess], tmp_path: Path) -> None:
    # given two peers that trained it
    script, drawn = "deepseek_lm", tmp_path / "loss.png"
    skip_without("transformers", "tokenizers", "matplotlib")
    processes = train_together(peers, script, *SMALL, f"--plot={drawn}")
    said = [process.rows()[-1] for process in processes]

    # then both saved the run's last state, wrote on from the prompt, and drew the loss
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert [end["saved_epoch"] for end in said] == [EPOCHS, EPOCHS]
    assert {end["state_hash"] for end in said} == {peer.run(script)["state_hash"] for peer in peers}
    assert all(end["said"].startswith("The statement ") for end in said)

    # and in that state are the biases of the routers, which no gradient moves
    with open_channel(peers[0].home) as channel:
        exported = channel.ask(SnapshotOrder(what="export", options={"run": script, "folder": str(tmp_path)}), View).value
    tensors = load_file(exported["file"])
    biases = [tensors[name] for name in tensors if name.endswith("e_score_correction_bias")]
    assert [len(bias) for bias in biases] == [4]
    assert biases[0].any()
