"""What callbacks of training libraries share: the size of any batch, and one clear line for what cannot be."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch

import ciuic_p2p as ciuic
from ciuic_p2p.integrations.participation import Participation, missing, refuse_several_processes, rows_in

FIVE = torch.zeros(5, 2)


@pytest.mark.parametrize(
    "batch",
    [
        FIVE,
        (FIVE, torch.zeros(7)),
        {"id": "name", "scale": torch.tensor(1.0), "x": FIVE},
        [{"inner": [np.zeros((5, 3))]}],
        UserDict({"input_ids": FIVE}),
    ],
)
def test_a_batch_has_as_many_samples_as_its_first_tensor_has_rows(batch: Any) -> None:
    assert rows_in(batch) == 5


@pytest.mark.parametrize("batch", [None, {}, "text", torch.tensor(3.0), object()])
def test_a_batch_that_does_not_tell_its_size_is_refused(batch: Any) -> None:
    with pytest.raises(ciuic.LocalError, match="samples_of="):
        rows_in(batch)


@pytest.mark.parametrize("epoch", [0, -1, True, 2.5, "ten"])
def test_an_epoch_that_is_none_is_refused(epoch: Any) -> None:
    with pytest.raises(ciuic.ConfigError, match="until_epoch"):
        Participation("run", ciuic.DiLoCo(), None, epoch)


def test_several_processes_are_refused() -> None:
    refuse_several_processes(1)
    with pytest.raises(ciuic.LocalError, match="2 processes"):
        refuse_several_processes(2)


def test_a_missing_library_names_what_to_install() -> None:
    line = str(missing("transformers", ModuleNotFoundError("No module named 'transformers'")))
    assert line == "transformers is not installed; run: pip install 'ciuic-p2p[integrations]'"
