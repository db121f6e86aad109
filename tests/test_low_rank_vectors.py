"""The vectors of low rank and of quantising, in plain Python: projections, symbols, sums, bases and
clips of a series come out the same, bit for bit."""

import json
from copy import deepcopy
from math import prod
from pathlib import Path

import low_rank_oracle as oracle
import pytest

FOLDER = Path(__file__).parents[1] / "fixtures" / "vectors"
SERIES = sorted(FOLDER.glob("low_rank_*.json"))
QUANTISED = sorted(FOLDER.glob("quantised_*.json"))


def integers(text):
    return [int(word) for word in text.split()]


def reals(text):
    return [float(word) for word in text.split()]


class RoundOfVector:
    """One round of a series, with the sizes that follow from it."""

    def __init__(self, vector, number):
        self.says = vector["rounds"][number]
        self.shapes = [tensor["shape"] for tensor in vector["tensors"]]
        self.names = [tensor["name"] for tensor in vector["tensors"]]
        self.rank, self.side = self.says["rank"], self.says["side"]
        self.bases = [[integers(row) for row in rows] for rows in self.says["bases"]]
        self.clips = reals(self.says["clips"])
        self.scales = integers(self.says["scales"])
        self.sizes = [oracle.symbol_count(shape, self.rank, self.side) for shape in self.shapes]

    def tensors(self, flat):
        return oracle.parts(flat, map(prod, self.shapes))

    def reduced(self, flat):
        found = []
        for part, shape, basis in zip(self.tensors(flat), self.shapes, self.bases, strict=True):
            rows = oracle.projected(part, shape, basis, self.side) if basis else [part]
            found += [value for row in rows for value in row]
        return found

    def decoded(self, symbols):
        flat = []
        parts = oracle.parts(symbols, self.sizes)
        for part, shape, basis, scale in zip(
            parts, self.shapes, self.bases, self.scales, strict=True
        ):
            if basis:
                flat += oracle.unprojected(part, shape, basis, self.side, scale)
            else:
                flat += [v / scale for v in part]
        return flat

    def of_each_symbol(self, values):
        """The value of its tensor."""
        pairs = zip(values, self.sizes, strict=True)
        return [value for value, size in pairs for _ in range(size)]

    def columns(self):
        """Of the sum's symbols, by tensor."""
        parts = oracle.parts(integers(self.says["sum"]), self.sizes)
        return [
            oracle.columns_of(part, shape, self.rank, self.side)
            for part, shape in zip(parts, self.shapes, strict=True)
        ]

    def bases_from(self, columns, nonce):
        return [
            oracle.basis(shape, self.rank, self.side, columns=each, nonce=nonce, name=name)
            for shape, name, each in zip(self.shapes, self.names, columns, strict=True)
        ]

    def nonce(self, key="nonce"):
        return bytes.fromhex(self.says[key])


def check_inputs(vector, number):
    """From gradients to the sum, and back."""
    r = RoundOfVector(vector, number)
    q, users = vector["field"], vector["users"]
    largest = (q - 1) // 2 // users
    total = [0] * sum(r.sizes)
    for user, says in r.says["users"].items():
        flat, weight = reals(says["gradient"]), vector["weights"][user]
        values = r.reduced(flat)
        assert values == reals(says["reduced"])
        key = oracle.rounding_key(bytes.fromhex(vector["keys"][user]), range(len(values)), values)
        symbols, clipped = oracle.quantised(
            values,
            clips=r.of_each_symbol(r.clips),
            scales=r.of_each_symbol(r.scales),
            weight=weight,
            largest=largest,
            key=key,
        )
        assert symbols == integers(says["symbols"])
        assert clipped == says["clipped"]
        sent = r.decoded(symbols)
        assert [weight * x - y for x, y in zip(flat, sent, strict=True)] == reals(says["unsent"])
        total = [a + b for a, b in zip(total, symbols, strict=True)]
    assert total == integers(r.says["sum"])
    assert r.decoded(total) == reals(r.says["decoded"])


def check_agreed(vector):
    """Sides, bases and clips of all rounds."""
    one, two, three, four = (RoundOfVector(vector, number) for number in range(4))
    nothing = [[]] * len(one.shapes)
    assert one.bases == one.bases_from(nothing, one.nonce())
    assert two.bases == two.bases_from(one.columns(), one.nonce("session"))
    kept = [oracle.transposed(basis) for basis in two.bases]
    assert three.bases == three.bases_from(kept, three.nonce())
    assert four.bases == four.bases_from(three.columns(), three.nonce("session"))
    assert [r.side for r in (one, two, three, four)] == ["right", "left", "left", "right"]

    assert three.clips == two.clips
    for last, following in ((one, two), (three, four)):
        sizes = following.sizes
        parts = oracle.parts(following.reduced(reals(last.says["decoded"])), sizes)
        factor = vector["clip_factor"] / vector["max_weight"]
        assert following.clips == [
            max(factor * max(map(abs, part)), clip / 16)
            for part, clip in zip(parts, last.clips, strict=True)
        ]
    for r in (one, two, three, four):
        assert oracle.digest(r.bases) == r.says["basis"]
        assert [bool(basis) for basis in r.bases] == [
            kind == "low-rank" for kind in r.says["reductions"]
        ]
        assert r.scales == [
            oracle.steps(vector["field"], vector["users"], clip, vector["max_weight"])
            for clip in r.clips
        ]


@pytest.fixture(params=SERIES, ids=lambda path: path.stem)
def series(request):
    return json.loads(request.param.read_text())


@pytest.mark.parametrize("number", [0, 2, 3])
def test_what_users_send_and_what_they_sum_is_the_vectors(series, number):
    check_inputs(series, number)


def test_what_users_agree_on_follows_from_the_rounds_before(series):
    check_agreed(series)


def test_a_series_has_what_can_be_got_wrong(series):
    """Clamped values, a zero sum, a tensor that is whole and projected later, ranks that grow and
    shrink."""
    assert len(SERIES) == 2
    rounds = series["rounds"]
    assert any(user["clipped"] for user in rounds[0]["users"].values())
    fc = [tensor["name"] for tensor in series["tensors"]].index("fc.weight")
    assert not any(RoundOfVector(series, 2).columns()[fc][0])
    assert [rounds[n]["reductions"][3] for n in (0, 3)] == ["whole", "low-rank"]
    assert [each["rank"] for each in rounds] == [2, 2, 3, 1]


def test_another_symbol_basis_or_clip_is_noticed(series):
    """The twin: every check fails where one number is another one."""

    def moved(path, by=1):
        changed = deepcopy(series)
        *above, last = path
        place = changed
        for step in above:
            place = place[step]
        first, *others = place[last].split()
        number = type(by)(first) + by
        place[last] = " ".join([str(number), *others])
        return changed

    for path in (
        ("rounds", 0, "users", "1", "symbols"),
        ("rounds", 0, "sum"),
        ("rounds", 0, "bases", 0, 0),
    ):
        with pytest.raises(AssertionError):
            check_inputs(moved(path), 0)
    for path, by in (
        (("rounds", 1, "bases", 0, 0), 1),
        (("rounds", 3, "clips"), 2.0**-40),
        (("rounds", 3, "scales"), 1),
    ):
        with pytest.raises(AssertionError):
            check_agreed(moved(path, by))


@pytest.mark.parametrize("path", QUANTISED, ids=lambda path: path.stem)
def test_every_value_is_rounded_in_the_steps_of_its_tensor(path):
    vector = json.loads(path.read_text())
    q, users = vector["field"], vector["users"]
    index, values = integers(vector["index"]), reals(vector["values"])
    scales = integers(vector["scales"])
    clips = [each["clip"] for each in vector["clips"]]
    assert scales == [oracle.steps(q, users, clip, vector["max_weight"]) for clip in clips]
    part_of = [at for at, each in enumerate(vector["clips"]) for _ in range(each["length"])]
    symbols, clipped = oracle.quantised(
        values,
        clips=[clips[part_of[k]] for k in index],
        scales=[scales[part_of[k]] for k in index],
        weight=vector["weight"],
        largest=vector["largest"],
        key=oracle.rounding_key(bytes.fromhex(vector["key"]), index, values),
    )
    assert vector["largest"] == (q - 1) // 2 // users
    assert [v % q for v in symbols] == integers(vector["symbols"])
    assert clipped == vector["clipped"] > 0
    expected = [v / scales[part_of[k]] for v, k in zip(symbols, index, strict=True)]
    assert expected == reals(vector["reals"])
