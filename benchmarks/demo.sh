#!/bin/sh
# `make demo` of this checkout against that of another commit, in turns, both installed and warm.
# Usage: demo.sh COMMIT FOLDER [TURNS]: COMMIT is checked out below FOLDER.
set -eu
commit=$1 folder=$2 turns=${3:-5}
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$folder"
for name in then now; do
  git clone --quiet "$here" "$folder/$name"
  [ $name = now ] || git -C "$folder/$name" checkout --quiet "$commit"
  make -s -C "$folder/$name" demo >/dev/null 2>&1
done
seconds() { # of one `make demo` in a checkout
  rm -rf "$folder/$1/demo"
  start=$(date +%s%N)
  make -s -C "$folder/$1" demo >/dev/null 2>&1
  echo $((($(date +%s%N) - start) / 1000000))
}
for turn in $(seq "$turns"); do
  then=$(seconds then) now=$(seconds now)
  echo "turn $turn: $commit $then ms, now $now ms, ratio 0.$((100 * now / then))"
done
