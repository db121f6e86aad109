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
#   WEIGHT               the weight of the gradient (1)
#   RESIDUAL             the file in which error feedback is kept from round to round (none)
#   FROM                 this organisation's folder of an earlier round of the same series, by keys: the keys of this
#                        round follow from those, and nothing is sent before X (none)
#   MEAN                 yes: OUTPUT gets the mean by weight instead of the sum (no)
#   RECIPIENTS           this organisation's own list of everybody's public keys, or TOPK_SECAGG_RECIPIENTS:
#                        required, every command compares it
#   TOPK_SECAGG_SESSION  the only session to take part in, 16 digits or more
#   TOPK_SECAGG_SERIES   the only series of rounds to take part in, as `inspect` names it: one pin for all of them
#   TOPK_SECAGG_SECRETS  where secrets and ledgers are, by default ROUND/secrets
#   PATIENCE             seconds to wait for late files, once a step could be run without them (600)
#   LIMIT                seconds to wait for files without which nothing goes on, and for SYNC (86400)
#   PAUSE                seconds between two looks (10)
#
# It says on standard error, with the time, what it does and what it waits for. It can be stopped at any time and started
# again. It ends with 0 when nothing is left to do, with 75 when LIMIT is over, and with the exit code of a step that was
# refused. TOPK_SECAGG_SESSION, _SERIES and _SECRETS may be left out; set but empty, they are refused (2).
set -euo pipefail

if [ $# -ne 6 ]; then
  sed -n '2,/^set/{s/^# \{0,1\}//;/^set/!p}' "$0" >&2
  exit 2
fi
export ROUND=$1 NUMBER=$2
identity=$3
gradient=$4
sync=$5
output=$6
patience=${PATIENCE:-600}
limit=${LIMIT:-86400}
pause=${PAUSE:-10}
longest=$((limit > 0 ? limit : 1)) # seconds that a call of SYNC may take; 0 would be no limit
blink=0.2                          # seconds between two looks at a process

access=(--user "$NUMBER" --identity "$identity")
masking=(--gradient "$gradient" --weight "${WEIGHT:-1}")
if [ -n "${RESIDUAL:-}" ]; then masking+=(--residual "$RESIDUAL"); fi
decoding=(--output "$output")
if [ "${MEAN:-no}" = yes ]; then decoding+=(--mean); fi

say() { echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) organisation $NUMBER: $*" >&2; }

# the pins: every command below takes them from the environment
for name in TOPK_SECAGG_SESSION TOPK_SECAGG_SERIES TOPK_SECAGG_SECRETS; do
  if [ -z "${!name-unset}" ]; then
    say "$name is set but empty: unset it, or give it a value"
    exit 2
  fi
done
if [ -n "${TOPK_SECAGG_SESSION:-}" ]; then export TOPK_SECAGG_SESSION; fi
if [ -n "${TOPK_SECAGG_SERIES:-}" ]; then export TOPK_SECAGG_SERIES; fi
export TOPK_SECAGG_RECIPIENTS=${TOPK_SECAGG_RECIPIENTS:-${RECIPIENTS:-}}
if [ -z "$TOPK_SECAGG_RECIPIENTS" ]; then
  say "set TOPK_SECAGG_RECIPIENTS: without your own list of keys, whoever moves the files could make up the others"
  exit 2
fi
if [ -z "${TOPK_SECAGG_SESSION:-}${TOPK_SECAGG_SERIES:-}" ]; then
  say "TOPK_SECAGG_SESSION is not set: compare the session's parameters and its fingerprint yourself"
fi

give_up() {
  say "gave up: $*"
  exit 75
}

# --- fetching, in a process of its own ---------------------------------------------------------------------------------

# It holds the other end of two pipes of this script. Its standard input ends with the script, however the script ends.

script_is_gone() { # within so many seconds
  local code=0
  read -r -t "$1" _ || code=$?
  [ "$code" -le 128 ] # more is a time-out: the pipe is still open
}

pulling() { # until the script is gone; a word on standard output when all has been fetched for the first time
  local failed=no first=yes fetching
  while :; do
    timeout --kill-after=5 "$longest" "$sync" pull </dev/null >&2 &
    fetching=$!
    while kill -0 "$fetching" 2>/dev/null; do
      if script_is_gone "$blink"; then
        kill "$fetching" 2>/dev/null || true
        exit 0
      fi
    done
    if wait "$fetching"; then
      failed=no
      if [ "$first" = yes ]; then
        echo fetched
        first=no
      fi
    elif [ "$failed" = no ]; then
      failed=yes
      say "nothing could be fetched; trying again"
    fi
    if script_is_gone "$pause"; then exit 0; fi
  done
}

start_pulling() {
  coproc PULLER { pulling; }
  puller=$PULLER_PID
  fetched=${PULLER[0]}
  lifeline=${PULLER[1]}
}

stop_pulling() {
  if [ -n "$puller" ]; then
    exec {lifeline}>&-
    wait "$puller" || true
    puller=''
  fi
}

push() { # the files that are named
  local code=0
  printf '%s\n' "$@" | timeout --kill-after=5 "$longest" "$sync" push || code=$?
  if [ "$code" = 124 ]; then give_up "nothing could be sent"; fi
  if [ "$code" != 0 ]; then exit "$code"; fi
}

# --- the steps ----------------------------------------------------------------------------------------------------------

look() { # into `found`: the next step, whether it is ready or possible, what it waits for; then the files to send
  local code=0 seen
  seen=$(topk-secagg status "$ROUND" "${access[@]}" --wait "$1" --json 2>/dev/null) || code=$?
  if [ "$code" != 0 ] && [ "$code" != 75 ]; then # once more, to say why
    topk-secagg status "$ROUND" "${access[@]}" --quiet || exit $?
    exit "$code"
  fi
  mapfile -t found < <(python3 -c '
import json, os, sys
found = json.load(sys.stdin)
step = found["next"]
print(step["step"] or "nothing", step["ready"], step["possible"], step["waits_for"] or "nothing", sep="\n")
for file in found["send"]:
    print(os.path.relpath(file["path"], os.environ["ROUND"]))' <<<"$seen")
}

in_series() { # whether the keys of this round follow from those of an earlier one
  python3 -c '
import json, os
with open(os.environ["ROUND"] + "/session.json") as session:
    raise SystemExit(json.load(session)["series"] is None)'
}

offline() {
  if ! in_series; then
    topk-secagg offline "$ROUND" "${access[@]}" --quiet
  elif [ -n "${FROM:-}" ]; then
    topk-secagg offline "$ROUND" "${access[@]}" --from "$FROM" --quiet
  else
    say "this round goes on with the keys of an earlier one: set FROM to the folder of a round of its series"
    exit 2
  fi
}

run() {
  say "$1"
  case $1 in
  offline) offline ;;
  mask) topk-secagg mask "$ROUND" "${access[@]}" "${masking[@]}" --quiet ;;
  decode) topk-secagg decode "$ROUND" "${decoding[@]}" ;;
  forget)
    stop_pulling # or what is erased would be fetched again
    topk-secagg forget "$ROUND" "${access[@]}" --quiet # which keeps the keys of the next round of a series
    ;;
  *) topk-secagg "$1" "$ROUND" "${access[@]}" --quiet ;;
  esac
}

least() { if [ "$1" -lt "$2" ]; then echo "$1"; else echo "$2"; fi; }

puller=''
trap stop_pulling EXIT
since=$SECONDS
start_pulling
# what was sent before this start counts, the session first of all
if ! read -r -t "$pause" -u "$fetched" _; then
  say "waits for a first fetch"
  left=$((limit - (SECONDS - since)))
  if [ "$left" -le 0 ] || ! read -r -t "$left" -u "$fetched" _; then
    give_up "nothing could be fetched"
  fi
fi
if [ ! -e "$ROUND/session.json" ]; then say "waits for session.json"; fi
until [ -e "$ROUND/session.json" ]; do
  if [ $((SECONDS - since)) -ge "$limit" ]; then give_up "session.json is still missing"; fi
  sleep "$blink"
done

sent=''
before=''
waited=''
since=$SECONDS
wait=0
possible=False
while :; do
  look "$wait"
  step=${found[0]}
  ready=${found[1]}
  could=$possible
  possible=${found[2]}
  waits_for=${found[3]}
  if [ "$step" = nothing ]; then break; fi
  # on a new start everything is sent once more, which changes nothing
  if [ -n "${found[*]:4}" ] && [ "${found[*]:4}" != "$sent" ]; then
    push "${found[@]:4}"
    sent=${found[*]:4}
  fi
  if [ "$step" != "$before" ]; then
    before=$step
    since=$SECONDS
    could=False
  fi
  if [ "$ready" = False ] && [ "$step $waits_for" != "$waited" ]; then
    waited="$step $waits_for"
    say "$step waits for $waits_for"
  fi
  left=$((limit - (SECONDS - since)))
  # late files are waited for as long as PATIENCE says, from when the step could be run without them
  if [ "$ready" = True ] || { [ "$could" = True ] && [ "$possible" = True ] && [ "$wait" != 0 ]; }; then
    run "$step"
    wait=0
    possible=False
  elif [ "$left" -le 0 ]; then
    give_up "$step still waits for $waits_for"
  else
    if [ -z "$puller" ]; then start_pulling; fi
    wait=$(least "$patience" "$left")
  fi
done
say "nothing is left to do"
