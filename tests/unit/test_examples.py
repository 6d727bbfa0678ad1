"""The examples are what users copy: they take the flags that the demonstration gives them, and learn real images."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import ModuleType

import pytest

from ciuic_p2p.config import child_environment
from ciuic_p2p.lab.demo.scenario import training_script


@pytest.fixture(scope="module")
def mnist() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mnist_three_regions", training_script())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_images_are_real_mixed_and_split(mnist: ModuleType) -> None:
    train, test = mnist.load_images(None)
    assert (len(train), len(test)) == (4000, 1000)
    images, digits = train.tensors
    assert images.shape == (4000, 1, 28, 28)
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    assert set(digits[:200].tolist()) == set(range(10))
    assert mnist.load_images(None)[1].tensors[1].equal(test.tensors[1])


def test_an_untrained_model_guesses(mnist: ModuleType) -> None:
    assert mnist.accuracy_of(mnist.make_model(), mnist.load_images(None)[1], "cpu") < 0.5


def test_without_a_daemon_it_says_how_to_start_one(tmp_path: object) -> None:
    argv = [sys.executable, str(training_script()), "--epochs", "1", "--inner-steps", "2", "--batch-size", "8", "--json"]
    environment = child_environment(CIUIC_HOME=str(tmp_path), PYTHONPATH=str(training_script().parents[1]))
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert result.returncode != 0
    assert "ciuic-peer start" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["plain_loop", "accelerate_loop", "huggingface_trainer", "lightning_trainer"])
def test_the_examples_for_a_library_stay_short(name: str) -> None:
    script = training_script().with_name(f"{name}.py")
    assert len(script.read_text().splitlines()) < 60
    assert "ciuic-peer start" in script.read_text().splitlines()[0]


def test_the_minimal_example_stays_minimal_and_says_how_to_start_a_daemon(tmp_path: object) -> None:
    script = training_script().with_name("minimal.py")
    assert len(script.read_text().splitlines()) <= 30
    environment = child_environment(CIUIC_HOME=str(tmp_path), PYTHONPATH=str(script.parents[1]))
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert result.returncode != 0
    assert "ciuic-peer start" in result.stderr.splitlines()[-1]
