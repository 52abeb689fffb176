# shellcheck shell=sh
# Defines the journal, and how files are written, kept and restored. Reads G, R, LOCK, PROC and SYS.
# shellcheck disable=SC3067 # -O: every sh of Linux knows it
J=$R/journal; FAILED=; CUR=; SKIP=; : "${STEP:=0}"
entry() { printf '%s\n' "$1" >>"$J" && sync "$J" || { echo "the journal $J cannot be written" >&2; exit 74; }; }
# Seconds since 1970, in NOW: the clock is asked once, what has passed since then is told by the kernel.
now() {
  { read -r NOW _ </proc/uptime; } 2>/dev/null || { NOW=$(date +%s); return; }
  : "${BOOTED:=$(($(date +%s) - ${NOW%.*}))}"; NOW=$((BOOTED + ${NOW%.*}))
}
fail() { if [ -n "${WHY-}" ]; then echo "$*" >>"$WHY"; else echo "$*" >&2; fi; exit 1; }
effect() { entry '{"e":"effect","i":'"$STEP"',"did":"'"$1"'"}'; }
# Everything a step prints is kept; the last 4000 bytes travel in the journal.
ended() { # index status
  o=; [ ! -s "$R/out.$1" ] || o=$(tail -c 4000 "$R/out.$1" | base64 -w 0)
  now; entry '{"e":"result","i":'"$1"',"rc":'"$2"',"t":'"$NOW"',"out":"'"$o"'"}'
}
block() { # state needs...
  CUR=$1; SKIP=; shift
  for n in "$@"; do case " $FAILED " in *" $n "*) SKIP=${SKIP:-$n};; esac; done
  if [ -n "$SKIP" ]; then FAILED="$FAILED $CUR"; entry '{"e":"skip","state":"'"$CUR"'","because":"'"$SKIP"'"}'; fi
}
step() { # index timeout secret: of a step with a secret in it nothing is kept but why it failed
  [ -n "$SKIP" ] && return 0
  if [ -e "$R/stop" ]; then finish 1; fi
  if [ "$CUR" != "${NOTED-}" ]; then NOTED=$CUR; note_before "changed $CUR"; fi
  now; entry '{"e":"intent","i":'"$1"',"t":'"$NOW"'}'
  if [ -z "${3-}" ]; then
    STEP=$1 timeout -k 10 "$2" sh "$R/step.$1" >"$R/out.$1" 2>&1 </dev/null; rc=$?
  else
    : >"$R/out.$1"; STEP=$1 WHY=$R/out.$1 timeout -k 10 "$2" sh "$R/step.$1" >/dev/null 2>&1 </dev/null; rc=$?
    rm -f "$R/step.$1" "$R/content"
  fi
  [ $rc = 124 ] && echo "killed after $2 s" >>"$R/out.$1"
  ended "$1" $rc
  [ $rc = 0 ] || { SKIP=$CUR; FAILED="$FAILED $CUR"; ! grep -qF '"i":'"$1"',"did":"rolled-back"' "$J" || note_before "unchanged $CUR"; }
}
no_secrets() { # what a run has left of its secrets goes with it; one that was killed is cleared by the next
  for d in "$@"; do
    [ -s "$d/secrets" ] || continue
    for n in $(cat "$d/secrets"); do rm -f "$d/step.$n"; done; rm -rf "$d/content" "$d/pre" "$d/secrets"
  done
}
finish() { # stopped
  no_secrets "$R"
  [ -n "${KEEP_LOCK-}" ] || unlock_run
  now; entry '{"e":"end","stopped":'"$1"',"t":'"$NOW"'}'
  exit 0
}
unlock_run() { if [ "$(cat "$G/lock/run" 2>/dev/null)" = "$LOCK" ]; then rm -rf "$G/lock"; fi; }

# --- files -------------------------------------------------------------------------------
hash_of() { # path: H is its name where bytes are kept
  [ "$1" != "${HASHED-}" ] || return 0
  H=$(printf %s "$1" | sha256sum); H=${H%"${H#????????????????????????}"}; HASHED=$1
}
sha() { hash_of "$1"; printf %s "$H"; }
keep() ( # path: remember its bytes before they change, and the folders that are not there yet; in a shell of its own, for steps have variables too
  hash_of "$1"; k=$H
  [ -d "$R/pre" ] && [ -d "$G/originals" ] || mkdir -p "$R/pre" "$G/originals"
  e=${1%/*}; while [ -n "$e" ] && [ ! -d "$e" ] && [ ! -L "$e" ]; do noted_folder "$e" || return 1; e=${e%/*}; done
  for s in "$R/pre" "$G/originals"; do
    [ -e "$s/$k.path" ] && continue
    [ ! -e "$s/$k.new" ] && [ ! -e "$s/$k" ] || rm -f "$s/$k.new" "$s/$k"
    if [ -e "$1" ]; then cp -a "$1" "$s/$k.new" && { [ -L "$s/$k.new" ] || sync "$s/$k.new"; } && mv -fT "$s/$k.new" "$s/$k" || return 1; fi
    [ "$s" = "$R/pre" ] || : >"$R/pre/$k.first"
    printf '%s' "$1" >"$s/$k.path.new" && sync "$s/$k.path.new" && mv -fT "$s/$k.path.new" "$s/$k.path" && sync "$s" || return 1
  done
)
no_link() { [ ! -L "$1" ] || fail "$1 is a symbolic link to $(readlink "$1"): managed by something else; replace it by a plain file or leave it to its owner"; }
noted_folder() { grep -qsxF -e "$1" "$G/folders" || { printf '%s\n' "$1" >>"$G/folders" && sync "$G/folders"; }; }
folder() { # dir: make it, and force its name to disk; noted first, so that it can go again
  [ -d "$1" ] && return 0
  folder "$(dirname "$1")"; noted_folder "$1" || return 1
  mkdir "$1" || return 1; sync "$(dirname "$1")"
}
packaged() { if command -v dpkg >/dev/null; then dpkg -S "$1"; else rpm -qf "$1"; fi >/dev/null 2>&1; }
left_folders() ( # path: the folders above it that were made for it go once they are empty
  e=$(dirname "$1")
  while grep -qsxF -e "$e" "$G/folders"; do
    if [ -d "$e" ]; then ! packaged "$e" && rmdir "$e" 2>/dev/null || break; fi
    sync "$(dirname "$e")" 2>/dev/null || :
    grep -vxF -e "$e" "$G/folders" >"$G/folders.new" || :
    sync "$G/folders.new" && mv -fT "$G/folders.new" "$G/folders" || break
    e=$(dirname "$e")
  done
)
temporary() { # path: a name beside it for its next content; after a kill, sweep finds it by what is kept
  hash_of "$1"; t=${1%/*}/.gpustate.$H.${R##*/}; rm -f "$t" && ( umask 077; set -C; : >"$t" )
}
outlived() { # our own processes that run a step, as step begins it; not what only names one
  for p in $(LC_ALL=C grep -las "^sh[^/]$G/runs/[^/]*/step\." /proc/[0-9]*/cmdline); do
    p=${p%/cmdline}; [ ! -O "$p" ] || { echo "${p#/proc/}"; return; }
  done
}
sweep() { # a program was killed before this one: let a step that outlived it end, remove what is half written
  n=0
  while p=$(outlived) && [ -n "$p" ]; do
    [ $n != 10 ] || entry '{"e":"waits","pid":'"$p"'}'
    if [ $n -ge "${SWEEP_POLLS:-1800}" ]; then
      echo "process $p, a step of an earlier run, still runs: wait for it or end it (ps -fp $p), then run again" >"$R/out.1"
      ended 1 1; finish 0
    fi
    sleep 0.5; n=$((n + 1))
  done
  for d in "$G"/runs/*/secrets; do [ ! -e "$d" ] || [ "${d%/secrets}" = "$R" ] || no_secrets "${d%/secrets}"; done
  for f in "$G"/originals/*.path; do
    [ -e "$f" ] || continue
    IFS= read -r p <"$f" || :
    k=${f##*/}; set -- "$@" "${p%/*}/.gpustate.${k%.path}."*
  done
  [ $# = 0 ] || rm -f "$@"
}
keep_before() { # run: what it changes from outlives its program; thirty are kept
  b=$G/before
  { [ -d "$b" ] || mkdir "$b"; } && mv -fT "$R/before" "$b/$1" && sync "$b/$1" "$b" || { echo "$b cannot be written" >&2; exit 74; }
  # shellcheck disable=SC2012 # in the order of time; names are those of runs
  ls -1t "$b" | tail -n +31 | while read -r n; do rm -f "$b/$n"; done
}
note_before() { # line: what has become of a state, beside what the run changes from
  [ ! -e "$G/before/$LOCK" ] || printf '\n%s' "$1" >>"$G/before/$LOCK"
}
no_new() { # path folder: why its next content could not be written
  rm -f "$t" 2>/dev/null || :
  e=$( ( : >"$t" ) 2>&1 ) && { rm -f "$t"; fail "$2: no room for $1"; }
  fail "$1 cannot be written: $2: ${e##*: }"
}
put() { # path mode(- keeps) owner(- keeps, own: who runs this); content on standard input
  no_link "$1"; hash_of "$1"; d=${1%/*}; d=${d:-/}; folder "$d"; c=$R/content
  cat >"$c" || { rm -f "$c"; fail "$R: no room for $1"; }
  if [ "$3" = own ]; then o=-; [ ! -e "$1" ] || o=$(stat -c %U:%G "$c"); set -- "$1" "$2" "$o"; fi
  if [ -e "$1" ]; then
    [ -f "$1" ] || fail "$1 is not a plain file"
    m=$(stat -c %a "$1"); u=$(stat -c %U:%G "$1")
    if cmp -s "$c" "$1" && { [ "$2" = - ] || [ "$((0$2))" = "$((0$m))" ]; } && { [ "$3" = - ] || [ "$3" = "$u" ]; }; then
      effect same; return 0
    fi
    keep "$1" || fail "$1: its old content could not be kept (disk full?)"
    temporary "$1" && cat "$c" >"$t" || no_new "$1" "$d"
    cp --attributes-only --preserve=all "$1" "$t" 2>/dev/null || chown --reference="$1" "$t"
    touch "$t"
  else
    keep "$1" || fail "$1: cannot be noted (disk full?)"
    temporary "$1" && cat "$c" >"$t" || no_new "$1" "$d"
    chmod 0644 "$t"
  fi
  [ "$3" = - ] || chown "$3" "$t"
  [ "$2" = - ] || chmod "$2" "$t"
  sync "$t" && e=$(mv -fT "$t" "$1" 2>&1) && sync "$d" || { rm -f "$t"; fail "$1 cannot be replaced: ${e##*: }$(lsattr -d "$1" 2>/dev/null | sed -n 's/^[^ ]*i.*/; it is immutable: chattr -i, or leave it to its owner/p')"; }
  if command -v restorecon >/dev/null 2>&1 && hash_of "$1" && [ ! -e "$R/pre/$H" ]; then restorecon "$1" || :; fi
  effect wrote
}
put_secret() { # path mode owner; content on standard input: no copy is kept, here or of what was there before
  no_link "$1"; d=${1%/*}; folder "$d"
  t=$d/.gpustate.secret.${1##*/}; rm -f "$t"
  ( umask 077; cat >"$t" ) && chown "$3" "$t" && chmod "$2" "$t" && sync "$t" && mv -fT "$t" "$1" && sync "$d" || { rm -f "$t"; fail "$1 cannot be written"; }
  effect wrote
}
take_away() { # path
  if [ ! -e "$1" ] && [ ! -L "$1" ]; then left_folders "$1"; effect same; return 0; fi
  [ -d "$1" ] && [ ! -L "$1" ] && fail "$1 is a folder"
  keep "$1" || fail "$1: its content could not be kept (disk full?)"
  rm -f "$1" && sync "$(dirname "$1")"; left_folders "$1"; effect removed
}
copy_back() { # from to: same bytes, owner, mode and times as kept
  # A package that left may have taken the folder with it.
  mkdir -p "${2%/*}/" && temporary "$2" && cp -a "$1" "$t" && { [ -L "$t" ] || sync "$t"; } && mv -fT "$t" "$2" && sync "$(dirname "$2")"
}
roll_back() { # path...: as they were before this run
  for p in "$@"; do
    hash_of "$p"; k=$R/pre/$H; [ -e "$k.path" ] || continue
    if [ -e "$k" ]; then copy_back "$k" "$p"; else rm -f "$p"; sync "$(dirname "$p")" 2>/dev/null || :; left_folders "$p"; fi
    # What this run alone has changed is as if nobody had.
    [ ! -e "$k.first" ] || rm -f "$G/originals/$H" "$G/originals/$H.path" "$k.first"
  done
  effect rolled-back
}
restore_original() { # path: as it was before gpustate first touched it
  hash_of "$1"; k=$G/originals/$H
  [ -e "$k.path" ] || { effect same; return 0; }
  if [ -e "$k" ]; then copy_back "$k" "$1"; else rm -f "$1"; sync "$(dirname "$1")" 2>/dev/null || :; left_folders "$1"; fi
  rm -f "$k" "$k.path"; effect restored
}
forget_original() { hash_of "$1"; k=$G/originals/$H; rm -f "$k" "$k.path"; }

# --- packages ----------------------------------------------------------------------------
