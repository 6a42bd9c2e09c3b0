"""All of torch's global state that a test could leave behind, read and put back."""

from __future__ import annotations

from typing import Any

import torch


def snapshot() -> dict[str, Any]:
    """The present state; two of them compare equal where nothing has changed."""
    backends = torch.backends
    state = {
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic, warnings only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill uninitialised memory": torch.utils.deterministic.fill_uninitialized_memory,
        "threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "multithreaded backward": torch.autograd.is_multithreading_enabled(),
        "cudnn.enabled": backends.cudnn.enabled,
        "cudnn.benchmark": backends.cudnn.benchmark,
        "cudnn.deterministic": backends.cudnn.deterministic,
        "cudnn.allow_tf32": backends.cudnn.allow_tf32,
        "reduced precision fp16": backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "reduced precision bf16": backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "random": torch.get_rng_state().numpy().tobytes(),
    }
    if torch.cuda.is_initialized():
        state["random on GPUs"] = [s.numpy().tobytes() for s in torch.cuda.get_rng_state_all()]
    return state


def restore(state: dict[str, Any]) -> None:
    """Gives torch the state that :func:`snapshot` returned."""
    backends = torch.backends
    torch.set_float32_matmul_precision(state["float32 matmul precision"])
    torch.use_deterministic_algorithms(
        state["deterministic"], warn_only=state["deterministic, warnings only"]
    )
    torch.utils.deterministic.fill_uninitialized_memory = state["fill uninitialised memory"]
    if torch.get_num_threads() != state["threads"]:
        torch.set_num_threads(state["threads"])
    torch.set_default_dtype(state["default dtype"])
    if torch.get_default_device() != state["default device"]:
        device = state["default device"]
        torch.set_default_device(None if device.type == "cpu" else device)
    torch.set_grad_enabled(state["gradients"])
    torch.autograd.set_detect_anomaly(state["anomaly mode"])
    torch.autograd.set_multithreading_enabled(state["multithreaded backward"])
    backends.cudnn.enabled = state["cudnn.enabled"]
    backends.cudnn.benchmark = state["cudnn.benchmark"]
    backends.cudnn.deterministic = state["cudnn.deterministic"]
    backends.cudnn.allow_tf32 = state["cudnn.allow_tf32"]
    matmul = backends.cuda.matmul
    matmul.allow_fp16_reduced_precision_reduction = state["reduced precision fp16"]
    matmul.allow_bf16_reduced_precision_reduction = state["reduced precision bf16"]
    torch.set_rng_state(_bytes(state["random"]))
    if "random on GPUs" in state:
        torch.cuda.set_rng_state_all([_bytes(s) for s in state["random on GPUs"]])


def _bytes(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
