"""The points of an audit: what each is called, what a pass of it means, and what an auditor who
could not check it lacked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from .uniformity import Law

SECRETS = "the secrets and ledgers of users, which stay with them"
SHARES = "the shares, which only their receivers have"
ELSE = "other files, which have not arrived or cannot be used"


class Point(str):
    """The name of a point, with what a pass `establishes`, in a sentence; whoever has to leave it
    out is `without` these files."""

    establishes: str
    without: str

    def __new__(cls, name: str, establishes: str = "", without: str = ELSE) -> Self:
        """A text of its own."""
        point = super().__new__(cls, name)
        point.establishes = establishes
        point.without = without
        return point


# of session.json
PARAMETERS = Point(
    "parameters admissible",
    "The numbers in session.json allow a round that is secret and that can be decoded.",
)
POINTS = Point(
    "points distinct",
    "No two evaluation points are equal, so that every share and every answer counts.",
)
FAMILY = Point(
    "keys of any T users leave masks uniform",
    "Whatever T users hold the keys of blocks together, the masks of all others stay uniform.",
)
BASIS = Point(
    "basis follows from the last sum",
    "Everybody projects on the same basis, and nobody chose it: it was computed again from the "
    "last sum, or from the nonce.",
)
EVERYTHING_ELSE = Point(
    "everything else", "Nothing else can be checked without a sound session.json."
)

# of every file
SCHEMA = Point("schema", "Each file has exactly the form that the file format prescribes.")
DIGEST = Point(
    "digest",
    "No file was damaged by accident since it was written (signatures protect against forgery).",
)
ORIGIN = Point(
    "session and user", "Each file says that it is of this session and of the user in its name."
)
SIGNED_ORIGIN = Point(
    "session, user and signature",
    "Each file is of this session, and signed with the key that session.json has for the user in "
    "its name.",
)
RANGES = Point(
    "ranges", "Every number in each file is within the limits that the round sets for it."
)

# of folders
PERMISSIONS = Point(
    "permissions",
    "By their modes, no secret is open to other accounts. Modes of public files are noted only, "
    "since a copy has modes of its own.",
)
ONLY_FILES_OF_THE_ROUND = Point(
    "only files of the round", "Nothing in the folders pretends to be a file of this round."
)

# of what users publish
LISTS = Point(
    "lists of commitments to keys",
    "Each user published one list of commitments to the keys that it dealt. If the round has keys "
    "of users, it is signed.",
)
SURVIVORS = Point(
    "survivors of this round, from its freezer",
    "survivors.json is of this session, names enough users, and is from a user that may freeze the "
    "round. If the round has keys, it is signed with that user's.",
)
MASKED_ALLOWED = Point(
    "X of the right size, indices and values allowed",
    "Each X has the right size, and only entries that an honest user can send.",
)
ONE_SET = Point(
    "one survivor set, one set of X",
    "Every X is the one that survivors.json names, and every Y answers this survivors.json. "
    "Answers for two survivor sets could reveal gradients.",
)
ENOUGH_HOLDERS = Point(
    "enough survivors hold all shares",
    "Enough survivors to decode the sum said that they hold all survivors' shares.",
)
CONFIRMED = Point(
    "confirmations of survivors.json",
    "Enough users' keys signed this survivors.json that no other one can have as many, unless more "
    "than T users cheat.",
)


def uniform(law: Law) -> Point:
    """Of these numbers in all X."""
    return Point(
        f"{law.name} uniform",
        f"{law.subject} look random. This can find faults, but it does not prove secrecy.",
    )


def uniform_in_one(law: Law) -> Point:
    """Of these numbers in a single X."""
    return Point(f"{law.name} uniform in one X", "The same for the X of each user by itself.")


# of the sum
AGREE = Point(
    "Y on one polynomial (Reed-Solomon)",
    "More users answered than are needed, and all agree. The result says how many users that lie "
    "together this excludes.",
)
RECOMPUTED = Point(
    "aggregate recomputed", "The available answers decode to the sum in aggregate.h5."
)
WITHIN_CLIP = Point(
    "sums within the clip", "No coordinate of the sum is larger than honest users can make it."
)
RATES = Point(
    "rates against the theorem",
    "The size of what users sent, beside the paper's theorem: this is about cost only.",
)

# of what users keep, and of what one of them has of another
LEDGERS = Point(
    "ledgers", "What each user noted in its ledger agrees with the files of the round.", SECRETS
)
FIT = Point(
    "masks and places fit X",
    "Without its masks, each X is an input that an honest user can have.",
    SECRETS,
)
SUMMED = Point(
    "aggregate is the sum of the inputs",
    "The sum in aggregate.h5 is exactly the sum of what the survivors masked.",
    SECRETS,
)
SEALED = Point(
    "sealed shares open, signed and whole",
    "The receiver's key opens each sealed share; it is whole, and signed with its sender's key.",
    SHARES,
)
KEYS = Point(
    "keys fit the lists",
    "Each key that is available is the one to which its dealer is committed.",
    SHARES,
)
SHARES_FIT = Point(
    "shares fit together",
    "The shares of each user fit together, and hold what an honest user shares.",
    SHARES,
)
ANSWERED = Point(
    "Y recomputed", "Each answer is exactly what the X and the shares of its user give.", SHARES
)
