"""topk-secagg keygen."""

from __future__ import annotations

from pathlib import Path

import click

import topk_secagg as ts

from .console import Console, answered
from .options import file_option, user_option


@click.command("keygen", short_help="Make a user's keys for sealed shares.")
@user_option
@file_option("--output", "[default: user-NN.identity in this folder]")
@answered
def command(console: Console, user: int, output: Path | None) -> None:
    """Make the keys of one user: an age identity to open shares, and an Ed25519 key to sign them.

    Writes the identity file (mode 0600, also good for `age -d -i`), and prints the public line. All users'
    lines together are the file for `init --recipients`.

    \b
    Example:
      topk-secagg keygen --user 3 >> recipients.txt
    """
    if user < 1:
        raise click.UsageError(f"there is no user {user}; users are numbered from 1")
    path = output or Path(f"user-{user:02}.identity")
    public = ts.keygen(user, path)
    facts = {"path": path, **vars(public), "fingerprint": public.fingerprint}
    if console.as_json:
        console.result("keygen", facts)
    else:
        click.echo(public.line())  # even with -q: it is what the call is for
    console.say(f"secret keys of user {user}: {path}; fingerprint of the public keys: {public.fingerprint}")
