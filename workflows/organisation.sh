#!/usr/bin/env bash
# One organisation's part in a sealed round, from its shares to the sum.
#
#   organisation.sh ROUND NUMBER SECRETS GRADIENT SYNC OUTPUT
#
# ROUND is this organisation's own folder for the round, NUMBER its user number, SECRETS the folder in which `keygen`
# made its identity (one for all rounds: ledgers and the keys of a series are there, and it is backed up never),
# GRADIENT what it adds to the sum, OUTPUT the file for the sum. SYNC moves files and is called in two ways, with ROUND and NUMBER in its
# environment (sync-rsync.sh and sync-rclone.sh are such commands):
#
#   SYNC push    send the files of ROUND whose names come on standard input
#   SYNC pull    fetch whatever others have sent
#
# More comes from the environment:
#
#   WEIGHT               the weight of the gradient (1)
#   FEEDBACK             yes: what was not sent before is added, and what is not sent now is kept (no)
#   MEAN                 yes: OUTPUT gets the mean by weight instead of the sum (no)
#   STRICT               yes: no sum that T users could have forged (no)
#   RECIPIENTS           this organisation's own list of everybody's public keys, or TOPK_SECAGG_RECIPIENTS:
#                        required, every command compares it
#   TOPK_SECAGG_SESSION  the only session to take part in, 16 digits or more
#   TOPK_SECAGG_SERIES   the only series of rounds to take part in, as `inspect` names it: one pin for all of them
#   PATIENCE             seconds to wait for late files, answers too, once a step could be run without them (600)
#   LIMIT                seconds to wait for files without which nothing goes on, and for SYNC (86400)
#   PAUSE                seconds between two looks (10)
#
# It says on standard error, with the time, what it does and what it waits for. It can be stopped at any time and started
# again. It ends with 0 when OUTPUT is there and nothing is left to do, with 75 when LIMIT is over, and with the exit
# code of a step that was refused: there is no sum then. It ends at once where a command is not found (127), and where
# SYNC says at the first fetch that it can never work: with a code of 2, 126, 127 or 64 to 78, but for 75.
# TOPK_SECAGG_SESSION and _SERIES may be left out; set but empty, they are refused (2).
set -euo pipefail

if [ $# -ne 6 ]; then
  sed -n '2,/^set/{s/^# \{0,1\}//;/^set/!p}' "$0" >&2
  exit 2
fi
export ROUND=$1 NUMBER=$2
secrets=$3
gradient=$4
sync=$5
output=$6
patience=${PATIENCE:-600}
limit=${LIMIT:-86400}
pause=${PAUSE:-10}
longest=$((limit > 0 ? limit : 1)) # seconds that a call of SYNC may take; 0 would be no limit
blink=0.2                          # seconds between two looks at a process

access=(--user "$NUMBER" --secrets "$secrets")
masking=(--gradient "$gradient" --weight "${WEIGHT:-1}")
if [ "${FEEDBACK:-no}" = yes ]; then masking+=(--feedback); fi
decoding=(--secrets "$secrets" --output "$output")
if [ "${MEAN:-no}" = yes ]; then decoding+=(--mean); fi
if [ "${STRICT:-no}" = yes ]; then decoding+=(--strict); fi

say() { echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) organisation $NUMBER: $*" >&2; }

for name in topk-secagg python3 timeout "$sync"; do
  if ! command -v "$name" >/dev/null; then
    say "$name: command not found"
    exit 127
  fi
done

# the pins: every command below takes them from the environment
for name in TOPK_SECAGG_SESSION TOPK_SECAGG_SERIES; do
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

is_final() { # whether SYNC ended with a code that trying again does not change
  [ "$1" = 2 ] || [ "$1" = 126 ] || [ "$1" = 127 ] || { [ "$1" -ge 64 ] && [ "$1" -le 78 ] && [ "$1" != 75 ]; }
}

pulling() { # until the script is gone; on standard output 0 when all has been fetched for the first time, or what failed
  local failed=no first=yes fetching code
  while :; do
    timeout --kill-after=5 "$longest" "$sync" pull </dev/null >&2 &
    fetching=$!
    while kill -0 "$fetching" 2>/dev/null; do
      if script_is_gone "$blink"; then
        kill "$fetching" 2>/dev/null || true
        exit 0
      fi
    done
    code=0
    wait "$fetching" || code=$?
    if [ "$code" = 0 ]; then
      failed=no
      if [ "$first" = yes ]; then
        echo 0
        first=no
      fi
    elif [ "$first" = yes ] && is_final "$code"; then
      echo "$code"
      exit 0
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

run() {
  say "$1"
  case $1 in
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
if ! read -r -t "$pause" -u "$fetched" code; then
  say "waits for a first fetch"
  left=$((limit - (SECONDS - since)))
  if [ "$left" -le 0 ] || ! read -r -t "$left" -u "$fetched" code; then
    give_up "nothing could be fetched"
  fi
fi
if [ "$code" != 0 ]; then
  say "nothing can be fetched: $sync pull ends with $code"
  exit "$code"
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
  if [ "$step $ready" = "nothing True" ]; then break; fi
  # on a new start what may not have arrived is sent once more, which changes nothing
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
if [ ! -e "$output" ]; then run decode; fi # which was stopped before it wrote that
say "nothing is left to do"
