"""`aggregate`: every form of gradient, residuals that go round, the clip, and errors to catch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import topk_secagg as ts
from topk_secagg.algebra.randomness import CipherRandomness, SystemRandomness
from topk_secagg.gradients.tensors import narrow, widen
from topk_secagg.rounds import aggregate as aggregate_step

USERS = 4
SMALL = {"survivors": 3, "colluders": 1, "top_k": 3}


class Tensor:
    """As much of a torch tensor as `aggregate` uses; numpy holds bfloat16 as float32."""

    def __init__(self, values, dtype="float32"):
        self.dtype = f"torch.{dtype}"
        self.values = np.array(values, np.float32 if dtype == "bfloat16" else dtype)
        if dtype == "bfloat16":
            self.values = widen(narrow(self.values))

    @property
    def shape(self):
        return self.values.shape

    def detach(self):
        return self

    cpu = detach

    def float(self):
        return Tensor(self.values, "float32")

    def double(self):
        return Tensor(self.values, "float64")

    def numpy(self):
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values

    def new_tensor(self, values):
        return Tensor(values, self.dtype.removeprefix("torch."))


def array(rng):
    return rng.normal(size=12).astype(np.float32)


def mapping(rng):
    half = rng.normal(size=4).astype(np.float16)
    return {"w": rng.normal(size=(2, 4)).astype(np.float32), "b": half}


def sequence(rng):
    return [rng.normal(size=(2, 4)).astype(np.float32), None, rng.normal(size=4)]


def state_dict(rng):
    return {"w": Tensor(rng.normal(size=(2, 4))), "b": Tensor(rng.normal(size=4), "bfloat16")}


def tensor(rng):
    return Tensor(rng.normal(size=12), "bfloat16")


def tensors(rng):
    return (Tensor(rng.normal(size=8)), Tensor(rng.normal(size=4), "float64"))


FORMS = (array, mapping, sequence, state_dict, tensor, tensors)
each_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def parts(gradient):
    """The arrays of a gradient in any form, in order."""
    if isinstance(gradient, dict):
        gradient = list(gradient.values())
    each = gradient if isinstance(gradient, list | tuple) else [gradient]
    return [np.asarray(getattr(part, "values", part)) for part in each if part is not None]


def flat(gradient):
    return np.concatenate([part.reshape(-1).astype(np.float64) for part in parts(gradient)])


def users_of(form, seed=0):
    rng = np.random.default_rng(seed)
    return [form(rng) for _ in range(USERS)]


class TestResiduals:
    @each_form
    @pytest.mark.parametrize("construction", ["permutation", "sketch"])
    def test_they_go_into_the_next_round_as_they_come_out(self, form, construction):
        """After three rounds, what was given is what was sent plus what is kept."""
        given = sent = 0.0
        kept = {}
        for number in range(3):
            gradients = users_of(form, number)
            given += sum(map(flat, gradients))
            found = ts.aggregate(gradients, **SMALL, construction=construction, residuals=kept)
            for one in found.sent.values():
                total = np.zeros(12)
                total[one.index] = reals(found, one.value)
                sent += total
            kept = found.residuals
        assert np.abs(sent + sum(map(flat, kept.values())) - given).max() < 1e-12
        assert {part.dtype for n in kept for part in parts(kept[n])} == {np.dtype(np.float64)}

    @each_form
    def test_they_and_the_sum_have_the_form_of_a_gradient(self, form):
        gradients = users_of(form)
        found = ts.aggregate(gradients, **SMALL, residuals={})
        shape = type(gradients[0]) if form is not tensors else list
        for one in (found.total, *found.residuals.values()):
            assert type(one) is shape
            assert [part.shape for part in parts(one)] == [p.shape for p in parts(gradients[0])]
        types = [part.dtype for part in parts(gradients[0])]
        assert [part.dtype for part in parts(found.total)] == types
        if form is mapping:
            assert list(found.total) == ["w", "b"]
        if form is sequence:
            assert found.total[1] is None
        if form is state_dict:
            assert found.total["b"].dtype == "torch.bfloat16"
            assert found.residuals[1]["b"].dtype == "torch.float64"

    def test_a_user_that_dropped_out_keeps_its_own(self):
        gradients = users_of(mapping)
        first = ts.aggregate(gradients, **SMALL, residuals={})
        again = ts.aggregate(gradients, **SMALL, residuals=first.residuals, drop_masking=[2])
        assert again.residuals[2] is first.residuals[2]
        assert ts.aggregate(gradients, **SMALL).residuals is None

    def test_a_residual_of_another_shape_or_of_nobody_is_refused(self):
        gradients = users_of(array)
        for residuals, error in (
            ({1: np.zeros(11)}, "the residual of user 1: tensor"),
            ({9: np.zeros(12)}, "residuals has user 9"),
            ({1: np.full(12, np.nan)}, "the residual of user 1"),
            (Path("residuals"), "is a path"),
        ):
            with pytest.raises(ts.SecAggError, match=error):
                ts.aggregate(gradients, **SMALL, residuals=residuals)


def reals(found, value):
    """Of a round with one clip."""
    signed = value.astype(np.int64)
    signed[signed > found.parameters.field // 2] -= found.parameters.field
    (run,) = found.fixed_point.runs
    return signed / run.scale


class TestGradients:
    def test_buffers_are_left_out_as_of_files(self):
        rng = np.random.default_rng(0)
        gradients = [
            {
                "w": rng.normal(size=8),
                "bn.running_mean": np.full(4, 1e9),
                "bn.num_batches_tracked": np.array(7),
            }
            for _ in range(USERS)
        ]
        found = ts.aggregate(gradients, **SMALL)
        assert list(found.total) == ["w"]
        assert found.parameters.length == 8
        left_out = "left out, not gradients: bn.running_mean, bn.num_batches_tracked"
        assert left_out in found.notes

    def test_names_that_are_no_strings_come_back_as_they_are(self):
        gradients = [{0: np.ones(3), (1, "b"): np.ones(3)} for _ in range(USERS)]
        assert list(ts.aggregate(gradients, **SMALL).total) == [0, (1, "b")]
        twice = [{1: np.ones(3), "1": np.ones(3)} for _ in range(USERS)]
        with pytest.raises(ts.SecAggError, match="the same name"):
            ts.aggregate(twice, **SMALL)

    def test_a_list_of_numbers_is_one_array(self):
        found = ts.aggregate([[0.5, 0.25, 0.0, -1.0]] * USERS, **SMALL)
        assert found.total.shape == (4,)

    @pytest.mark.parametrize("path", ["user-1.pt", Path("user-1.pt"), b"user-1.pt"])
    def test_a_path_is_refused_with_what_to_do(self, path):
        whole = [path] * USERS
        part = [{"w": path}] * USERS
        for gradients in (path, whole, part):
            with pytest.raises(ts.SecAggError, match="is a path, not a gradient") as caught:
                ts.aggregate(gradients, **SMALL)
            assert caught.value.hint == "load the file first, or use run, which reads files"
            assert caught.value.exit_code == 2

    def test_gradients_that_do_not_fit_name_the_user(self):
        gradients = users_of(mapping)
        gradients[2] = {**gradients[2], "b": np.zeros(4)}
        with pytest.raises(ts.SecAggError, match="the gradient of user 3: tensor 'b' has type"):
            ts.aggregate(gradients, **SMALL)


class Module:
    """As much of a torch.nn.Module as `aggregate` uses."""

    def __init__(self, **gradients):
        self.gradients = gradients

    def named_parameters(self):
        return ((name, Parameter(grad)) for name, grad in self.gradients.items())


class Parameter:
    def __init__(self, grad):
        self.grad = grad


class TestModules:
    def test_a_module_stands_for_what_backward_left_in_it(self):
        modules = [Module(w=np.full((2, 2), float(n)), frozen=None) for n in range(1, 5)]
        result = ts.aggregate(modules, survivors=3, colluders=1, top_k=4)
        assert list(result.total) == ["w"]
        assert result.total["w"] == pytest.approx(np.full((2, 2), 10.0))
        assert any("frozen" in note for note in result.notes)

    def test_residuals_come_back_under_the_same_names(self):
        modules = [Module(w=np.arange(1.0, 5), b=np.arange(1.0, 3)) for _ in range(USERS)]
        first = ts.aggregate(modules, residuals={}, **SMALL)
        assert {name: r.shape for name, r in first.residuals[1].items()} == {"w": (4,), "b": (2,)}
        ts.aggregate(modules, residuals=first.residuals, **SMALL)

    def test_before_backward_it_is_refused_with_what_to_do(self):
        with pytest.raises(ts.BadData, match="the module has no gradients") as caught:
            ts.aggregate([Module(w=None)] * USERS, **SMALL)
        assert "backward()" in caught.value.hint
        assert "state_dict()" in caught.value.hint

    def test_a_user_masks_a_module(self, tmp_path):
        module = Module(w=np.arange(1.0, 5))
        assert ts.run(tmp_path / "r", [module] * USERS, **SMALL).total["w"].shape == (4,)


class TestClip:
    def test_without_one_it_is_the_largest_magnitude_that_is_sent(self):
        gradients = [np.array([0.25, -3.5, 0.5, 0.0])] * USERS
        found = ts.aggregate(gradients, **SMALL)
        assert (found.fixed_point.clip, found.clipped) == (3.5, 0)
        assert "the clip is 3.5, the largest magnitude of all gradients" in found.notes
        kept = {2: np.array([0.0, -3.0, 0.0, 0.0])}
        again = ts.aggregate(gradients, **SMALL, weights=[1, 2, 3, 0.5], residuals=kept)
        assert (again.fixed_point.clip, again.parameters.max_weight) == (5.0, 3.0)
        assert np.abs(again.total[1] + 3.5 * 6.5 + 3.0) < 1e-6

    @pytest.mark.parametrize(("largest", "clip"), [(0.0, 1.0), (5e-324, 2.0**-900), (1e-30, 1e-30)])
    def test_gradients_of_zeros_and_tiny_ones_have_a_clip_too(self, largest, clip):
        found = ts.aggregate([np.array([largest, 0.0, 0.0, 0.0])] * USERS, **SMALL)
        assert found.fixed_point.clip == clip

    def test_with_one_all_users_beyond_it_are_named_with_the_one_value_that_would_do(self):
        gradients = [np.array([size, 0.0, 0.0, 0.0]) for size in (0.5, 3.64, 0.75, -2.0)]
        said = "values of users 2, 4 are beyond the clip of 1: the largest is 3.64"
        with pytest.raises(ts.SecAggError, match=said) as caught:
            ts.aggregate(gradients, **SMALL, clip=1.0)
        assert caught.value.hint == "clamp them, or choose a clip of 3.7"
        assert ts.aggregate(gradients, **SMALL, clip=3.7).clipped == 0
        assert ts.aggregate(gradients, **SMALL, clip=1.0, saturate=True).clipped == 2

    def test_what_rounding_adds_is_told(self):
        gradients = users_of(array)
        assert ts.aggregate(gradients, **SMALL).rounding_error < 1e-6
        coarse = ts.aggregate(gradients, **SMALL, field=65521, clip=1000.0)
        assert coarse.rounding_error > 0.05


@pytest.mark.parametrize(("name", "kind"), [("cipher", CipherRandomness), ("os", SystemRandomness)])
def test_the_source_of_randomness_is_the_one_that_was_asked_for(monkeypatch, name, kind):
    used = []
    honest = aggregate_step.run_round

    def watched(*given, randomness, **named):
        used.append(type(randomness))
        return honest(*given, randomness=randomness, **named)

    monkeypatch.setattr(aggregate_step, "run_round", watched)
    ts.aggregate(users_of(array), **SMALL, randomness=name)
    assert used == [kind]


def test_an_option_that_does_not_exist_is_named():
    with pytest.raises(ts.SecAggError, match="there is no option 'topk'"):
        ts.aggregate(users_of(array), survivors=3, colluders=1, topk=3)


class TestDensity:
    @pytest.mark.parametrize("one", [1, np.int64(1)])
    def test_the_integer_one_is_asked_about(self, one):
        with pytest.raises(ts.SecAggError, match="may mean 1 %") as caught:
            ts.aggregate(users_of(array), survivors=3, colluders=1, density=one)
        assert "1.0 sends all" in caught.value.hint
        found = ts.aggregate(users_of(array), survivors=3, colluders=1, density=1.0)
        assert (found.reduction.name, found.parameters.whole) == ("whole", 12)

    def test_k_and_a_density_contradict_each_other(self):
        with pytest.raises(ts.SecAggError, match="both K and a density are given"):
            ts.aggregate(users_of(array), **SMALL, density=0.5)


# --- anything at all as arguments

odd = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.integers(), st.floats(), st.text(max_size=3),
    st.binary(max_size=3), st.just(10**400), st.just([]), st.just({}), st.just(object()),
    st.sampled_from([np.zeros((2, 2)), np.array(["a"]), np.array([1j]), Path("x")]),
)  # fmt: skip
good = st.sampled_from(
    [np.array([0.5, -1.0, 0.25, 2.0]), np.array([0.5, -1.0, 0.25, 2.0], np.float32), [1.0, 2, 3, 4]]
)
names = st.text(max_size=2) | st.integers(0, 3)
gradient = st.one_of(
    odd,
    good,
    st.dictionaries(names, good | odd, max_size=3),
    st.lists(good | odd, max_size=3),
    st.sampled_from(
        [[1.0, [2.0]], np.float32(1.5), np.zeros(0), np.array(1.0), {"w": None}, [None]]
    ),
)
by_user = st.one_of(
    odd,
    st.lists(gradient, max_size=5),
    st.dictionaries(st.integers(0, 4) | st.text(max_size=1), gradient, max_size=4),
)
counts = st.integers(-1, 6) | odd
some = st.lists(st.integers(0, 5) | odd, max_size=2) | odd
weights = st.lists(st.floats(0.1, 3), min_size=4, max_size=4)
OPTIONS = {
    "drop_masking": some,
    "drop_elimination": some,
    "weights": weights | st.lists(odd, min_size=4, max_size=4) | odd,
    "residuals": by_user,
    "select": st.sampled_from(["top", "random"]) | odd,
    "saturate": st.booleans(),
    "mean": st.booleans(),
    "randomness": st.sampled_from(["cipher", "os"]) | odd,
    "top_k": counts,
    "density": st.floats(0, 1) | odd,
    "field": st.sampled_from([65521, 5, 97, 4]) | odd,
    "construction": st.sampled_from(["permutation", "sketch"]) | odd,
    "picks": counts,
    "clip": st.floats(0, 10) | odd,
    "rank": st.integers(1, 3) | odd,
    "whole": st.booleans() | odd,
    "whole_tensors": st.text(max_size=2) | st.lists(odd, max_size=2) | odd,
    "feedback_decay": st.floats(0, 1) | odd,
    "clip_from_sum": st.floats(0, 3) | odd,
}


@st.composite
def calls(draw):
    """A call that would do, with at most three of its arguments replaced by anything."""
    arguments = {"gradients": draw(st.lists(good, min_size=4, max_size=4)), **SMALL}
    anything = {"gradients": by_user, "survivors": counts, "colluders": counts, **OPTIONS}
    for name in draw(st.lists(st.sampled_from(sorted(anything)), max_size=3, unique=True)):
        arguments[name] = draw(anything[name])
    if draw(st.booleans()) and arguments.keys() & {"density", "rank", "whole"}:
        del arguments["top_k"]
    return arguments


@settings(max_examples=400)
@given(calls())
def test_whatever_the_arguments_are_every_error_is_one_of_ours(arguments):
    failure = None
    try:
        ts.aggregate(**arguments)
    except ts.SecAggError as error:
        failure = error
    event("sum" if failure is None else type(failure).__name__)
    if failure is not None:
        assert failure.message
        assert failure.exit_code in (2, 65, 69)
