"""The three forms in which experiments/cifar.py finds CIFAR-10."""

import io
import json
import pickle
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
import cifar

IMAGES = np.random.default_rng(0).integers(256, size=(15, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(15) % 10


def parts() -> list[tuple[str, np.ndarray, np.ndarray]]:
    return [
        (name, IMAGES[3 * n :][:3], LABELS[3 * n :][:3])
        for n, name in enumerate(cifar.PARTS["train"])
    ]


def as_python() -> dict[str, bytes]:
    return {
        f"cifar-10-batches-py/{name}": pickle.dumps(
            {b"data": images.reshape(-1, 3072), b"labels": labels.tolist()}, 2
        )
        for name, images, labels in parts()
    }


def as_binary() -> dict[str, bytes]:
    return {
        f"cifar-10-batches-bin/{name}.bin": np.column_stack(
            [labels.astype(np.uint8), images.reshape(-1, 3072)]
        ).tobytes()
        for name, images, labels in parts()
    }


def as_sheets() -> dict[str, bytes]:
    image = pytest.importorskip("PIL.Image")
    files = {"train_lables.json": json.dumps(LABELS.tolist()).encode()}
    for name, images, _ in parts():
        stream = io.BytesIO()
        image.fromarray(images.transpose(0, 2, 3, 1).reshape(-1, 1024, 3)).save(stream, "png")
        files[f"{name}.png"] = stream.getvalue()
    return files


@pytest.mark.parametrize("form", [as_python, as_binary, as_sheets])
@pytest.mark.parametrize("packed", [False, True])
def test_every_form_gives_the_same_images(form, packed, tmp_path):
    path = tmp_path / "data.tar.gz" if packed else tmp_path
    if packed:
        with tarfile.open(path, "w:gz") as tar:
            for name, content in form().items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    else:
        for name, content in form().items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
    images, labels = cifar.load("train", path)
    assert np.array_equal(images, IMAGES)
    assert np.array_equal(labels, LABELS)


def test_what_is_not_there_is_not_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "download", lambda _: pytest.fail("it was not asked for"))
    with pytest.raises(SystemExit, match="does not hold CIFAR-10"):
        cifar.load("train", tmp_path / "missing")


def test_a_batch_that_would_run_something_is_refused(tmp_path):
    for name in cifar.PARTS["train"]:
        (tmp_path / name).write_bytes(pickle.dumps(print, 2))
    with pytest.raises(pickle.UnpicklingError, match="does not belong"):
        cifar.load("train", tmp_path)
