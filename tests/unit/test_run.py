"""The three lines in a user's script, against a daemon's socket that averages in one process."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections import Counter
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_kit import BYTES_A_ROUND, AveragingHost, open_descriptors, socket_of, start_script, within_half_a_minute
from torch import nn
from torch.utils.data import TensorDataset

import ciuic_p2p as ciuic
from ciuic_p2p.data.order import Order
from ciuic_p2p.data.pipeline import Pipeline
from ciuic_p2p.data.sources import Source
from ciuic_p2p.local.protocol import Progress, Ready, Waiting
from ciuic_p2p.local.server import LocalServer
from ciuic_p2p.train import attachment, run

SYNC = ciuic.DiLoCo(inner_steps=2)


def model_of(value: float) -> nn.Linear:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def join(home: Path, model: nn.Module, **settings: Any) -> ciuic.Run:
    return ciuic.join("mnist", model, torch.optim.SGD(model.parameters(), lr=0.1), **({"sync": SYNC, "home": home} | settings))


def train_epoch(joined: ciuic.Run, model: nn.Module, moved_by: float, samples: int = 5) -> bool:
    """Two inner steps, the first of which must not end the epoch. Whether the second did."""
    assert not joined.step(samples=samples, loss=1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += moved_by
    return joined.step(samples=samples, loss=torch.tensor(3.0))


def value_of(model: nn.Module) -> float:
    (value,) = set(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist())
    return float(value)


def test_two_trainers_end_each_epoch_with_the_same_weighted_mean(tmp_path: Path) -> None:
    def train(home: Path, moved_by: float, samples: int) -> tuple[float, dict[str, Any], Any]:
        model = model_of(1.0)
        optimizer_state = torch.optim.SGD(model.parameters(), lr=0.1)
        with ciuic.join("mnist", model, optimizer_state, sync=SYNC, home=home) as joined:
            assert (joined.epoch, joined.peers, joined.bytes_sent) == (0, (), 0)
            for _ in range(3):
                assert train_epoch(joined, model, moved_by, samples)
            return value_of(model), joined.metrics(), joined

    async def scenario() -> None:
        host = AveragingHost(members=2)
        async with LocalServer(socket_of(tmp_path), host):
            (value, metrics, joined), (other, others_metrics, _) = await asyncio.gather(
                asyncio.to_thread(train, tmp_path, 1.0, 10), asyncio.to_thread(train, tmp_path, 5.0, 30)
            )
            await host.until(lambda: len(host.left_pids) == 2)
        assert value == other == 1.0 + 3 * 4.0
        assert metrics == others_metrics | {"samples": 60}
        assert metrics == {
            "run": "mnist",
            "epoch": 3,
            "state_hash": host.state_hash,
            "peers": ["peer 0", "peer 1"],
            "samples": 60,
            "loss": 2.0,
            "seconds": 0.25,
            "counted": True,
            "bytes_sent": 3 * BYTES_A_ROUND,
            "bytes_received": 3 * BYTES_A_ROUND,
        }
        assert (joined.epoch, joined.peers) == (3, ("peer 0", "peer 1"))
        assert {heard.samples for heard in host.heard} == {20, 60}

    within_half_a_minute(scenario())


def test_a_model_takes_the_runs_values_when_it_joins(tmp_path: Path) -> None:
    def train() -> None:
        model = model_of(1.0)
        with join(tmp_path, model) as joined:
            assert value_of(model) == 7.0
            assert joined.epoch == 4
            assert joined.bytes_sent == 900, "what this peer sent before belongs to the run as well"
            train_epoch(joined, model, 1.0)
            assert joined.bytes_sent == 900 + BYTES_A_ROUND
        assert value_of(model) == 8.0, "leaving changes nothing"
        with pytest.raises(ciuic.LocalError, match="has left run 'mnist'"):
            joined.step(samples=1)
        with pytest.raises(ciuic.LocalError, match="join again"):
            joined.shard(TensorDataset(torch.arange(4)), 2)
        joined.leave()

    async def scenario() -> None:
        host = AveragingHost()
        host.anchor, host.epoch, host._bytes = np.full(6, 7.0, np.float32), 4, 900
        async with LocalServer(socket_of(tmp_path), host):
            await asyncio.to_thread(train)
            before = open_descriptors()
            await asyncio.to_thread(train_once_more)
            await host.until(lambda: len(host.left_pids) == 2)
            await until_closed(before)

    def train_once_more() -> None:
        with join(tmp_path, model_of(0.0)):
            pass

    within_half_a_minute(scenario())


async def until_closed(before: int) -> None:
    """The last descriptors are closed one turn of the loop after the host has heard that a trainer left."""
    while open_descriptors() > before:  # noqa: ASYNC110  # nobody announces it
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_model_that_broke_is_withheld_and_gets_the_sound_anchor(
    tmp_path: Path, broken: float, caplog: pytest.LogCaptureFixture
) -> None:
    def train(moved_by: float) -> tuple[float, bool | None]:
        model = model_of(1.0)
        with join(tmp_path, model) as joined:
            assert train_epoch(joined, model, moved_by)
            return value_of(model), joined.metrics()["counted"]

    async def scenario() -> None:
        host = AveragingHost(members=2)
        async with LocalServer(socket_of(tmp_path), host):
            results = await asyncio.gather(asyncio.to_thread(train, broken), asyncio.to_thread(train, 2.0))
        assert results == [(3.0, False), (3.0, True)]
        assert sorted(heard.samples for heard in host.heard) == [0, 10]

    within_half_a_minute(scenario())
    assert "contribution.withheld" in caplog.text


def test_progress_is_told_but_not_more_often_than_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        host = AveragingHost()
        async with LocalServer(socket_of(tmp_path), host):
            joined = await asyncio.to_thread(join, tmp_path, model_of(1.0), sync=ciuic.DiLoCo(inner_steps=100))
            for _ in range(3):
                joined.step(samples=4, loss=1.5)
            monkeypatch.setattr(run, "REPORT_S", 0.0)
            joined.step(samples=4)
            await host.until(lambda: host.heard)
            assert host.heard == [Progress(samples=16, steps=4, loss=1.5)]
            joined.leave()

    within_half_a_minute(scenario())


def test_a_bad_step_is_refused_before_it_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            joined = await asyncio.to_thread(join, tmp_path, model_of(1.0))
            for samples in (-1, 2.0, None):
                with pytest.raises(ciuic.LocalError, match="is not a number of samples"):
                    joined.step(samples=samples)
            assert joined.samples == 0
            assert not joined.step(samples=1)
            joined.leave()

    within_half_a_minute(scenario())


# -- what cannot join -----------------------------------------------------------------------------------------------------


def test_what_is_wrong_with_a_script_is_said_before_a_daemon_is_asked(tmp_path: Path) -> None:
    model = model_of(1.0)
    with pytest.raises(ciuic.ConfigError, match="is no name for a run"):
        ciuic.join("two\nlines", model, torch.optim.SGD(model.parameters()))
    with pytest.raises(ciuic.LocalError, match="holds no parameter of this model"):
        ciuic.join("mnist", model, torch.optim.SGD(model_of(1.0).parameters()))
    with pytest.raises(ciuic.LocalError, match="not finite"):
        join(tmp_path, model_of(float("nan")))
    before = open_descriptors()
    with pytest.raises(ciuic.NoDaemon, match=f"ciuic-peer start --home {tmp_path}"):
        join(tmp_path, model)
    assert open_descriptors() == before
    assert value_of(model) == 1.0


def test_the_home_is_found_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIUIC_HOME", str(tmp_path / "mine"))
    with pytest.raises(ciuic.NoDaemon, match="mine"):
        join(None, model_of(1.0))  # type: ignore[arg-type]


def test_a_refusal_arrives_as_what_it_is_and_leaves_nothing_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = AveragingHost()
        host.refusal = ciuic.LayoutMismatch("others train another model", "use another run name")
        async with LocalServer(socket_of(tmp_path), host):
            before = open_descriptors()
            model = model_of(1.0)
            with pytest.raises(ciuic.LayoutMismatch, match="use another run name"):
                await asyncio.to_thread(join, tmp_path, model)
            await host.until(lambda: host.left_pids)
            host.refusal = None  # its traceback knows the frames that it came through
            await until_closed(before)
            assert value_of(model) == 1.0

    within_half_a_minute(scenario())


def test_a_run_can_be_refused_while_it_trains(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = AveragingHost(members=2)
        async with LocalServer(socket_of(tmp_path), host):
            model = model_of(1.0)
            joined = await asyncio.to_thread(join, tmp_path, model)
            host.trainers[0].say_refused(ciuic.LayoutMismatch("others train another model"))
            with pytest.raises(ciuic.LayoutMismatch):
                await asyncio.to_thread(train_epoch, joined, model, 1.0)
            joined.leave()

    within_half_a_minute(scenario())


# -- a daemon that goes away ----------------------------------------------------------------------------------------------


async def restarted_while_waiting(home: Path, second: AveragingHost, model: nn.Module) -> tuple[bool, ciuic.Run]:
    """What the step returned during which the daemon was replaced by `second`."""
    first = AveragingHost(members=2)
    async with LocalServer(socket_of(home), first):
        joined = await asyncio.to_thread(join, home, model)
        stepping = asyncio.create_task(asyncio.to_thread(train_epoch, joined, model, 2.0))
        await first.until(lambda: first.heard)
    async with LocalServer(socket_of(home), second):
        stepped = await stepping
        joined.leave()
    return stepped, joined


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment, "_RETRY_S", 0.01)


@pytest.mark.usefixtures("impatient")
def test_a_daemon_that_comes_back_with_the_same_anchor_takes_the_contribution(tmp_path: Path) -> None:
    async def scenario() -> None:
        second, model = AveragingHost(), model_of(1.0)
        second.anchor, second._bytes = np.full(6, 1.0, np.float32), 7
        stepped, joined = await restarted_while_waiting(tmp_path, second, model)
        assert stepped
        assert second.heard == [Ready(samples=10, steps=2, loss=2.0)]
        assert (joined.epoch, value_of(model)) == (1, 3.0)
        assert joined.bytes_sent == BYTES_A_ROUND, "its daemon's totals began anew"

    within_half_a_minute(scenario())


@pytest.mark.usefixtures("impatient")
def test_a_daemon_that_comes_back_with_another_anchor_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        second, model = AveragingHost(), model_of(1.0)
        second.anchor, second.epoch = np.full(6, 50.0, np.float32), 9
        stepped, joined = await restarted_while_waiting(tmp_path, second, model)
        assert not stepped
        assert second.heard == []
        assert (joined.epoch, joined.state_hash, value_of(model)) == (9, second.state_hash, 50.0)
        assert joined.samples == 10, "they were trained on, whatever became of them"

    within_half_a_minute(scenario())
    assert "anchor.changed" in caplog.text


@pytest.mark.usefixtures("impatient")
def test_a_daemon_that_lost_the_run_starts_it_again_from_the_trainer(tmp_path: Path) -> None:
    async def scenario() -> None:
        second, model = AveragingHost(), model_of(1.0)
        stepped, joined = await restarted_while_waiting(tmp_path, second, model)
        assert not stepped
        assert (joined.epoch, value_of(model)) == (0, 3.0), "nothing that was trained is lost"

    within_half_a_minute(scenario())


@pytest.mark.usefixtures("impatient")
def test_while_the_daemon_is_away_training_goes_on_until_the_epoch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "REPORT_S", 0.0)

    async def scenario() -> None:
        host, model = AveragingHost(), model_of(1.0)
        async with LocalServer(socket_of(tmp_path), host):
            joined = await asyncio.to_thread(join, tmp_path, model, sync=ciuic.DiLoCo(inner_steps=4))
        for _ in range(3):
            assert not joined.step(samples=1)
        async with LocalServer(socket_of(tmp_path), host):
            assert await asyncio.to_thread(joined.step, samples=1)
            assert joined.epoch == 1
            joined.leave()

    within_half_a_minute(scenario())


@pytest.mark.usefixtures("impatient")
def test_a_daemon_that_does_not_come_back_ends_the_training_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "PATIENCE_S", 0.0)

    async def scenario() -> None:
        model = model_of(1.0)
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            joined = await asyncio.to_thread(join, tmp_path, model)
        with (
            joined,
            pytest.raises(ciuic.DaemonGone, match="did not come back within 0 s; start it again with"),
        ):
            train_epoch(joined, model, 1.0)

    within_half_a_minute(scenario())


def test_a_trainer_that_waits_long_says_what_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(attachment, "_REMIND_S", 0.01)

    async def scenario() -> None:
        host, model = AveragingHost(members=2), model_of(1.0)
        async with LocalServer(socket_of(tmp_path), host):
            joined = await asyncio.to_thread(join, tmp_path, model)
            stepping = asyncio.create_task(asyncio.to_thread(train_epoch, joined, model, 1.0))
            await host.until(lambda: host.heard)
            while "daemon.silent" not in caplog.text:  # noqa: ASYNC110  # the log announces nothing
                await asyncio.sleep(0.01)
            trainer = host.trainers[0]
            trainer.say_waiting("node-eu is late")
            trainer._say(Waiting(why="still"))
            host.members = 1
            host._advance()
            assert await stepping
            joined.leave()

    within_half_a_minute(scenario())
    assert "node-eu is late" in caplog.text


# -- data -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loaders", [0, 2])
def test_two_trainers_use_every_sample_once_a_pass(tmp_path: Path, loaders: int) -> None:
    dataset = TensorDataset(torch.arange(40))

    def train(joined: ciuic.Run) -> list[list[int]]:
        loader = joined.shard(dataset, batch_size=4, num_workers=loaders)
        seen: list[list[int]] = []
        for _ in range(2):
            seen.append([])
            for (batch,) in loader:
                seen[-1] += batch.tolist()
                joined.step(samples=len(batch))
        return seen

    async def scenario() -> None:
        host = AveragingHost()
        async with LocalServer(socket_of(tmp_path), host):
            anna = await asyncio.to_thread(join, tmp_path, model_of(1.0))
            bert = await asyncio.to_thread(join, tmp_path, model_of(1.0))
            annas, berts = await asyncio.gather(asyncio.to_thread(train, anna), asyncio.to_thread(train, bert))
            assert host.ledger is not None
            last = {id(joined): joined._shares["data"].used for joined in (anna, bert)}
            positions = host.ledger.positions.using(last[id(anna)] | last[id(bert)])
            expected = Counter(dict.fromkeys(range(40), positions.finished))
            expected.update(Order(40, 0).samples_of(positions.beyond))
            assert Counter(chain(*annas, *berts)) == +expected
            await asyncio.to_thread(anna.leave)
            await asyncio.to_thread(bert.leave)

    within_half_a_minute(scenario())


def test_a_trainer_alone_is_given_the_whole_dataset_in_each_pass(tmp_path: Path) -> None:
    def train() -> None:
        with join(tmp_path, model_of(1.0)) as joined:
            passes = []
            for _ in range(3):  # a loader for each pass, as some scripts make them
                loader = joined.shard(TensorDataset(torch.arange(10)), batch_size=3)
                passes.append([])
                for (batch,) in loader:
                    passes[-1] += batch.tolist()
                    joined.step(samples=len(batch))
            assert [sorted(each) for each in passes] == [list(range(10))] * 3
            assert len({tuple(each) for each in passes}) == 3, "another order in each"

    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            await asyncio.to_thread(train)

    within_half_a_minute(scenario())


def test_what_is_dropped_from_an_iteration_comes_in_a_later_one(tmp_path: Path) -> None:
    def train() -> None:
        with join(tmp_path, model_of(1.0)) as joined:
            seen: list[int] = []
            loader = joined.shard(TensorDataset(torch.arange(10)), batch_size=4, drop_last=True)
            for _ in range(2):
                for (batch,) in loader:
                    seen += batch.tolist()
                    joined.step(samples=len(batch))
            assert len(seen) == 20
            assert Counter(seen) == Counter(dict.fromkeys(range(10), 2))

    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            await asyncio.to_thread(train)

    within_half_a_minute(scenario())


def test_a_loop_that_never_steps_is_told_so(tmp_path: Path) -> None:
    def read() -> None:
        with join(tmp_path, model_of(1.0)) as joined, pytest.raises(ciuic.LocalError, match="step was never called"):
            for _ in joined.shard(TensorDataset(torch.arange(10_000)), batch_size=4):
                pass

    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            await asyncio.to_thread(read)

    within_half_a_minute(scenario())


@pytest.mark.parametrize("said", [1, 3, 6])
def test_steps_of_several_batches_average_early_or_in_time(tmp_path: Path, said: int) -> None:
    """A lease that is used up before the inner steps are done ends the round there; the next one is larger."""

    def train() -> int:
        with join(tmp_path, model_of(1.0)) as joined:
            loader = joined.shard(TensorDataset(torch.arange(10_000)), batch_size=4, batches_a_step=said)
            for number, (batch,) in enumerate(loader, start=1):
                if number % 3 == 0:
                    joined.step(samples=3 * len(batch))
                if number == 60:
                    return joined.epoch
        raise AssertionError

    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            epochs = await asyncio.to_thread(train)
            assert epochs == 10 if said > 1 else epochs in range(10, 13)

    within_half_a_minute(scenario())


def numbered(folder: Path, count: int) -> Source:
    path = folder / "numbered.jsonl"
    path.write_text("".join(json.dumps({"text": f"{number}"}) + "\n" for number in range(count)))
    return Source(url=str(path))


def read_batches(joined: ciuic.Run, pipeline: Pipeline, batches: int, size: int = 4) -> list[str]:
    """What is trained on in so many steps."""
    seen: list[str] = []
    for batch in islice(joined.shard(pipeline, batch_size=size), batches):
        seen += batch
        joined.step(samples=len(batch))
    return seen


def test_what_a_pipeline_gave_is_used_and_comes_again_when_its_sources_end(tmp_path: Path) -> None:
    def train() -> None:
        pipeline = Pipeline([numbered(tmp_path, 40)], passes=None)
        with join(tmp_path, model_of(1.0)) as joined:
            assert read_batches(joined, pipeline, 14) == [str(number % 40) for number in range(56)]
            assert read_batches(joined, pipeline, 16) == [str(number % 40) for number in range(56, 120)], "and goes on"

    async def scenario() -> None:
        host = AveragingHost()
        async with LocalServer(socket_of(tmp_path), host):
            await asyncio.to_thread(train)
            assert host.ledger is not None
            assert list(host.ledger.positions.beyond.stretches()) == [(0, 0, 120)]

    within_half_a_minute(scenario())


@pytest.mark.parametrize("kept", [3, 500])
def test_a_pipeline_that_drops_most_documents_gets_larger_leases(tmp_path: Path, kept: int) -> None:
    """Until what is held fills a batch; documents that became nothing are used along with what comes after them."""

    def clean(text: str) -> str | None:
        return text if int(text) % kept == 0 else None

    def train() -> None:
        pipeline = Pipeline([numbered(tmp_path, 3000)], passes=None).clean(clean)
        with join(tmp_path, model_of(1.0)) as joined:
            assert read_batches(joined, pipeline, 6, size=2) == [str(number * kept % 3000) for number in range(12)]

    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            await asyncio.to_thread(train)

    within_half_a_minute(scenario())


@pytest.mark.parametrize(
    ("change", "options", "complaint"),
    [
        ({"passes": 1}, {}, "a pipeline of 1 passes ends.*passes=None"),
        ({}, {"num_workers": 2}, "so num_workers has no meaning"),
        ({"batch": 4}, {}, "leave out batch"),
    ],
)
def test_pipelines_that_cannot_be_divided_are_refused(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], complaint: str
) -> None:
    pipeline = Pipeline([numbered(tmp_path, 4)], passes=change.get("passes"))
    pipeline = pipeline.batch(change["batch"]) if "batch" in change else pipeline

    def refuse() -> None:
        with join(tmp_path, model_of(1.0)) as joined, pytest.raises(ciuic.LocalError, match=complaint):
            joined.shard(pipeline, batch_size=4, **options)

    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            await asyncio.to_thread(refuse)

    within_half_a_minute(scenario())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"shuffle": True}, "shuffle has no meaning"),
        ({"in_order": False}, "in the order"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"name": ""}, "no name for a dataset"),
    ],
)
def test_options_that_shard_cannot_have(tmp_path: Path, options: dict[str, Any], complaint: str) -> None:
    def shard() -> None:
        with join(tmp_path, model_of(1.0)) as joined, pytest.raises(ciuic.LocalError, match=complaint):
            joined.shard(TensorDataset(torch.arange(10)), **({"batch_size": 4} | options))

    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            await asyncio.to_thread(shard)

    within_half_a_minute(scenario())


# -- a user who has enough ------------------------------------------------------------------------------------------------

SCRIPT = """
import torch
import ciuic_p2p as ciuic
model = torch.nn.Linear(2, 2)
class Optimizer:
    param_groups = [{"params": list(model.parameters())}]  # torch's own take a second to import
with ciuic.join("mnist", model, Optimizer, sync=ciuic.DiLoCo(inner_steps=2)) as run:
    while True:
        run.step(samples=1)
"""


def test_a_trainer_that_is_interrupted_while_it_waits_leaves_with_one_traceback(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = AveragingHost(members=2)
        async with LocalServer(socket_of(tmp_path), host):
            with start_script(SCRIPT, tmp_path) as process:
                await host.until(lambda: host.heard)
                process.send_signal(signal.SIGINT)
                await host.until(lambda: host.left_pids == [process.pid])
                _, stderr = await asyncio.to_thread(process.communicate)
            assert process.returncode == -signal.SIGINT
            assert stderr.splitlines()[-1] == "KeyboardInterrupt"
            assert "During handling" not in stderr

    within_half_a_minute(scenario())
