"""Files that a run leaves behind: weights in safetensors, trainer state for ``torch.load``.

Every file is written under a temporary name in its own folder, flushed to the disk and renamed, so
that a reader finds the old file or the new one, never a part. ``state.pt`` alone is enough to
resume: it holds the last and the best weights, the optimizer, the random state and the history of
one and the same epoch, so no kill can leave two files of different epochs that belong together.
The state before it stays as ``state.previous.pt``.

Neither torch nor safetensors notices a flipped bit; here both files are compared with the checksums
that they carry.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import logging
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maxk.core.errors import CheckpointError
from maxk.data.dataset import Dataset

log = logging.getLogger(__name__)

FORMAT = "maxk-state-1"
STATE = "state.pt"
PREVIOUS = "state.previous.pt"
BEST = "best.safetensors"
LAST = "last.safetensors"

#: Where the metadata of weights holds their checksum.
_DIGEST = "sha256"
# No space, no quota, and a limit on the size of a file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_file(path: Path, data: bytes, *, keep: Path | None = None) -> None:
    """Writes a whole file or nothing: temporary name, flush to disk, rename.

    Args:
        path: Where the file goes.
        data: All of it.
        keep: Where the file that lies at ``path`` moves just before the rename.

    Raises:
        CheckpointError: the folder cannot be written or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            path.replace(keep)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise CheckpointError(cannot_write(path, error)) from error


def cannot_write(path: Path, error: OSError) -> str:
    """Returns one sentence on a failed write: what, why, cure."""
    reason = error.strerror or str(error)
    cure = (
        "free some space and continue with --resume"
        if error.errno in _FULL
        else "choose a folder that you may write with --out"
    )
    return f"cannot write {path}: {reason}; {cure}"


def save_weights(path: Path, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Writes named tensors as safetensors; they land on the CPU, so any machine can open them.

    Args:
        path: Where the file goes.
        weights: The tensors.
        about: What JSON can hold; lies in the file's metadata under ``maxk``.

    Raises:
        CheckpointError: the file cannot be written.
    """
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    # safetensors refuses tensors that share memory, as tied weights do.
    seen: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    # safetensors orders several keys at random; with one, the same weights are the same bytes.
    note = json.dumps({**about, _DIGEST: _digest(tensors)})
    write_file(path, save(tensors, metadata={"maxk": note}))


def load_weights(path: Path) -> dict[str, Tensor]:
    """Reads the tensors of a safetensors file onto the CPU, as :func:`read_weights`."""
    return read_weights(path)[0]


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the tensors of a safetensors file, on the CPU, and what was saved about them.

    Raises:
        CheckpointError: the file is missing, cut short, damaged or of another kind.
    """
    from safetensors.torch import load

    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        note = json.loads(data[8 : 8 + length]).get("__metadata__", {}).get("maxk", "{}")
        about = dict(json.loads(note))
        wanted = about.pop(_DIGEST, None)
    except Exception as error:
        # Damage in the table of tensors shows as its own error, as a missing key or as a dtype
        # that torch does not have.
        raise CheckpointError(f"{path} is cut short or is no safetensors file: {error}") from error
    if wanted is not None and wanted != _digest(tensors):
        raise CheckpointError(
            f"{path} is damaged: its weights do not have the checksum that it names"
        )
    return tensors, about


def contents(dataset: Dataset) -> dict[str, str]:
    """Returns the SHA-256 of each part of a data set: edges, features, labels and splits.

    Example:
        >>> from maxk.data.load import load
        >>> sorted(contents(load("digits")))
        ['edges', 'features', 'labels', 'splits']
    """
    graph = dataset.graph
    return {
        "edges": _sha256(graph.indptr, graph.indices, graph.weight),
        "features": _sha256(dataset.x),
        "labels": _sha256(dataset.y),
        "splits": _sha256(dataset.train_mask, dataset.val_mask, dataset.test_mask),
    }


def changed_parts(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Names, in words, the parts of :func:`contents` that differ; empty where none does."""
    names = [name for name in now if before.get(name) != now[name]]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _sha256(*tensors: Tensor | None) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor is None:
            continue
        parts = [tensor]
        if tensor.layout == torch.sparse_csr:
            parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        for part in parts:
            digest.update(f"{part.dtype} {list(part.shape)} ".encode())
            flat = part.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Writes ``state.pt`` and keeps the one before it as ``state.previous.pt``.

    Raises:
        CheckpointError: the file cannot be written; the states on disk stay as they were.
    """
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    write_file(folder / STATE, buffer.getvalue(), keep=folder / PREVIOUS)


def load_state(folder: Path) -> dict[str, Any] | None:
    """Reads the newest whole state of a run folder onto the CPU, or None where none was saved.

    A broken ``state.pt`` is named in a warning and replaced by the state before it.

    Raises:
        CheckpointError: states were saved and none of them is whole.
    """
    reasons = []
    for name in (STATE, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            state = _read_state(path)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        if reasons:
            log.warning("%s; continuing from %s (epoch %d)", reasons[0], name, state["epoch"])
            # The next save moves state.pt aside; a broken one must not push out the whole one.
            path.replace(folder / STATE)
        return state
    if reasons:
        raise CheckpointError("; ".join(reasons) + "; start the run again in another folder")
    return None


def _read_state(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{path} is damaged: {damaged} does not have its checksum")
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:
        # A damaged archive fails anywhere inside the unpickler, with nearly any exception.
        raise CheckpointError(f"{path} is cut short or is no checkpoint") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no checkpoint of this version of maxk")
    if type(state.get("epoch")) is not int:
        raise CheckpointError(f"{path} does not say which epoch it is of")
    return state


def on_cpu(model: nn.Module) -> dict[str, Tensor]:
    """Copies the weights, since the model's own change with the next step."""
    return {n: t.detach().to("cpu", copy=True) for n, t in model.state_dict().items()}


def copied(value: Any) -> Any:
    """The same dictionaries and lists with every tensor copied to the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {name: copied(part) for name, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value
