"""Files that claim terabytes, with metadata that fits: an auditor looks at sizes before content."""

import numpy as np
import pytest

import topk_secagg as ts
from topk_secagg.steps.inspect import KINDS
from topk_secagg.storage.artifacts import laid_out

HUGE = 1 << 39  # symbols of four bytes: 2 TB, of which the disk has nothing
CLAIMS = {
    "elimination/user-02.h5": ("elimination", {"y": (1, HUGE)}, {"survivors": "0" * 64, "blocks": 2}),
    "masked/user-02.h5": (
        "masked",
        {"index": (1,), "value": (HUGE,), "holds": (1,)},
        {"sharing": "0" * 64, "weight": "1.0"},
    ),
    "aggregate.h5": (
        "aggregate",
        {"index": (HUGE,), "value": (1,), "real": (1,), "survivors": (1,), "answering": (1,), "corrected": (1,)},
        {"survivors": "0" * 64, "blocks": 2},
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_file_that_claims_two_terabytes_is_refused_unread(name, tmp_path):
    files = []
    for n in range(4):
        files.append(tmp_path / f"user-{n}.npy")
        np.save(files[-1], np.random.default_rng(n).uniform(-1, 1, 6))
    space = ts.init(tmp_path / "round", users=4, survivors=3, colluders=1, top_k=2, length=6)
    ts.run(space, files)
    kind_name, shapes, attributes = CLAIMS[name]
    kind = next(kind for kind in KINDS if kind.name == kind_name)
    types = {dataset: (kind.layouts[0][dataset][-1], shape) for dataset, shape in shapes.items()}
    path = space.root / name
    path.unlink()
    header = space.session.header(0 if name == "aggregate.h5" else 2)
    common = {"format": "topk-secagg", "version": 1, "kind": kind_name, "sha256": "0" * 64}
    with path.open("w+b") as stream, laid_out(stream, kind, types) as writer:
        writer.finish({**header, **attributes, **common})
    assert path.stat().st_size > 2e12
    failed = {finding.subject: finding.why for finding in ts.audit(space) if finding.verdict == "fail"}
    assert failed[name] == "it is larger than any such file of this session"
