"""The vectors for other implementations: what the package makes today, and what plain integers make
of them."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import oracle
import pytest

from topk_secagg.protocol import decoding
from topk_secagg.protocol.parameters import DEALINGS

FOLDER = Path(__file__).parents[1] / "fixtures" / "vectors"
ROUNDS = ("permutation_", "sketch_")  # test_low_rank_vectors.py has the others
GOOD = sorted(path for path in FOLDER.glob("*.json") if path.name.startswith(ROUNDS))
BAD = sorted(FOLDER.glob("bad_*.json"))


def integers(words: Any) -> Any:
    """Words of hexadecimal digits as integers, row by row."""
    return (
        [integers(row) for row in words]
        if isinstance(words, list)
        else [int(w, 16) for w in words.split()]
    )


def pairs(message: dict[str, Any]) -> oracle.Pairs:
    index = message["index"]
    return list(
        zip(
            index if isinstance(index, list) else integers(index),
            integers(message["value"]),
            strict=True,
        )
    )


def parameters_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["parameters"]


def test_the_package_makes_the_same_vectors_again():
    kinds = {(p["construction"], p["dealing"]) for p in map(parameters_of, GOOD)}
    assert kinds == {(name, dealing) for name in DEALINGS for dealing in DEALINGS[name]}
    assert len(BAD) >= 20
    subprocess.run([sys.executable, FOLDER / "make.py", "--check"], check=True)


def symbols_of_keys(vector: dict[str, Any], dealer: int) -> dict[tuple[int, ...], Any]:
    """The tables that follow from a dealer's keys, by who holds them."""
    sizes = vector["derived"]
    drawn = {}
    for users, key in vector["keys"][str(dealer)].items():
        receivers = tuple(map(int, users.split(",")))
        stream = oracle.key_symbols(
            bytes.fromhex(key),
            vector["session"],
            dealer,
            receivers,
            vector["sharings"][str(dealer)],
            vector["parameters"]["field"],
        )
        drawn[receivers] = oracle.table(stream, sizes["rows"], sizes["width"])
    return drawn


def check_sketch(vector: dict[str, Any]) -> None:
    """Masks, shares, X, Y and the sketch of the sum."""
    p = vector["parameters"]
    q = p["field"]
    alpha, beta = vector["points"]["alpha"], vector["points"]["beta"]
    users = range(1, p["users"] + 1)
    u1 = vector["survivors"]
    picked = p["length"] - p["whole"]
    B = p["buckets"]
    M = oracle.place_count(picked, B) if B else 0
    if B:
        W = oracle.sketch_width(p["users"], p["picks"], M)
        of_whole = oracle.ceil_div(p["whole"], W)
    else:
        of_whole = oracle.buckets_of_whole(p["whole"], vector["blocks"])
        W = oracle.ceil_div(p["whole"], of_whole)
    assert vector["derived"]["width"] == W
    searched = M > W
    W1 = W
    order = gamma = 1
    if searched:
        order = oracle.order_of_places(M, q)
        gamma = oracle.element_of_order(order, q)
        places = oracle.place_count(p["whole"], of_whole) if of_whole else 0
        W1 = max(2 * len(u1) * p["picks"], places)

    def sketch_of(given: oracle.Pairs) -> list[oracle.Vector]:
        dense = [0] * p["length"]
        for k, w in given:
            dense[k] = w
        picks = [(k, w) for k, w in given if k < picked]
        table = (
            oracle.sketch_of(picks, B, W, gamma, q)
            if searched
            else oracle.table_of(dense[:picked], B, W)
        )
        return table + oracle.table_of(dense[picked:], of_whole, W)

    shares = {}
    x = {}
    for n in users:
        drawn = symbols_of_keys(vector, n)
        mask = integers(vector["secrets"][str(n)]["mask"])
        rows = [mask[at : at + W] for at in range(0, len(mask), W)]
        if p["dealing"] == "keys":
            assert [list(block) for block in drawn] == vector["family"]

            def f(at: int, drawn: Any = drawn) -> Any:
                return oracle.f_of_keys(drawn, alpha, at, q)

            for block, key in vector["keys"][str(n)].items():
                committed = oracle.child(bytes.fromhex(key), f"commitment {n} {block}")
                assert vector["commitments"][str(n)][block] == committed.hex()
        else:
            values = {b: rows[i :: len(beta)] for i, b in enumerate(beta)}
            (noise,) = (integers(z) for z in vector["noise"][str(n)])
            for t in range(p["colluders"]):
                values[alpha[t]] = [z[t] for z in noise]
            assert len(values) == p["survivors"]

            def f(at: int, values: Any = values) -> Any:
                return oracle.f_of_values(values, at, q)

        assert rows == oracle.bucket_masks([f(b) for b in beta], len(rows))
        shares |= {(m, n): f(alpha[m - 1]) for m in users}
        assert all(shares[m, n] == integers(vector["shares"][str(n)][str(m)]["f"]) for m in users)
        if n in u1:
            sketch = sketch_of(pairs(vector["inputs"][str(n)]))
            x[n] = oracle.mask_sketch(sketch, rows[: B + of_whole], q)
            assert integers(vector["masked"][str(n)]["value"]) == [v for row in x[n] for v in row]
            assert (
                vector["masked"][str(n)]["index"] == vector["masked"][str(n)]["packed_index"] == ""
            )
    answers = {}
    for n in vector["answering"]:
        y = oracle.answer_sketch([shares[n, m] for m in u1], W1, q)
        if n in vector["corrected"]:
            assert y != integers(vector["answers"][str(n)])
        else:
            assert y == integers(vector["answers"][str(n)])
            answers[n] = y
    sketch = oracle.decode_sketch(answers, list(x.values()), alpha, beta, q)
    total = dict(pairs(vector["sum"]))
    expected = sketch_of(list(total.items()))
    assert sketch == [row[:W1] for row in expected]
    for b, sums in enumerate(sketch[:B] if searched else ()):
        enough = sums[: 2 * len(u1) * p["picks"]]
        whole = oracle.recover(enough, order, len(u1) * p["picks"], gamma, q)
        found = {k * B + b: v for k, v in enumerate(whole or []) if v}
        assert found == {k: v for k, v in total.items() if k < picked and k % B == b}


def check_permutation(vector: dict[str, Any]) -> None:
    """Shares, X and Y."""
    p = vector["parameters"]
    q = p["field"]
    alpha, beta = vector["points"]["alpha"], vector["points"]["beta"]
    users = range(1, p["users"] + 1)
    u1 = vector["survivors"]
    secrets = {
        n: [integers(vector["secrets"][str(n)][name]) for name in ("place", "mask")] for n in users
    }
    held = {}
    for n in users:
        rows = oracle.permutation_rows(*secrets[n], vector["blocks"])
        noise = [integers(z) for z in vector["noise"][str(n)]]
        made = oracle.shares(rows, *noise, alpha, beta, q)
        for m in users:
            tables = [integers(vector["shares"][str(n)][str(m)][name]) for name in "fh"]
            held[m, n] = list(zip(*tables, strict=True))
            assert held[m, n] == [tuple(row) for row in made[m - 1]]
    masked = {n: pairs(vector["masked"][str(n)]) for n in u1}
    for n in u1:
        given = pairs(vector["inputs"][str(n)])
        assert masked[n] == oracle.mask_permutation(*secrets[n], given, q)
    for n in vector["answering"]:
        y = oracle.answer_permutation(masked, {m: held[n, m] for m in u1}, q)
        assert y == integers(vector["answers"][str(n)])


CHECKS = {"permutation": check_permutation, "sketch": check_sketch}


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_plain_integers_agree_with_every_step_of_a_vector(path):
    vector = json.loads(path.read_text())
    p = vector["parameters"]
    CHECKS[p["construction"]](vector)
    inputs = [pairs(vector["inputs"][str(n)]) for n in vector["survivors"]]
    T = p["colluders"]
    agreeing = len(vector["answering"]) - len(vector["corrected"])
    assert vector["liars_excluded"] == min(T, agreeing - vector["blocks"] - T)
    assert not vector["corrected"] or vector["liars_excluded"] == T
    total = [0] * p["length"]
    for k, w in pairs(vector["sum"]):
        total[k] = w
    assert total == oracle.plain_sum(inputs, p["length"], p["field"])


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_vector_says_why_it_is_refused(path):
    assert json.loads(path.read_text())["reason"]


def test_the_forged_answers_agree_but_for_an_honest_one(monkeypatch):
    """Plain integers see what the old rule would have believed, which is the twin."""
    path = FOLDER / "bad_answers_forged.json"
    vector = json.loads(path.read_text())
    assert "at least 1 is wrong, and nobody can be named for certain" in vector["reason"]
    p = vector["parameters"]
    q = p["field"]
    answers = {int(n): integers(y)[0] for n, y in vector["answers"].items()}
    make = runpy.run_path(str(FOLDER / "make.py"))
    alpha = make["construction"](make["Parameters"](**p)).points().alpha
    quorum = p["survivors"]  # D + T

    def predicted(known: list[int], n: int) -> list[int]:
        (row,) = oracle.lagrange_matrix([alpha[m - 1] for m in known], [alpha[n - 1]], q)
        columns = zip(*(answers[m] for m in known), strict=True)
        return [sum(c * y for c, y in zip(row, column, strict=True)) % q for column in columns]

    assert quorum == 3
    assert predicted([2, 3, 4], 5) == answers[5]
    assert predicted([2, 3, 4], 1) != answers[1]
    monkeypatch.setattr(decoding, "is_correctable", lambda *_, **__: True)
    make["refuse_answers"](vector)  # and it is not refused
