#!/bin/sh
# Federated training by commands and files: loop.sh WORK [ROUNDS]. WORK is a new folder.
set -eu
work=$1
rounds=${2:-20}
model="${PYTHON:-python3} $(dirname "$0")/model.py"

$model start "$work"
for n in $(seq "$rounds"); do
  # user n drops out of round n, user 1 of round 11, and so on
  ${TOPK:-topk-secagg} run "$work/$n/round" --gradients "$work/$n/updates" --output "$work/$n/mean.npz" --mean \
    --weights "$work/weights.csv" --residuals "$work/residuals" --drop-masking $(((n - 1) % 10 + 1)) \
    --survivors 5 --colluders 3 --density 0.1 --construction moments --clip 4 --quiet
  $model step "$work" "$n"
done
