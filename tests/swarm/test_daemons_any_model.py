"""Two peers train what people train: accumulated, clipped, scaled, half frozen, tied, adapted. Real daemons, plain loops."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from threading import Barrier
from typing import Any

import pytest
import torch
from daemon_kit import PATIENCE_S, PeerProcess, daemons, wait_for
from torch import Tensor, nn

import ciuic_p2p as ciuic
from ciuic_p2p.train import checkpoints
from ciuic_p2p.train.flat import FlatModel

SYNC = ciuic.DiLoCo(inner_steps=5, codec="float32", outer_learning_rate=0.7)
TOGETHER = 6
"""So many epochs with both."""
_runs = count()


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PeerProcess]]:
    with daemons(tmp_path_factory.mktemp("models")) as made:
        yield made.swarm("us", "eu")


class Tied(nn.Module):
    """Tied embeddings, a frozen layer, a parameter that nothing uses, and statistics in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 32)
        self.frozen = nn.Linear(32, 32).requires_grad_(False)
        self.norm = nn.BatchNorm1d(32)
        self.layer = nn.Sequential(nn.Linear(32, 32), nn.GELU())
        self.unused = nn.Parameter(torch.randn(7))
        self.head = nn.Linear(32, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.norm(self.frozen(self.embed(tokens)))))


@dataclass
class Trained:
    """What one peer ended with."""

    run: str
    model: nn.Module
    losses: list[float]
    hashes: dict[int, str]
    samples: int


Step = Callable[[nn.Module, torch.optim.Optimizer, torch.Generator], tuple[int, Tensor]]
"""One step of the optimizer: how many samples, and their mean loss."""


def batch(rng: torch.Generator, size: int = 16) -> tuple[Tensor, Tensor]:
    """Tokens, and what each is followed by."""
    tokens = torch.randint(16, (size,), generator=rng)
    return tokens, (tokens * 5 + 3) % 16


def loss_of(model: nn.Module, rng: torch.Generator) -> Tensor:
    tokens, following = batch(rng)
    return nn.functional.cross_entropy(model(tokens), following)


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, rng: torch.Generator) -> tuple[int, Tensor]:
    loss = loss_of(model, rng)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return 16, loss


def accumulated_and_clipped(model: nn.Module, optimizer: torch.optim.Optimizer, rng: torch.Generator) -> tuple[int, Tensor]:
    losses = [loss_of(model, rng) for _ in range(3)]
    for loss in losses:
        (loss / 3).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    return 48, torch.stack(losses).mean()


def in_bfloat16(model: nn.Module, optimizer: torch.optim.Optimizer, rng: torch.Generator) -> tuple[int, Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(model, rng)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return 16, loss


def scaled() -> Step:
    """float16 with a gradient scaler that skips its first step: the scale is one that float32 cannot multiply by."""
    scaler = torch.amp.GradScaler("cpu", init_scale=3.0e38, backoff_factor=2.0**-118)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, rng: torch.Generator) -> tuple[int, Tensor]:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of(model, rng)
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return (16 if scaler.get_scale() >= before else 0), loss

    return step


def train(peer: PeerProcess, run_name: str, model: nn.Module, step: Step, seed: int, ready: Barrier) -> Trained:
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    rng = torch.Generator().manual_seed(seed)
    done = Trained(run_name, model, [], {}, 0)
    with ciuic.join(run_name, model, optimizer, sync=SYNC, home=peer.home) as run:
        done.hashes[run.epoch] = run.state_hash
        ready.wait(PATIENCE_S)
        together = 0
        while together < TOGETHER:
            samples, loss = step(model, optimizer, rng)
            if run.step(samples=samples, loss=loss):
                done.hashes[run.epoch] = run.state_hash
                done.losses.append(run.metrics()["loss"])
                together += len(run.peers) == 2
        done.samples = run.samples
    return done


def train_both(
    peers: list[PeerProcess], make: Callable[[int], nn.Module], steps: Callable[[], Step]
) -> tuple[Trained, Trained]:
    """Each with a model of its own that is made from its number."""
    name, ready = f"run {next(_runs)}", Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(train, peer, name, make(number), steps(), number, ready) for number, peer in enumerate(peers, 1)]
        one, other = (each.result() for each in both)
    return one, other


def assert_they_learnt_the_same(one: Trained, other: Trained) -> None:
    common = one.hashes.keys() & other.hashes.keys()
    assert len(common) >= TOGETHER
    assert {epoch: one.hashes[epoch] for epoch in common} == {epoch: other.hashes[epoch] for epoch in common}
    pairs = zip(one.model.named_parameters(), other.model.named_parameters(), strict=True)
    assert all(mine.equal(theirs) for (_, mine), (_, theirs) in pairs), "both loaded the same anchor last"
    for each in (one, other):
        assert each.losses[-1] < 0.8 * each.losses[0]


def tied(number: int) -> Tied:
    torch.manual_seed(7)
    base = nn.Linear(32, 32).state_dict()
    torch.manual_seed(number)
    model = Tied()
    model.frozen.load_state_dict(base)
    return model


@pytest.mark.parametrize(
    ("steps", "samples", "skipped"),
    [(lambda: plain, 16, 0), (lambda: accumulated_and_clipped, 48, 0), (lambda: in_bfloat16, 16, 0), (scaled, 16, 1)],
    ids=["plain", "accumulated", "bfloat16", "float16 scaled"],
)
def test_any_step_of_an_optimizer_is_a_step_of_the_run(
    peers: list[PeerProcess], steps: Any, samples: int, skipped: int
) -> None:
    one, other = train_both(peers, tied, steps)
    assert_they_learnt_the_same(one, other)
    for each in (one, other):
        assert each.samples == samples * (SYNC.inner_steps * len(each.losses) - skipped)


def test_tied_frozen_and_unused_parameters_are_what_they_should_be(peers: list[PeerProcess]) -> None:
    before = [tied(number) for number in (1, 2)]
    one, other = train_both(peers, tied, lambda: plain)
    assert_they_learnt_the_same(one, other)
    for trained in (one, other):
        model = trained.model
        assert model.head.weight is model.embed.weight
        assert model.frozen.weight.equal(before[0].frozen.weight)
        assert any(model.unused.detach().equal(each.unused.detach()) for each in before), "nobody moved it"
        assert not model.norm.running_mean.equal(before[0].norm.running_mean)
    assert one.model.unused.detach().equal(other.model.unused.detach())


def lora(number: int, base: int = 7) -> nn.Module:
    """PEFT's adapters on a base that all loaded alike, where `base` is the same."""
    peft = pytest.importorskip("peft", reason="the extra 'integrations' is not installed")
    torch.manual_seed(base)
    model = nn.Sequential(nn.Embedding(16, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))
    torch.manual_seed(number)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["1"], modules_to_save=["3"]))


def test_of_an_adapted_model_only_the_adapters_travel(peers: list[PeerProcess]) -> None:
    base = copy.deepcopy(lora(0).base_model.model[1].base_layer.weight)
    one, other = train_both(peers, lora, lambda: plain)
    assert_they_learnt_the_same(one, other)
    trained = sum(each.numel() for each in one.model.parameters() if each.requires_grad)
    assert FlatModel(one.model).layout.count == trained < sum(each.numel() for each in one.model.parameters()) / 2
    for each in (one, other):
        assert each.model.base_model.model[1].base_layer.weight.equal(base)


def test_a_state_is_saved_though_the_last_trainer_leaves_before_the_epoch_that_was_named(
    peers: list[PeerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two trainers that have ended, one of which is still there
    one, _ = train_both(peers, tied, lambda: plain)
    name = one.run
    model = tied(1)
    staying = ciuic.join(name, model, torch.optim.SGD(model.parameters(), lr=0.1), sync=SYNC, home=peers[1].home)
    wait_for(lambda: any(row["training"] for row in peers[0].view("peers")), "the other daemon sees it")

    # when the first has all save the next epoch, and the other leaves
    named, ask = threading.Event(), checkpoints._ask

    def ask_and_tell(*order: Any) -> Any:
        answer = ask(*order)
        if order[1] == "save":
            named.set()
        return answer

    monkeypatch.setattr(checkpoints, "_ask", ask_and_tell)
    with ThreadPoolExecutor(1) as thread:
        saving = thread.submit(ciuic.Client(peers[0].home).save_checkpoint, name, PATIENCE_S)
        assert named.wait(PATIENCE_S)
        staying.leave()
        saved = saving.result()

    # then the state that all hold is saved
    assert (saved["epoch"], saved["complete"]) == (peers[0].run(name)["epoch"], True)
    assert saved["state_hash"] == one.hashes[max(one.hashes)]


def test_another_base_is_refused_in_one_line_by_whichever_daemon(peers: list[PeerProcess]) -> None:
    # given a run that one peer trains on its base
    def join(peer: PeerProcess, model: nn.Module) -> ciuic.Run:
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
        return ciuic.join("adapters", model, optimizer, sync=SYNC, home=peer.home)

    with join(peers[0], lora(1)):
        wait_for(lambda: peers[0].run("adapters")["training"], "it trains")
        # when another has loaded another one
        with pytest.raises(ciuic.LayoutMismatch, match="others train 'adapters' with other frozen parameters") as remote:
            join(peers[1], lora(1, base=8))
        with join(peers[1], lora(2)) as right:
            assert right.epoch == 0
    # then so it is by the daemon that knows the run already
    wait_for(lambda: not peers[0].run("adapters")["training"], "it has left")
    with pytest.raises(ciuic.LayoutMismatch, match="run 'adapters' is of other frozen parameters") as local:
        join(peers[0], lora(1, base=8))
    for refusal in (remote, local):
        assert "\n" not in str(refusal.value)
        assert "loaded from the same base" in str(refusal.value)
