"""One system of `peers.py` in a process of its own: the phases of a round, each run and timed when
asked for.

Usage: peer_workers.py sketch|whole|low-rank|lightsecagg|flower [FILE]. A line of JSON on stdin,
{"length": L, "seed": s}, starts a round, and {"phase": name} runs one phase of it once. A line on
stdout answers each with the phase's seconds; `decode` also gives the bytes that a user sends. The
result is compared with the plain sum every time, off the clock.

What is on the clock is arithmetic in memory: nothing is serialised, sent or stored. N = 10 users
share, the first 7 mask, and the first 5 of those answer. This file runs in the peers' environment
too: at the top it imports only numpy.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pickle
import sys
import time
import types
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

N, U, T = 10, 5, 3
USERS = range(1, N + 1)
MASKING = range(1, 8)
ANSWERING = range(1, U + 1)
DENSITY = 0.01
Gradients = dict[int, npt.NDArray[np.float32]]


def clocked(task: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a task, and its seconds."""
    start = time.perf_counter()
    result = task()
    return result, time.perf_counter() - start


def each(task: Callable[[int], Any], users: range) -> tuple[dict[int, Any], float]:
    """The results of all users, and the mean seconds of one."""
    done = {n: clocked(lambda n=n: task(n)) for n in users}  # type: ignore[misc]
    results = {n: result for n, (result, _) in done.items()}
    return results, sum(seconds for _, seconds in done.values()) / len(users)


class Ours:
    """A reduction, dealt by keys, as `topk_secagg.aggregate` and `protocol/round.py` call it.

    The masks are drawn offline. What a user holds of the others is drawn from its keys before it
    answers, which needs no X and can be done at any time; `answer` then only adds up.
    """

    version = "this checkout"
    clip = 1.0
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, _file: str) -> None:
        from topk_secagg.algebra import randomness

        self.source = randomness.CipherRandomness(os.urandom(randomness.KEY_BYTES))

    def reduction(self, length: int) -> Any:
        """How a gradient becomes symbols."""
        raise NotImplementedError

    def start(self, gradients: Gradients, length: int) -> None:
        """The parameters of a round."""
        from topk_secagg.protocol.constructions import construction
        from topk_secagg.rounds.options import choose_parameters
        from topk_secagg.rounds.sending import Encoding

        self.gradients = gradients
        reduction = self.reduction(length)
        sizes = {"users": N, "survivors": U, "colluders": T}
        self.p = p = choose_parameters(reduction, sizes | self.options).parameters
        self.points = construction(p).points()
        self.shares: dict[int, Any] = {}
        self.names = [str(at) for at in range(len(reduction.tensors))]
        clips = [self.clip] * len(self.names)
        self.encoding = Encoding(
            parameters=p,
            reduction=reduction,
            bases=reduction.first_bases(self.names, bytes(16)),
            clips=clips,
        )

    def offline(self) -> float:
        """Draw every user's secret and its keys for all."""
        from topk_secagg.protocol.constructions import construction
        from topk_secagg.protocol.round import new_deal

        def one(n: int) -> Any:
            source = self.source.child(f"user {n}")
            deal = new_deal(self.p, self.points, dealer=n, source=source)
            secret = construction(self.p).draw_secret(deal, source)
            return secret, deal, dict(zip(deal.family, secret.keys, strict=True))

        dealt, seconds = each(one, USERS)
        self.secrets = {n: secret for n, (secret, _, _) in dealt.items()}
        self.held = {n: (deal, keys) for n, (_, deal, keys) in dealt.items()}
        return seconds * N

    def mask(self) -> float:
        """Reduce, select, quantise and mask. (`aggregate` also reports the energy that is kept; not
        here.)"""
        from topk_secagg.gradients.quantise import quantise, rounding_source
        from topk_secagg.protocol.constructions import construction
        from topk_secagg.protocol.messages import Sparse

        def one(n: int) -> Any:
            reduced = self.encoding.reduced(self.gradients[n])
            index = construction(self.p).select(reduced)
            values = reduced[index].astype(np.float64)
            source = rounding_source(self.source.child(f"rounding of user {n}"), index, values)
            sparse = Sparse(index, quantise(self.encoding.fixed, index, values, source)[0])
            return sparse, construction(self.p).mask(self.secrets[n], sparse)

        masked, seconds = each(one, MASKING)
        self.sent = {n: sparse for n, (sparse, _) in masked.items()}
        self.masked = {n: x for n, (_, x) in masked.items()}
        return seconds

    def draw(self) -> float:
        """What a user holds of the dealers, as tables of symbols."""
        from topk_secagg.protocol.constructions import construction
        from topk_secagg.protocol.held import KeyShares, WrittenShares

        c = construction(self.p)
        rows = np.arange(c.rows)

        def held(m: int, n: int) -> Any:
            deal, keys = self.held[n]
            own = {block: key for block, key in keys.items() if m in block}
            return KeyShares(c, deal, user=m, keys=own)

        def one(m: int) -> Any:
            return {n: WrittenShares(held(m, n)(rows)) for n in MASKING}

        self.shares, seconds = each(one, ANSWERING)
        return seconds

    def cipher(self) -> float:
        """AES-256-CTR alone, for as many streams of as many bytes."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        from topk_secagg.protocol.constructions import construction
        from topk_secagg.rounds.costs import family_of

        zeros = bytes(construction(self.p).share_bytes)
        stream = bytearray(len(zeros) + 16)
        family = family_of(self.p)

        def one(m: int) -> None:
            for number in range(len(MASKING) * sum(m in block for block in family)):
                key = number.to_bytes(32, "little")
                cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16)))
                cipher.encryptor().update_into(zeros, stream)

        return each(one, ANSWERING)[1]

    def answer(self) -> float:
        """Y from the X of all and the shares of all."""
        from topk_secagg.protocol.constructions import construction
        from topk_secagg.protocol.round import answer

        self.shape = construction(self.p).answer_shape(len(MASKING))

        def one(n: int) -> Any:
            return answer(self.p, masked=self.masked, shares=self.shares[n], shape=self.shape)

        self.answers, seconds = each(one, ANSWERING)
        return seconds

    def decode(self) -> float:
        """From the answers to a dense vector of reals, and to the next bases where there are
        any."""
        from topk_secagg.protocol.decoding import decode
        from topk_secagg.protocol.round import reader_of, sum_of_masked

        answers = {n: reader_of(y) for n, y in self.answers.items()}

        def work() -> Any:
            total = decode(
                self.p,
                self.points,
                shape=self.shape,
                answers=answers,
                randomness=self.source.child("decode"),
                masked_sum=sum_of_masked(self.p, self.masked.values(), self.shape),
            ).total
            self.encoding.decoded(total)
            self.go_on(total)
            return total

        total, seconds = clocked(work)
        plain = sum(self.symbols(sparse) for sparse in self.sent.values())
        assert np.array_equal(self.symbols(total), plain), "not the sum of what was sent"
        return seconds

    def symbols(self, sparse: Any) -> npt.NDArray[np.int64]:
        """The reduced vector, in steps."""
        from topk_secagg.algebra.field import to_signed

        steps = np.zeros(self.encoding.reduction.length, np.int64)
        steps[sparse.index] = to_signed(sparse.value, self.p.field)
        return steps

    def go_on(self, total: Any) -> None:
        """What the next round needs of the sum."""

    def sizes(self) -> dict[str, dict[str, int]]:
        """Symbols of 2 or 4 bytes, and keys: payloads, without headers."""
        from topk_secagg.protocol.constructions import construction
        from topk_secagg.rounds.costs import offline_bytes

        c = construction(self.p)
        online = c.masked_bytes + c.answer_bytes(len(MASKING))
        return {"packed": {"offline": offline_bytes(self.p), "online": online}}


class Sketch(Ours):
    """`sketch` at a density of 1 %, with P = 16."""

    options: ClassVar[dict[str, Any]] = {
        "density": DENSITY,
        "construction": "sketch",
        "picks": 16,
    }

    def reduction(self, length: int) -> Any:
        """Top-K of one vector."""
        from topk_secagg.gradients.reduce import Reduction

        return Reduction.top_k([(length,)])


class Whole(Ours):
    """Everything, as the peers do."""

    def reduction(self, length: int) -> Any:
        """One vector."""
        from topk_secagg.gradients.reduce import Reduction

        return Reduction.whole([(length,)])


class LowRank(Ours):
    """Rank 2 with the tensors of ResNet-20, once or several times."""

    clip = 16.0
    rank = 2
    options: ClassVar[dict[str, Any]] = {"rank": rank}

    def reduction(self, length: int) -> Any:
        """Of so many copies of the model as have this length."""
        from models import entries, resnet20, times

        from topk_secagg.gradients.reduce import Reduction

        shapes = times(resnet20(), length // entries(resnet20()))
        return Reduction.of(list(shapes.values()), self.rank)

    def go_on(self, total: Any) -> None:
        """The bases on the other side."""
        from topk_secagg.gradients.reduce import Reduction

        last = self.encoding.reduction
        turned = Reduction.of(last.shapes, self.rank, last.next_side())
        turned.next_bases(last, self.symbols(total), self.names, bytes(16))


class Unlisted(np.ndarray[Any, Any]):
    """An array that stays one when it is asked for a list."""

    def tolist(self) -> Any:
        """Itself."""
        return self


class LightSecAgg:
    """FedML's functions, in the order of its client manager and its aggregator.

    FedML sets no prime itself; 2^15 - 19 and 10 bits are those of its example configuration (whose
    active value, 1997, is too small for a sum of 7). Its managers take U = N and T = N / 2; the
    functions take any.
    """

    version = "fedml 0.9.6"
    prime = 2**15 - 19
    bits = 10

    def __init__(self, file: str) -> None:
        # imported there, and needed only to make tensors
        sys.modules["torch"] = types.ModuleType("torch")
        spec = importlib.util.spec_from_file_location("lightsecagg", file)
        assert spec
        assert spec.loader
        self.fedml = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.fedml)

    def start(self, gradients: Gradients, length: int) -> None:
        """The padded length, as its `__offline` computes it."""
        self.gradients = gradients
        self.length = length
        self.padded = int(np.ceil(float(length) / (U - T))) * (U - T)
        self.encoded: dict[int, Any] = {}

    def offline(self) -> float:
        """Draw every user's mask and encode it for all."""

        def one(_: int) -> Any:
            mask = np.random.randint(self.prime, size=(self.padded, 1))
            return mask, self.fedml.mask_encoding(self.padded, N, U, T, self.prime, mask)

        total = 0.0
        self.masks = {}
        self.encoded = {}
        # one at a time, and only what is used later is kept: a user's shares take 40 L bytes
        for n in USERS:
            (mask, shares), seconds = clocked(lambda n=n: one(n))  # type: ignore[misc]
            total += seconds
            self.masks[n] = mask
            self.encoded[n] = shares[: len(ANSWERING)].copy()
        self.listed = len(pickle.dumps(shares[0].tolist(), -1))
        return total

    def mask(self) -> float:
        """Quantise and mask all entries."""

        def one(n: int) -> Any:
            finite = self.fedml.transform_tensor_to_finite(
                {"": self.gradients[n]}, self.prime, self.bits
            )
            return self.fedml.model_masking(finite, [self.length], self.masks[n], self.prime)

        self.masked, seconds = each(one, MASKING)
        return seconds

    def answer(self) -> float:
        """Add up the encoded masks; the function ends with a list for the message, which is not
        made here."""

        def one(n: int) -> Any:
            held = {m - 1: self.encoded[m][n - 1] for m in MASKING}
            return self.fedml.compute_aggregate_encoded_mask(
                held, self.prime, [m - 1 for m in MASKING]
            )

        listless = types.SimpleNamespace(
            zeros=lambda shape: np.zeros(shape).view(Unlisted), shape=np.shape, mod=np.mod
        )
        vars(self.fedml)["np"] = listless
        answers, seconds = each(one, ANSWERING)
        vars(self.fedml)["np"] = np
        self.answers = {n: y.view(np.ndarray) for n, y in answers.items()}
        self.answered = len(pickle.dumps(self.answers[1].tolist(), -1))
        return seconds

    def decode(self) -> float:
        """Decode the sum of the masks, take it off the sum of the masked models, and go back to
        reals."""
        width = self.padded // (U - T)

        def work() -> Any:
            buffer = np.zeros((U, width), dtype="int64")
            for i, n in enumerate(ANSWERING):
                buffer[i, :] = self.answers[n]
            points = (np.array(range(N)) + 1)[[n - 1 for n in ANSWERING]]
            targets = np.array(range(U)) + (N + 1)
            mask = self.fedml.LCC_decoding_with_points(buffer, points, targets, self.prime)
            mask = np.reshape(mask, (U * width, 1))[: self.padded]
            total = self.masked[1][""]
            for n in MASKING[1:]:
                total += self.masked[n][""]
            total -= np.reshape(mask[: self.length, :], total.shape)
            return self.fedml.my_q_inv(np.mod(total, self.prime), self.bits, self.prime)

        vector, seconds = clocked(work)
        compare(vector, self.gradients, 2.0**-self.bits)
        return seconds

    def sizes(self) -> dict[str, dict[str, int]]:
        """2 bytes hold 15 bits; FedML sends int64 arrays and pickled lists; 4 bytes are a symbol of
        ours."""
        shares = (N - 1) * self.padded // (U - T)
        online = self.length + self.padded // (U - T)
        sent = {"offline": (N - 1) * self.listed, "online": 8 * self.length + self.answered}
        return {
            "packed": {"offline": 2 * shares, "online": 2 * online},
            "as sent": sent,
            "at 4 bytes": {"offline": 4 * shares, "online": 4 * online},
        }


class Flower:
    """SecAgg+ with all pairs (num_shares = N) and reconstruction_threshold = U; everything else has
    its default.

    The steps of a user are those of `secaggplus_mod`, without turning arrays into bytes; those of
    the server follow `secaggplus_workflow`, which removes the masks of pairs of dropped-out users
    as well, though they cancel.
    """

    def __init__(self, _file: str) -> None:
        from flwr.common.secure_aggregation import (
            ndarrays_arithmetic,
            quantization,
            secaggplus_utils,
        )
        from flwr.common.secure_aggregation.crypto import shamir, symmetric_encryption
        from flwr.server.workflow import SecAggPlusWorkflow

        self.version = f"flwr {importlib.metadata.version('flwr')}"
        self.mod: Any = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
        self.arithmetic = ndarrays_arithmetic
        self.quantization = quantization
        self.utils = secaggplus_utils
        self.shamir = shamir
        self.encryption = symmetric_encryption
        self.workflow = SecAggPlusWorkflow(N, U)
        self.as_bytes = self.mod.ndarray_to_bytes
        # one thread, like the others
        vars(shamir)["os"] = types.SimpleNamespace(cpu_count=lambda: 1)
        vars(self.mod).update(
            dict.fromkeys(("ndarray_to_bytes", "parameters_to_ndarrays"), lambda values: values)
        )

    def start(self, gradients: Gradients, length: int) -> None:
        """Nothing depends on the length before the vectors."""
        self.gradients = gradients
        self.length = length

    def offline(self) -> float:
        """Key pairs, and the encrypted shares of two secrets for every other user."""
        key = self.mod.Key
        flow = self.workflow
        setup = {
            key.SAMPLE_NUMBER: N, key.SHARE_NUMBER: N, key.THRESHOLD: U,
            key.CLIPPING_RANGE: flow.clipping_range,
            key.TARGET_RANGE: flow.quantization_range, key.MOD_RANGE: flow.modulus_range,
            key.MAX_WEIGHT: flow.max_weight,
        }  # fmt: skip
        self.states = {n: self.mod.SecAggPlusState(nid=n) for n in USERS}
        keys, first = each(lambda n: list(self.mod._setup(self.states[n], setup).values()), USERS)
        self.keys = keys
        named = {str(n): pair for n, pair in keys.items()}
        self.sealed, second = each(lambda n: self.mod._share_keys(self.states[n], named), USERS)
        return (first + second) * N

    def mask(self) -> float:
        """Open the shares, quantise, and add the own mask and nine masks of pairs."""
        key = self.mod.Key
        sealed = {}
        for n in MASKING:
            by = {m: dict(zip(*self.sealed[m].values(), strict=True)) for m in USERS if m != n}
            sealed[n] = {key.CIPHERTEXT_LIST: [by[m][n] for m in by], key.SOURCE_LIST: list(by)}
        weight = self.workflow.max_weight  # the same for all
        task = self.mod._collect_masked_vectors
        masked, seconds = each(
            lambda n: task(self.states[n], sealed[n], weight, [self.gradients[n]]), MASKING
        )
        self.masked = {n: x[key.MASKED_PARAMETERS] for n, x in masked.items()}
        return seconds

    def answer(self) -> float:
        """The shares of seven seeds and three keys."""
        key = self.mod.Key
        request = {
            key.ACTIVE_NODE_ID_LIST: list(MASKING),
            key.DEAD_NODE_ID_LIST: list(range(len(MASKING) + 1, N + 1)),
        }
        self.answers, seconds = each(lambda n: self.mod._unmask(self.states[n], request), ANSWERING)
        return seconds

    def decode(self) -> float:
        """Sum the vectors, rebuild seeds and keys, take off every mask, and go back to reals."""
        key = self.mod.Key
        flow = self.workflow
        arithmetic = self.arithmetic
        add, subtract = arithmetic.parameters_addition, arithmetic.parameters_subtraction

        def work() -> Any:
            total = self.masked[1]
            for n in MASKING[1:]:
                total = add(total, self.masked[n])
            total = arithmetic.parameters_mod(total, flow.modulus_range)
            shapes = arithmetic.get_parameters_shape(total)
            shares: dict[int, list[bytes]] = {n: [] for n in USERS}
            for reply in self.answers.values():
                for n, share in zip(reply[key.NODE_ID_LIST], reply[key.SHARE_LIST], strict=True):
                    shares[n].append(share)
            for n, held in shares.items():
                secret = self.shamir.combine_shares(held)
                if n in MASKING:
                    total = subtract(
                        total, self.utils.pseudo_rand_gen(secret, flow.modulus_range, shapes)
                    )
                    continue
                for m in (m for m in USERS if m != n):
                    private = self.mod.bytes_to_private_key(secret)
                    public = self.mod.bytes_to_public_key(self.keys[m][0])
                    seed = self.encryption.generate_shared_key(private, public)
                    pair = self.utils.pseudo_rand_gen(seed, flow.modulus_range, shapes)
                    total = (add if n > m else subtract)(total, pair)
            ratio, total = arithmetic.factor_extract(
                arithmetic.parameters_mod(total, flow.modulus_range)
            )
            (vector,) = self.quantization.dequantize(
                total, flow.clipping_range, flow.quantization_range
            )
            vector += -(len(MASKING) - 1) * flow.clipping_range
            vector *= flow.quantization_range / ratio
            return vector

        vector, seconds = clocked(work)  # the mean
        compare(
            vector * len(MASKING),
            self.gradients,
            2 * 2 * flow.clipping_range / flow.quantization_range,
        )
        return seconds

    def sizes(self) -> dict[str, dict[str, int]]:
        """4 bytes hold a symbol below 2^32; Flower sends int64 arrays. Keys, ciphertexts and shares
        as they are."""
        key = self.mod.Key
        offline = sum(map(len, self.keys[1])) + sum(map(len, self.sealed[1][key.CIPHERTEXT_LIST]))
        shares = sum(map(len, self.answers[1][key.SHARE_LIST]))
        sent = sum(len(self.as_bytes(part)) for part in self.masked[1])
        return {
            "packed": {"offline": offline, "online": 4 * (self.length + 1) + shares},
            "as sent": {"offline": offline, "online": sent + shares},
        }


def compare(vector: npt.NDArray[Any], gradients: Gradients, step: float) -> None:
    """The plain sum, but for `step` from every user."""
    plain = sum(gradients[n].astype(np.float64) for n in MASKING)
    error = float(np.abs(vector - plain).max())
    assert error <= len(MASKING) * step, f"off by {error}"


def gradients(length: int, seed: int) -> Gradients:
    """Heavy-tailed, like gradients, and within the clip of every system."""
    rng = np.random.default_rng(seed)
    return {n: np.clip(0.01 * rng.standard_t(2, length), -1, 1).astype(np.float32) for n in MASKING}


def main() -> None:
    """Answer requests until stdin ends."""
    systems = {
        "sketch": Sketch,
        "whole": Whole,
        "low-rank": LowRank,
        "lightsecagg": LightSecAgg,
        "flower": Flower,
    }
    system: Any = systems[sys.argv[1]]("".join(sys.argv[2:]))
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a peer prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        if phase := request.get("phase"):
            reply = {"seconds": getattr(system, phase)()}
            if phase == "decode":
                reply["bytes"] = system.sizes()
        else:
            system.start(gradients(request["length"], request["seed"]), request["length"])
            reply = {"version": system.version}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
