#!/bin/sh
# push and pull for organisation.sh, with rsync: STORE=host:path, or a folder that several machines mount.
#
# A pull takes the public files of all users and the shares for this user; the others' shares are of no use to it.
# What this user made itself is never fetched.
set -eu

case $1 in
push)
  rsync -rt --files-from=- "$ROUND/" "$STORE/"
  ;;
pull)
  own=$(printf 'user-%02d' "$NUMBER")
  mkdir -p "$ROUND"
  rsync -rt --exclude="$own.*" \
    --include=/session.json --include=/survivors.json --include=/dealt/ --include='/dealt/user-*.json' \
    --include=/masked/ --include='/masked/user-*.h5' \
    --include=/confirmed/ --include='/confirmed/user-*.json' --include=/elimination/ --include='/elimination/user-*.h5' \
    --include=/shares/ --include="/shares/$own/" --include="/shares/$own/from-*.h5.age" --exclude='*' \
    "$STORE/" "$ROUND/"
  ;;
*)
  echo "usage: sync-rsync.sh push|pull" >&2
  exit 2
  ;;
esac
