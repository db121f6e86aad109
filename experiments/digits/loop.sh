#!/bin/sh
# Federated training by commands and files: loop.sh WORK [ROUNDS]. WORK is a new folder.
set -eu
work=$1
rounds=${2:-20}
model="${PYTHON:-python3} $(dirname "$0")/model.py"

$model start "$work"
set -- --survivors 5 --colluders 3 --density 0.1 # the first round; a later one goes on from the one before
for n in $(seq "$rounds"); do
  # user n drops out of round n, user 1 of round 11, and so on
  ${TOPK:-topk-secagg} run "$work/$n/round" "$@" --clip 4 --gradients "$work/$n/updates" --weights "$work/weights.csv" \
    --feedback --drop-masking $(((n - 1) % 10 + 1)) --output "$work/$n/mean.npz" --mean --quiet
  $model step "$work" "$n"
  set -- --from "$work/$n/round"
done
