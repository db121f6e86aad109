#!/usr/bin/env bash
# One organisation's part in a sealed round, from its shares to the sum.
#
#   organisation.sh ROUND NUMBER IDENTITY GRADIENT SYNC OUTPUT
#
# ROUND is this organisation's own folder for the round, NUMBER its user number, IDENTITY its keys, GRADIENT what it
# adds to the sum, OUTPUT the file for the sum. SYNC moves files and is called in two ways, with ROUND and NUMBER in its
# environment (sync-rsync.sh and sync-rclone.sh are such commands):
#
#   SYNC push    send the files of ROUND whose names come on standard input
#   SYNC pull    fetch whatever others have sent
#
# More comes from the environment:
#
#   TOPK_SECAGG_RECIPIENTS  this organisation's own list of everybody's public keys: required, every step compares it
#   TOPK_SECAGG_SESSION     the only session to take part in, 16 digits or more
#   TOPK_SECAGG_SECRETS     where secrets and ledgers are, by default ROUND/secrets
#   PATIENCE                seconds to wait for late files, once a step could be run without them (600)
#   LIMIT                   seconds to wait for files without which nothing goes on (86400)
#   PAUSE                   seconds between two looks (10)
#
# It can be stopped at any time and started again. It ends with 0 when nothing is left to do, with 75 when LIMIT is over,
# and with the exit code of a step that was refused.
set -euo pipefail

if [ $# -ne 6 ]; then
  sed -n '2,/^set/{s/^# \{0,1\}//;/^set/!p}' "$0" >&2
  exit 2
fi
export ROUND=$1 NUMBER=$2
identity=$3 gradient=$4 sync=$5 output=$6
patience=${PATIENCE:-600} limit=${LIMIT:-86400} pause=${PAUSE:-10}
access=(--user "$NUMBER" --identity "$identity")

say() { echo "organisation $NUMBER: $*" >&2; }

# the pins: every command below takes them from the environment
export TOPK_SECAGG_RECIPIENTS=${TOPK_SECAGG_RECIPIENTS:-${RECIPIENTS:-}}
if [ -z "$TOPK_SECAGG_RECIPIENTS" ]; then
  say "set TOPK_SECAGG_RECIPIENTS: without your own list of keys, whoever moves the files could make up the others"
  exit 2
fi
if [ -z "${TOPK_SECAGG_SESSION:-}" ]; then
  say "TOPK_SECAGG_SESSION is not set: compare the session's parameters and its fingerprint yourself"
fi

look() { # the next step, whether it is ready or possible, and what it waits for, a line each; then the files to send
  local code=0 found
  found=$(topk-secagg status "$ROUND" --user "$NUMBER" --wait "$1" --json 2>/dev/null) || code=$?
  if [ "$code" != 0 ] && [ "$code" != 75 ]; then # 75: the next step is not ready yet
    topk-secagg status "$ROUND" --user "$NUMBER" --quiet || true # once more, to say why
    return "$code"
  fi
  python3 -c '
import json, os, sys
found = json.load(sys.stdin)
step = found["next"]
print(step["step"] or "nothing", step["ready"], step["possible"], step["waits_for"] or "nothing", sep="\n")
for file in found["send"]:
    print(os.path.relpath(file["path"], os.environ["ROUND"]))' <<<"$found"
}

pulling() { # until it is told to stop
  trap 'exit 0' TERM
  while :; do
    "$sync" pull || say "nothing could be fetched; trying again"
    sleep "$pause"
  done
}

stop_pulling() {
  if [ -n "$puller" ]; then
    kill "$puller" 2>/dev/null || true
    wait "$puller" || true
    puller=''
  fi
}

run() {
  say "$1"
  case $1 in
  mask) topk-secagg mask "$ROUND" "${access[@]}" --gradient "$gradient" --quiet ;;
  decode) topk-secagg decode "$ROUND" --output "$output" ;;
  forget)
    stop_pulling # or what is erased would be fetched again
    topk-secagg forget "$ROUND" --user "$NUMBER" --quiet
    ;;
  *) topk-secagg "$1" "$ROUND" "${access[@]}" --quiet ;;
  esac
}

puller=''
trap stop_pulling EXIT
until [ -e "$ROUND/session.json" ]; do
  "$sync" pull || say "nothing could be fetched; trying again"
  if [ ! -e "$ROUND/session.json" ]; then sleep "$pause"; fi
done

sent='' before='' since=$SECONDS wait=0 possible=False
while :; do
  looked=$(look "$wait")
  mapfile -t found <<<"$looked"
  step=${found[0]} ready=${found[1]} could=$possible possible=${found[2]} waits_for=${found[3]}
  if [ "$step" = nothing ]; then break; fi
  if [ -n "${found[*]:4}" ] && [ "${found[*]:4}" != "$sent" ]; then # on a new start everything is sent once more, which changes nothing
    printf '%s\n' "${found[@]:4}" | "$sync" push
    sent=${found[*]:4}
  fi
  if [ "$step" != "$before" ]; then
    before=$step since=$SECONDS could=False
    if [ "$ready" = False ]; then say "$step waits for $waits_for"; fi
  fi
  # late files are waited for as long as PATIENCE says, from when the step could be run without them
  if [ "$ready" = True ] || { [ "$could" = True ] && [ "$possible" = True ] && [ "$wait" != 0 ]; }; then
    run "$step"
    wait=0 possible=False
  elif [ $((SECONDS - since)) -ge "$limit" ]; then
    say "gave up: $step still waits for $waits_for"
    exit 75
  else
    if [ -z "$puller" ]; then
      pulling &
      puller=$!
    fi
    wait=$patience
  fi
done
say "nothing is left to do"
