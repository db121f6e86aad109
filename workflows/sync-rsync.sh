#!/bin/sh
# push and pull for organisation.sh, with rsync: STORE=host:path, or a folder that several machines mount.
#
# A pull takes the public files of all users and the shares for this user; the others' shares are of no use to it.
# What this user made itself is fetched where it is not here: a folder that comes back from a backup then shows what
# has left. No X, Y or confirmation of this user is ever replaced by another one, here or there: that ends with 77.
# (Shares that are sealed again are other bytes, and replace those that were sent; of several proposals the first stays.)
set -eu

own=$(printf 'user-%02d' "$NUMBER")
if [ -z "${STORE:-}" ]; then
  echo "sync-rsync.sh: set STORE to the address of the store" >&2
  exit 2
fi

named() { # the lines of `names` that match, or do not (-v)
  printf '%s\n' "$names" | grep -E "$@" || true
}

public() { # what every user sees, of users with such names
  code=0
  rsync -rt "$@" --exclude='*' "$STORE/" "$ROUND/" || code=$?
  case $code in
  5 | 23 | 255) if [ ! -e "$ROUND/session.json" ]; then refuse; fi ;;
  esac
  if [ "$code" != 0 ]; then exit "$code"; fi
}

refuse() { # an address from which nothing was ever fetched
  echo "sync-rsync.sh: $STORE cannot be read: is that the address of the store?" >&2
  exit 66
}

case $1 in
push)
  names=$(cat)
  named '^shares/' | rsync -rt --files-from=- "$ROUND/" "$STORE/"
  named -v '^shares/' | rsync -rt --ignore-existing --files-from=- "$ROUND/" "$STORE/"
  others=$(named -v '^shares/|^survivors.json$' | rsync -rcn --no-dirs --out-format=%n --files-from=- "$ROUND/" "$STORE/")
  if [ -n "$others" ]; then
    echo "sync-rsync.sh: the store has other files with these names:" "$others" >&2
    echo "hint: was the folder of secrets restored from a backup? then it must not be used: start a new round" >&2
    exit 77
  fi
  ;;
pull)
  mkdir -p "$ROUND"
  public --ignore-existing --include=/dealt/ --include="/dealt/$own.json" --include=/masked/ --include="/masked/$own.h5" \
    --include=/confirmed/ --include="/confirmed/$own.json" --include=/elimination/ --include="/elimination/$own.h5"
  public --exclude="$own.*" \
    --include=/session.json --include=/basis.h5 --include=/survivors.json --include=/dealt/ --include='/dealt/user-*.json' \
    --include=/masked/ --include='/masked/user-*.h5' \
    --include=/confirmed/ --include='/confirmed/user-*.json' --include=/elimination/ --include='/elimination/user-*.h5' \
    --include=/shares/ --include="/shares/$own/" --include="/shares/$own/from-*.h5.age"
  ;;
*)
  echo "usage: sync-rsync.sh push|pull" >&2
  exit 2
  ;;
esac
