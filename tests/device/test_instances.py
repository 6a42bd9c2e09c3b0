"""Every kernel instance compiles for every architecture and spills no more than is recorded.

``python tests/device/test_instances.py`` writes the record anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from maxk.device.kernel import Spec, _version, build
from maxk.device.properties import H200
from maxk.ops.maxk import cuda as maxk
from maxk.ops.maxk.plan_cuda import plan_cuda as plan_maxk
from maxk.ops.norm_maxk import cuda as norm_maxk
from maxk.ops.norm_maxk.plan_cuda import plan_cuda as plan_norm
from maxk.ops.shape import FeatureShape
from maxk.ops.spgemm import cuda as spgemm
from maxk.ops.spgemm.plan_cuda import plan_cuda as plan_spgemm
from maxk.ops.spmm import cuda as spmm
from maxk.ops.sspmm import cuda as sspmm
from maxk.ops.sspmm.plan_cuda import plan_cuda as plan_sspmm

RECORD = Path(__file__).with_name("spills.json")
#: Another release of the compiler may spill elsewhere.
RECORDED_WITH = "13.0"
ARCHITECTURES = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


@dataclass(frozen=True)
class Counts:
    num_src: int
    num_dst: int
    num_edges: int


# Many, some and few edges a row; the many with features past the L2.
GRAPHS = [
    Counts(232965, 232965, 101283392), Counts(2449029, 2449029, 123718280),
    Counts(89250, 89250, 899756),
]  # fmt: skip
SHAPES = [
    *(FeatureShape(256, k, torch.float32) for k in (2, 8, 16, 32, 64, 96, 128, 192)),
    FeatureShape(256, 32, torch.bfloat16), FeatureShape(256, 32, torch.float16),
    FeatureShape(384, 32, torch.float32), FeatureShape(33, 7, torch.float32),
    FeatureShape(1000, 32, torch.float32), FeatureShape(4096, 32, torch.bfloat16),
    FeatureShape(40000, 40, torch.float32), FeatureShape(1, 1, torch.float32),
]  # fmt: skip


def instances() -> list[Spec]:
    """What the plans choose for these graphs and shapes."""
    found: dict[Spec, None] = {}
    for shape in SHAPES:
        found[maxk.select_spec(plan_maxk(shape), shape)] = None
        found[maxk.scatter_spec(shape)[0]] = None
        found[maxk.add_spec(shape)] = None
        fused = plan_norm(shape)
        if fused.kernel == "fused":
            found.update(dict.fromkeys(norm_maxk.specs(fused, shape)))
        found[sspmm.sddmm_spec(shape)[0]] = None
        found[spmm.sddmm_spec(shape.width, shape.dtype)] = None
        for spec in _aggregations(shape):
            found[spec] = None
    return list(found)


def _aggregations(shape: FeatureShape) -> Iterator[Spec]:
    for graph in GRAPHS:
        for precision in ("highest", "high"):
            for weighted in (False, True):
                plan = plan_spgemm(graph, shape, weighted=weighted, precision=precision)
                if plan.kernel != "dense":
                    yield from spgemm.specs(plan, shape, weighted=weighted).values()
        for deterministic in (False, True):
            backward = plan_sspmm(graph, shape, H200, deterministic=deterministic)
            if backward.kernel != "dense":
                yield from sspmm.specs(backward, shape, weighted=False)
                yield from sspmm.specs(backward, shape, weighted=True)


def spills(capability: tuple[int, int]) -> dict[str, int]:
    """Bytes spilled by each instance that spills."""
    specs = instances()
    with ThreadPoolExecutor(2) as pool:
        binaries = pool.map(lambda spec: build(spec, capability), specs)
        found = {
            str(spec): binary.resources(spec.entry).spill_bytes
            for spec, binary in zip(specs, binaries, strict=True)
        }
    return {name: count for name, count in found.items() if count}


@pytest.mark.slow
@pytest.mark.parametrize("capability", ARCHITECTURES, ids=lambda c: f"sm_{c[0]}{c[1]}")
def test_spills(capability: tuple[int, int]) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    recorded = json.loads(RECORD.read_text())[f"sm_{capability[0]}{capability[1]}"]
    found = spills(capability)  # compiles every instance
    if not _version().startswith(RECORDED_WITH):
        pytest.skip(f"all compiled; spills are recorded for NVRTC {RECORDED_WITH}")
    assert {n: c for n, c in found.items() if c > recorded.get(n, 0)} == {}


def main() -> None:
    record = {f"sm_{c[0]}{c[1]}": spills(c) for c in ARCHITECTURES}
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
