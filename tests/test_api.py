"""The library in a notebook: reprs of a few lines, and help that names every argument."""

import inspect
import re
from typing import get_type_hints

import numpy as np
import pytest

import topk_secagg as ts
from topk_secagg.brief import laid_out, shown
from topk_secagg.steps.init import RoundOptions

FUNCTIONS = [name for name in ts.__all__ if inspect.isfunction(getattr(ts, name))]
MOST_LINES = 16
WIDEST = 120


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A round with forty users, so that lists are long, and its report."""
    folder = tmp_path_factory.mktemp("finished")
    files = []
    for n in range(40):
        files.append(folder / f"{n}.npz")
        values = np.random.default_rng(n).uniform(-1, 1, 300)
        np.savez(files[-1], **{f"layer{i}": part for i, part in enumerate(np.split(values, 30))})
    options = {"users": 40, "survivors": 30, "colluders": 2, "top_k": 10}
    space = ts.init(folder / "round", **options, like=files[0], construction="moments")
    return space, ts.run(space, files)


def test_reprs_are_a_few_lines(finished):
    space, report = finished
    gradients = [np.random.default_rng(n).uniform(-1, 1, 5000) for n in range(40)]
    result = ts.aggregate(gradients, survivors=30, colluders=2, top_k=10, residuals={})
    things = [
        space,
        space.session,
        space.session.parameters,
        report,
        report.masked[0],
        report.answered[0],
        report.decoded,
        result,
        result.costs,
        ts.plan(space.session.parameters),
        ts.status(space),
        ts.inspect(space.session_path),
        ts.inspect(space.aggregate_path),
        ts.forget(space, 1),
        ts.Access(),
    ]
    for thing in things:
        lines = repr(thing).splitlines()
        assert lines[0].startswith(type(thing).__name__)
        assert len(lines) <= MOST_LINES, repr(thing)
        assert max(map(len, lines)) <= WIDEST, repr(thing)


def test_a_repr_says_what_matters_and_not_what_was_sent(finished):
    space, report = finished
    assert space.session.fingerprint in repr(space)
    assert "N 40, U 30, T 2, K 10" in repr(space)
    assert "masked=[40 x MaskReport]" in repr(report)
    result = ts.aggregate([np.full(9, 0.123)] * 3, survivors=2, colluders=1, top_k=9, clip=1.0)
    assert "total=<float64 array (9,)>" in repr(result)
    assert "0.123" not in repr(result)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_residuals_go_into_the_next_round_as_they_are(kind):
    """They are in float64, so that nothing is lost, and the gradients need not be."""
    rng = np.random.default_rng(0)
    gradients = [
        {"w": rng.uniform(-1, 1, 40).astype(kind), "b": np.ones(2, kind)} for _ in range(4)
    ]
    options = {"survivors": 3, "colluders": 1, "top_k": 4}
    first = ts.aggregate(gradients, **options, residuals={})
    second = ts.aggregate(gradients, **options, residuals=first.residuals, clip=4.0)
    everything = sum(first.total["w"] + second.total["w"])
    kept = sum(sum(residual["w"]) for residual in second.residuals.values())
    wanted = 2 * sum(float(value) for gradient in gradients for value in gradient["w"])
    assert everything + kept == pytest.approx(wanted, abs=0.05 if kind == "float16" else 1e-4)


def test_a_folder_without_a_round_has_a_repr(tmp_path):
    assert repr(ts.Workspace(tmp_path / "none")) == laid_out(
        "Workspace", [repr(str(tmp_path / "none"))]
    )


def test_values_in_a_repr_are_short():
    assert shown(np.zeros((2, 3), np.float32)) == "<float32 array (2, 3)>"
    assert shown(list(range(1000))).endswith(", ... 1000 in all]")
    assert len(shown("x" * 1000)) < 100


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_names_every_argument(name):
    function = getattr(ts, name)
    text = inspect.getdoc(function)
    names = [
        name
        for name, one in inspect.signature(function).parameters.items()
        if one.kind != one.VAR_KEYWORD
    ]
    if any(one.kind == one.VAR_KEYWORD for one in inspect.signature(function).parameters.values()):
        names += get_type_hints(RoundOptions)
    described = re.findall(r"^(\w+): ", text, re.MULTILINE)
    assert [one for one in names if one not in described] == []
    assert set(described) <= set(names)


def test_help_of_the_parameters_names_every_argument():
    described = re.findall(r"^(\w+): ", inspect.getdoc(ts.Parameters.choose), re.MULTILINE)
    assert described == list(inspect.signature(ts.Parameters.choose).parameters)
