#!/bin/sh
# push and pull for organisation.sh, with rclone: STORE=remote:bucket/round, where `rclone config` knows the remote.
#
# A pull takes the public files of all users and the shares for this user; the others' shares are of no use to it.
# What this user made itself is fetched where it is not here: a folder that comes back from a backup then shows what
# has left. No X, Y or confirmation of this user is ever replaced by another one, here or there: that ends with 77.
# (Shares that are sealed again are other bytes, and replace those that were sent; of several proposals the first stays.)
set -eu

own=$(printf 'user-%02d' "$NUMBER")
if [ -z "${STORE:-}" ]; then
  echo "sync-rclone.sh: set STORE to the address of the store" >&2
  exit 2
fi

named() { # the lines of `names` that match, or do not (-v)
  printf '%s\n' "$names" | grep -E "$@" || true
}

case $1 in
push)
  names=$(cat)
  named '^shares/' | rclone copy --files-from - "$ROUND" "$STORE"
  named '^survivors.json$' | rclone copy --ignore-existing --files-from - "$ROUND" "$STORE"
  code=0
  said=$(named -v '^shares/|^survivors.json$' | rclone copy --checksum --immutable --files-from - "$ROUND" "$STORE" 2>&1) || code=$?
  if [ "$code" != 0 ]; then echo "$said" >&2; fi
  case $said in
  *'immutable file modified'*)
    echo "hint: was the folder of secrets restored from a backup? then it must not be used: start a new round" >&2
    exit 77
    ;;
  esac
  exit "$code"
  ;;
pull)
  rclone copy --ignore-existing "$STORE" "$ROUND" --filter "+ /dealt/$own.json" --filter "+ /masked/$own.h5" \
    --filter "+ /confirmed/$own.json" --filter "+ /elimination/$own.h5" --filter '- *'
  rclone copy "$STORE" "$ROUND" --filter "- $own.*" \
    --filter '+ /session.json' --filter '+ /basis.h5' --filter '+ /survivors.json' --filter '+ /dealt/user-*.json' \
    --filter '+ /masked/user-*.h5' \
    --filter '+ /confirmed/user-*.json' --filter '+ /elimination/user-*.h5' \
    --filter "+ /shares/$own/from-*.h5.age" --filter '- *'
  ;;
*)
  echo "usage: sync-rclone.sh push|pull" >&2
  exit 2
  ;;
esac
