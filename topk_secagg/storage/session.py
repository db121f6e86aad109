"""session.json: what all users agree on before anything else. Its SHA-256 is the session's name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import BadData, UsageError
from ..gradients.layout import Layout
from ..protocol.messages import Points
from ..protocol.parameters import PARAMETER_NAMES, Parameters
from . import documents
from .artifacts import Attribute, Attributes
from .keys import Recipient, check_recipients

_KEYS = {"nonce", "insecure_seed", "parameters", "points", "layout", "left_out", "recipients"}


@dataclass(frozen=True)
class Session:
    """The public parameters of a round, the points, and the layout of the gradient."""

    id: str
    nonce: str
    insecure_seed: int | None
    parameters: Parameters
    points: Points
    layout: Layout
    recipients: tuple[Recipient, ...] | None = None

    @property
    def insecure(self) -> int:
        """1 when the randomness comes from a public seed; every file carries this mark."""
        return int(self.insecure_seed is not None)

    def header(self, user: int, **others: Attribute) -> Attributes:
        """The attributes of a file of this session."""
        return {"session": self.id, "user": user, "insecure": self.insecure, **others}


def session_bytes(
    parameters: Parameters,
    points: Points,
    layout: Layout,
    nonce: str,
    insecure_seed: int | None,
    recipients: tuple[Recipient, ...] | None = None,
) -> bytes:
    """The content of session.json."""
    return documents.dump(
        "session",
        {
            "nonce": nonce,
            "insecure_seed": insecure_seed,
            "parameters": parameters.as_dict(),
            "points": {"alpha": list(points.alpha), "beta": list(points.beta)},
            "layout": layout.slots_json(),
            "left_out": list(layout.left_out),
            "recipients": recipients and [asdict(r) for r in recipients],
        },
    )


def read_session(path: Path) -> Session:
    """Read and check session.json: types, every constraint on the parameters, distinct points, the layout."""
    content = documents.read_bytes(
        path, "run `topk-secagg init` first, or copy session.json from whoever did"
    )
    body = documents.parse(path, content, "session", _KEYS)
    try:
        return _session(documents.digest(content), body)
    except (UsageError, BadData) as error:
        raise BadData(f"{path}: {error.message}", "fetch session.json again") from error
    except ValueError as error:
        raise BadData(f"{path}: {error}", "fetch session.json again") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise BadData(f"{path}: it is not what a session looks like", "fetch session.json again") from error


def _session(name: str, body: dict[str, Any]) -> Session:
    raw = body["parameters"]
    if not isinstance(raw, dict) or set(raw) != set(PARAMETER_NAMES):
        raise ValueError("the parameters do not have the right keys")
    for key, value in raw.items():
        wanted = {"construction": str, "elimination": str, "clip": float}.get(key, int)
        if type(value) is not wanted:
            raise ValueError(f"parameter {key} is not of type {wanted.__name__}")
    parameters = Parameters(**raw)
    alpha, beta = body["points"]["alpha"], body["points"]["beta"]
    points = [*alpha, *beta]
    if len(alpha) != parameters.users or len(beta) != parameters.survivors:
        raise ValueError("there are not N + U points")
    if any(type(x) is not int or not 0 <= x < parameters.field for x in points) or len(set(points)) < len(
        points
    ):
        raise ValueError("the points are not distinct elements of the field")
    seed, nonce = body["insecure_seed"], body["nonce"]
    if not (seed is None or type(seed) is int) or type(nonce) is not str:
        raise ValueError("the nonce or the seed is not what it should be")
    layout = Layout.from_json(body["layout"], body["left_out"])
    if layout.length != parameters.length:
        raise ValueError(f"the layout has {layout.length} coordinates, not {parameters.length}")
    recipients = None
    if body["recipients"] is not None:
        recipients = tuple(Recipient(**r) for r in body["recipients"])
        if any(type(r.age) is not str or type(r.ed25519) is not str for r in recipients):
            raise ValueError("a key is not text")
        check_recipients(recipients)
    if recipients is not None and [r.user for r in recipients] != list(range(1, parameters.users + 1)):
        raise ValueError("there are not the keys of users 1 to N")
    return Session(name, nonce, seed, parameters, Points(tuple(alpha), tuple(beta)), layout, recipients)
