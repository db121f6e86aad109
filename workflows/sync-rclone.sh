#!/bin/sh
# push and pull for organisation.sh, with rclone: STORE=remote:bucket/round, where `rclone config` knows the remote.
#
# A pull takes the public files of all users and the shares for this user; the others' shares are of no use to it.
# What this user made itself is never fetched.
set -eu

case $1 in
push)
  rclone copy --files-from - "$ROUND" "$STORE"
  ;;
pull)
  own=$(printf 'user-%02d' "$NUMBER")
  rclone copy "$STORE" "$ROUND" --filter "- $own.*" \
    --filter '+ /session.json' --filter '+ /survivors.json' --filter '+ /dealt/user-*.json' \
    --filter '+ /masked/user-*.h5' \
    --filter '+ /confirmed/user-*.json' --filter '+ /elimination/user-*.h5' \
    --filter "+ /shares/$own/from-*.h5.age" --filter '- *'
  ;;
*)
  echo "usage: sync-rclone.sh push|pull" >&2
  exit 2
  ;;
esac
