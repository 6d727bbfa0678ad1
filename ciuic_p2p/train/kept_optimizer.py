"""The state of a trainer's own optimizer on the disk of its machine, so that a trainer that comes back goes on with it.

    HOME/optimizers/RUN/EPOCH-STATE-CONTENT.safetensors    the newest two; RUN is a hash of the name, CONTENT of the file

It is never averaged and never travels. A file is there whole or not at all, whatever instant the process dies at; one that is
damaged, or of another optimizer or other parameters, is left alone, with one line in the log. Knows no daemon.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from ciuic_p2p.train.log import get_log
from ciuic_p2p.train.plain_data import dump_json, from_json, load_json, to_json
from ciuic_p2p.train.tensor_bytes import Entry, bytes_of, dtype_name, lay_out, read_header, tensor_from

log = get_log(__name__)

FORMAT = 1
KEPT = 2
"""The newest, and the one before: the snapshot that belongs to the newest may not be complete."""
_FIELD = "ciuic.optimizer"
_COMPILED = "_orig_mod."
"""What torch.compile puts before the names of a module that it wraps."""
_NAME = re.compile(r"([0-9]{10})-([0-9a-f]{16})-([0-9a-f]{64})\.safetensors")


class _CannotKeep(Exception):
    """Why a state is not saved, or not given back."""


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    epoch: int
    state_hash: str
    """Its first 16 digits."""
    content: str


class KeptOptimizer:
    """Of one trainer in one run."""

    def __init__(self, home: Path, run: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._folder = home / "optimizers" / blake3(run.encode()).hexdigest()[:32]
        self._run = run
        self._model = model
        self._optimizer = optimizer

    def save(self, epoch: int, state_hash: str) -> None:
        """At the boundary of an epoch of which a snapshot is saved. What hinders it goes to the log, and training goes on."""
        if not self._state():
            return
        try:
            kept = self._write(epoch, state_hash)
        except (OSError, _CannotKeep) as error:
            log.warning("optimizer.not_kept", run=self._run, epoch=epoch, why=_why(error))
            return
        log.info("optimizer.kept", run=self._run, epoch=epoch, file=str(kept))
        earlier = [file for file in self._files() if file.epoch < epoch]
        self._remove_all_but({kept, *(file.path for file in earlier[: KEPT - 1])})

    def give_back(self, epoch: int, state_hash: str) -> int | None:
        """The state of this epoch's boundary, else of the newest one before, goes into the optimizer; returns its epoch.

        None when there is none that fits, or when the optimizer has taken steps already: its own state is newer.
        """
        if any(_steps_of(each) for each in self._state().values()):
            return None
        said: set[str] = set()
        for file in self._candidates(epoch, state_hash):
            try:
                self._load(file)
            except (OSError, ValueError, KeyError, TypeError, _CannotKeep) as error:
                if (why := _why(error)) not in said:
                    log.warning("optimizer.ignored", run=self._run, epoch=file.epoch, file=str(file.path), why=why)
                said.add(why)
            else:
                log.info("optimizer.given_back", run=self._run, epoch=epoch, of_epoch=file.epoch)
                return file.epoch
        return None

    def forget(self) -> None:
        """The run begins anew: what is here is of another one of the same name."""
        self._remove_all_but(set())

    def _state(self) -> Mapping[Any, Mapping[Any, Any]]:
        """By the parameters' numbers."""
        found: Mapping[Any, Mapping[Any, Any]] = self._optimizer.state_dict()["state"]
        return found

    # -- files -----------------------------------------------------------------------------------------------------------

    def _files(self) -> list[_File]:
        """The newest first."""
        try:
            names = sorted(os.listdir(self._folder), reverse=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            log.warning("optimizer.ignored", run=self._run, folder=str(self._folder), why=_why(error))
            return []
        matches = [match for name in names if (match := _NAME.fullmatch(name))]
        return [_File(self._folder / match[0], int(match[1]), match[2], match[3]) for match in matches]

    def _candidates(self, epoch: int, state_hash: str) -> list[_File]:
        """Those of a later epoch belong to a history that was given up."""
        found = [file for file in self._files() if file.epoch <= epoch]
        return sorted(
            found, key=lambda file: (file.epoch == epoch and file.state_hash == state_hash[:16], file.epoch), reverse=True
        )

    def _remove_all_but(self, kept: set[Path]) -> None:
        """What a process that died left half written goes too."""
        try:
            for path in self._folder.iterdir() if self._folder.is_dir() else ():
                if path not in kept:
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("optimizer.remains", folder=str(self._folder), why=_why(error))

    # -- writing -----------------------------------------------------------------------------------------------------------

    def _write(self, epoch: int, state_hash: str) -> Path:
        tensors, values = _split(self._state())
        entries = [Entry(name, _dtype_of(name, tensor), tuple(tensor.shape)) for name, tensor in tensors.items()]
        facts = {"format": FORMAT, "run": self._run, "epoch": epoch, "state_hash": state_hash, "values": values}
        plan = lay_out(entries, {_FIELD: dump_json(facts | self._described()).decode()})
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._folder / ".part"
        pieces = chain([memoryview(plan.header)], (bytes_of(tensors[entries[i].name]) for i in plan.order))
        try:
            content = _write_through(part, pieces)
            kept = self._folder / f"{epoch:010d}-{state_hash[:16]}-{content}.safetensors"
            os.replace(part, kept)
            _sync(self._folder)
        finally:
            part.unlink(missing_ok=True)
        return kept

    def _described(self) -> dict[str, Any]:
        """What must be the same for a state to fit. Neither the learning rate nor other settings: those are the script's."""
        names = {id(parameter): name.replace(_COMPILED, "") for name, parameter in self._model.named_parameters()}
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        kind = type(self._optimizer)
        return {
            "optimizer": f"{kind.__module__}.{kind.__qualname__}",
            "parameters": [[names.get(id(each), ""), list(each.shape)] for each in parameters],
        }

    # -- reading -----------------------------------------------------------------------------------------------------------

    def _load(self, file: _File) -> None:
        data = np.memmap(file.path, np.uint8, mode="c")
        if blake3(data.data).hexdigest() != file.content:
            raise _CannotKeep("it is damaged")
        entries, metadata = read_header(data)
        facts = load_json(metadata[_FIELD].encode())
        self._check_fits(facts)
        state: dict[int, dict[str, Any]] = {}
        for index, key, value in _joined(data, entries, facts["values"]):
            state.setdefault(index, {})[key] = value
        try:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise _CannotKeep(f"the optimizer does not take it: {error}") from None

    def _check_fits(self, facts: Mapping[str, Any]) -> None:
        here = self._described()
        if facts["format"] != FORMAT:
            raise _CannotKeep("it was written by another version")
        if facts["optimizer"] != here["optimizer"]:
            raise _CannotKeep(f"it is of {facts['optimizer']}, the optimizer is {here['optimizer']}")
        if facts["parameters"] != here["parameters"]:
            raise _CannotKeep(_difference(facts["parameters"], here["parameters"]))


def _steps_of(of_parameter: Mapping[Any, Any]) -> float:
    """Some optimizers make a state before their first step, and count from 0."""
    return float(of_parameter.get("step", 1))


def _split(state: Mapping[Any, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors, and as JSON what is none, each under `index of the parameter/key`."""
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {}
    for index, of_parameter in state.items():
        for key, value in of_parameter.items():
            if type(index) is not int or type(key) is not str:
                raise _CannotKeep(f"it has {key!r} of {index!r}, where a parameter's number and a name should be")
            name = f"{index}/{key}"
            if type(value) in (torch.Tensor, torch.nn.Parameter):
                tensors[name] = value
                continue
            try:
                values[name] = to_json(value)
            except ValueError as error:
                raise _CannotKeep(f"its {key!r}: {error}") from None
    return tensors, values


def _dtype_of(name: str, tensor: torch.Tensor) -> str:
    dtype = dtype_name(tensor.dtype) if tensor.layout == torch.strided else None
    if dtype is None:
        raise _CannotKeep(f"its {name.partition('/')[2]!r} is {tensor.dtype} in {tensor.layout}")
    wide = tensor.float() if tensor.element_size() == 1 else tensor  # torch cannot say it of 8 bits
    if tensor.is_floating_point() and not bool(wide.isfinite().all()):
        raise _CannotKeep(f"its {name.partition('/')[2]!r} holds values that are not finite")
    return dtype


def _joined(data: Any, entries: Mapping[str, tuple[Entry, int]], values: Mapping[str, Any]) -> Iterator[tuple[int, str, Any]]:
    """The inverse of `_split`; copies, for the file may go."""
    for name, (entry, start) in entries.items():
        index, _, key = name.partition("/")
        yield int(index), key, tensor_from(data, start, entry.dtype, entry.shape).clone()
    for name, value in values.items():
        index, _, key = name.partition("/")
        yield int(index), key, from_json(value)


def _difference(kept: list[Any], here: list[Any]) -> str:
    if len(kept) != len(here):
        return f"it is of {len(kept)} parameters, the optimizer has {len(here)}"
    (name, shape), (name_here, shape_here) = next((a, b) for a, b in zip(kept, here, strict=True) if a != b)
    return f"it is of parameter {name!r} of shape {shape}, the optimizer has {name_here!r} of shape {shape_here}"


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _write_through(path: Path, pieces: Iterable[memoryview]) -> str:
    """The file is on the disk when this returns; BLAKE3 of what is in it."""
    content = blake3()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        for piece in pieces:
            content.update(piece)
            stream.write(piece)
        stream.flush()
        os.fsync(descriptor)
    return content.hexdigest()


def _sync(folder: Path) -> None:
    """The names in it are on the disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
