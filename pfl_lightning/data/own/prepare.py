"""From a user's files to the prepared file, once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pfl_lightning.data.own.alone import new_folder, writing_alone
from pfl_lightning.data.own.facts import Facts
from pfl_lightning.data.own.labels import make_targets
from pfl_lightning.data.own.prepared_file import Prepared, PreparedWriter, read_prepared, text_tensor
from pfl_lightning.data.own.progress import progress_bar
from pfl_lightning.data.own.source import Source, Survey
from pfl_lightning.foundation.atomic_files import flush
from pfl_lightning.foundation.errors import ConfigError

FOLDER = "prepared"


def prepare(source: Source, root: Path, name: str, num_classes: int | None = None, keep: bool = True) -> Prepared:
    """Open the prepared file of a source, which is written first if it is missing or if the source has changed.

    Processes that start at the same time wait for the first of them.

    Args:
        source: the user's files.
        root: directory of the data sets.
        name: name of the data set.
        num_classes: number of classes that the user asks for.
        keep: whether the file stays for later runs. Otherwise it vanishes with the process.
    """
    identity = hashlib.sha256(f"{num_classes}\n".encode())
    for fact in source.identity():
        identity.update(fact.encode() + b"\n")
    path = root / FOLDER / f"{name}-{identity.hexdigest()[:16]}.safetensors"
    if keep and (found := read_prepared(path)):
        return found
    survey = source.survey()
    if not survey.size:
        raise ConfigError("source: there are no samples")
    try:
        return _write(source, survey, path, num_classes, keep)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"root: cannot write {path}: {why}; set data.root or PFL_DATA to another directory"
        ) from error


def _write(source: Source, survey: Survey, path: Path, num_classes: int | None, keep: bool) -> Prepared:
    with new_folder(path.parent), writing_alone(path, shared=keep) as (aside, file):
        if not (keep and read_prepared(path)):  # another process may have written it while we waited
            _fill(file, source, survey, num_classes, path.name.rpartition("-")[0])
            if not keep:
                return _opened(aside)
            os.replace(aside, path)
            flush(path.parent)
    return _opened(path)


def _opened(path: Path) -> Prepared:
    prepared = read_prepared(path)
    if prepared is None:
        raise ConfigError(f"root: {path} is damaged right after it was written; check the disk")
    return prepared


def _fill(file: BinaryIO, source: Source, survey: Survey, num_classes: int | None, name: str) -> None:
    """Write all samples, training samples first."""
    is_test = survey.is_test if survey.is_test is not None else np.zeros(survey.size, dtype=bool)
    num_train = survey.size - int(is_test.sum())
    writer, facts = PreparedWriter(file, num_train), Facts()
    with progress_bar(f"Preparing {name}", survey.size) as advance:
        for block in source.blocks():
            second = is_test[facts.count : facts.count + len(block.x)]
            facts.add(block, second, source)
            for part in (False, True):
                writer.add(block.x[second == part], part)
            advance(len(block.x))
    assert facts.count == survey.size, "a source gives as many samples as it counted"
    targets = make_targets(facts.targets, survey.class_names, num_classes, source.place)
    order = np.argsort(is_test, kind="stable")
    names = {"class_names": text_tensor(targets.class_names)}
    metadata = {
        "num_train": str(num_train if survey.is_test is not None else 0),
        "outputs": str(targets.outputs),
        "vocabulary": str(facts.vocabulary),
    }
    writer.finish({"y": targets.y[order], **facts.owner_tensors(order), **facts.moment_tensors(), **names}, metadata)
