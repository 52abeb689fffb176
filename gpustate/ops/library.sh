# shellcheck shell=sh
# Defines the journal, and how files are written, kept and restored. Reads G, R, LOCK, PROC and SYS.
# shellcheck disable=SC3067 # -O: every sh of Linux knows it
J=$R/journal
FAILED=
CUR=
SKIP=
: "${STEP:=0}"
entry() {
  printf '%s\n' "$1" >>"$J" && sync "$J" || {
    echo "the journal $J cannot be written" >&2
    exit 74
  }
}
# Seconds since 1970, in NOW: the clock is read once, the time since then is the kernel's uptime.
now() {
  { read -r NOW _ </proc/uptime; } 2>/dev/null || {
    NOW=$(date +%s)
    return
  }
  : "${BOOTED:=$(($(date +%s) - ${NOW%.*}))}"
  NOW=$((BOOTED + ${NOW%.*}))
}
fail() {
  if [ -n "${WHY-}" ]; then echo "$*" >>"$WHY"; else echo "$*" >&2; fi
  exit 1
}
effect() { entry '{"e":"effect","i":'"$STEP"',"did":"'"$1"'"}'; }
log_end() { # bytes file: the whole lines at its end
  if [ "$(wc -c <"$2")" -gt "$1" ]; then tail -c "$1" "$2" | sed 1d; else cat "$2"; fi
}
# Everything a step prints is kept; the last 4000 bytes travel in the journal.
ended() { # index status
  step_output=
  [ ! -s "$R/out.$1" ] || step_output=$(tail -c 4000 "$R/out.$1" | base64 -w 0)
  now
  entry '{"e":"result","i":'"$1"',"rc":'"$2"',"t":'"$NOW"',"out":"'"$step_output"'"}'
}
block() { # state needs...
  CUR=$1
  SKIP=
  shift
  for need in "$@"; do
    case " $FAILED " in *" $need "*) SKIP=${SKIP:-$need} ;; esac
  done
  if [ "${SKIP:-$CUR}" != "$CUR" ]; then
    FAILED="$FAILED $CUR"
    entry '{"e":"skip","state":"'"$CUR"'","because":"'"$SKIP"'"}'
  fi
}
step() { # index timeout secret: of a step with a secret in it nothing is kept but why it failed
  [ -n "$SKIP" ] && return 0
  if [ -e "$R/stop" ]; then finish 1; fi
  if [ "$CUR" != "${NOTED-}" ]; then
    NOTED=$CUR
    note_before "changed $CUR"
  fi
  now
  entry '{"e":"intent","i":'"$1"',"t":'"$NOW"'}'
  if [ -z "${3-}" ]; then
    STEP=$1 timeout -k 10 "$2" sh "$R/step.$1" >"$R/out.$1" 2>&1 </dev/null
    rc=$?
  else
    : >"$R/out.$1"
    STEP=$1 WHY=$R/out.$1 timeout -k 10 "$2" sh "$R/step.$1" >/dev/null 2>&1 </dev/null
    rc=$?
    rm -f "$R/step.$1" "$R/content"
  fi
  [ $rc = 124 ] && echo "killed after $2 s" >>"$R/out.$1"
  ended "$1" $rc
  [ $rc = 0 ] || {
    SKIP=$CUR
    FAILED="$FAILED $CUR"
    rm -f "$R/along" # a transaction does not bring packages of a state that has failed
    ! grep -qF '"i":'"$1"',"did":"rolled-back"' "$J" || note_before "unchanged $CUR"
  }
}
# no_secrets: what a run has left of its secrets goes with it; one that was killed is cleared by the
# next
no_secrets() {
  for secret_run in "$@"; do
    [ -s "$secret_run/secrets" ] || continue
    for secret_step in $(cat "$secret_run/secrets"); do rm -f "$secret_run/step.$secret_step"; done
    rm -rf "$secret_run/content" "$secret_run/pre" "$secret_run/secrets"
  done
}
finish() { # stopped
  no_secrets "$R"
  [ -n "${KEEP_LOCK-}" ] || unlock_run
  now
  entry '{"e":"end","stopped":'"$1"',"t":'"$NOW"'}'
  exit 0
}
unlock_run() { if [ "$(cat "$G/lock/run" 2>/dev/null)" = "$LOCK" ]; then rm -rf "$G/lock"; fi; }

# --- files -------------------------------------------------------------------------------
hash_of() { # path: H is its name where bytes are kept
  [ "$1" != "${HASHED-}" ] || return 0
  H=$(printf %s "$1" | sha256sum)
  H=${H%"${H#????????????????????????}"}
  HASHED=$1
}
sha() {
  hash_of "$1"
  printf %s "$H"
}
# keep path: remember its bytes before they change, and the folders that are not there yet; in a
# shell of its own, for steps have variables too
keep() (
  hash_of "$1"
  kept_name=$H
  [ -d "$R/pre" ] && [ -d "$G/originals" ] || mkdir -p "$R/pre" "$G/originals"
  ancestor=${1%/*}
  while [ -n "$ancestor" ] && [ ! -d "$ancestor" ] && [ ! -L "$ancestor" ]; do
    noted_folder "$ancestor" || return 1
    ancestor=${ancestor%/*}
  done
  for store in "$R/pre" "$G/originals"; do
    [ -e "$store/$kept_name.path" ] && continue
    [ ! -e "$store/$kept_name.new" ] && [ ! -e "$store/$kept_name" ] ||
      rm -f "$store/$kept_name.new" "$store/$kept_name"
    if [ -e "$1" ]; then
      cp -a "$1" "$store/$kept_name.new" && {
        [ -L "$store/$kept_name.new" ] || sync "$store/$kept_name.new"
      } &&
        mv -fT "$store/$kept_name.new" "$store/$kept_name" || return 1
    fi
    [ "$store" = "$R/pre" ] || : >"$R/pre/$kept_name.first"
    printf '%s' "$1" >"$store/$kept_name.path.new" && sync "$store/$kept_name.path.new" &&
      mv -fT "$store/$kept_name.path.new" "$store/$kept_name.path" && sync "$store" || return 1
  done
)
no_link() {
  [ ! -L "$1" ] ||
    fail "$1 is a symbolic link to $(readlink "$1"): managed by something else; replace it by a" \
      "plain file or leave it to its owner"
}
noted_folder() {
  grep -qsxF -e "$1" "$G/folders" || { printf '%s\n' "$1" >>"$G/folders" && sync "$G/folders"; }
}
folder() { # dir: make it, and force its name to disk; noted first, so that it can go again
  [ -d "$1" ] && return 0
  folder "$(dirname "$1")"
  noted_folder "$1" || return 1
  mkdir "$1" || return 1
  sync "$(dirname "$1")"
}
packaged() {
  if command -v dpkg >/dev/null; then dpkg -S "$1"; else rpm -qf "$1"; fi >/dev/null 2>&1
}
left_folders() ( # path: the folders above it that were made for it go once they are empty
  left_folder=$(dirname "$1")
  while grep -qsxF -e "$left_folder" "$G/folders"; do
    if [ -d "$left_folder" ]; then
      ! packaged "$left_folder" && rmdir "$left_folder" 2>/dev/null || break
    fi
    sync "$(dirname "$left_folder")" 2>/dev/null || :
    grep -vxF -e "$left_folder" "$G/folders" >"$G/folders.new" || :
    sync "$G/folders.new" && mv -fT "$G/folders.new" "$G/folders" || break
    left_folder=$(dirname "$left_folder")
  done
)
# temporary path: a name beside it for its next content; after a kill, sweep finds it by what is
# kept
temporary() {
  hash_of "$1"
  new_file=${1%/*}/.gpustate.$H.${R##*/}
  rm -f "$new_file" && (
    umask 077
    set -C
    : >"$new_file"
  )
}
outlived() { # our own processes that run a step, as step begins it; not what only names one
  for outlived_step in $(LC_ALL=C grep -las "^sh[^/]$G/runs/[^/]*/step\." /proc/[0-9]*/cmdline); do
    outlived_step=${outlived_step%/cmdline}
    [ ! -O "$outlived_step" ] || {
      echo "${outlived_step#/proc/}"
      return
    }
  done
}
# sweep: a program was killed before this one: let a step that outlived it end, remove what is half
# written
sweep() {
  sweep_polls=0
  while outlived_pid=$(outlived) && [ -n "$outlived_pid" ]; do
    [ $sweep_polls != 10 ] || entry '{"e":"waits","pid":'"$outlived_pid"'}'
    if [ $sweep_polls -ge "${SWEEP_POLLS:-1800}" ]; then
      echo "process $outlived_pid, a step of an earlier run, still runs: wait for it or end it" \
        "(ps -fp $outlived_pid), then run again" >"$R/out.1"
      ended 1 1
      finish 0
    fi
    sleep 0.5
    sweep_polls=$((sweep_polls + 1))
  done
  for d in "$G"/runs/*/secrets; do
    [ ! -e "$d" ] || [ "${d%/secrets}" = "$R" ] || no_secrets "${d%/secrets}"
  done
  for path_file in "$G"/originals/*.path; do
    [ -e "$path_file" ] || continue
    IFS= read -r sweep_path <"$path_file" || :
    kept_name=${path_file##*/}
    set -- "$@" "${sweep_path%/*}/.gpustate.${kept_name%.path}."*
  done
  [ $# = 0 ] || rm -f "$@"
}
keep_before() { # run: what it changes from outlives its program; thirty are kept
  before_folder=$G/before
  { [ -d "$before_folder" ] || mkdir "$before_folder"; } &&
    mv -fT "$R/before" "$before_folder/$1" && sync "$before_folder/$1" "$before_folder" || {
    echo "$before_folder cannot be written" >&2
    exit 74
  }
  # shellcheck disable=SC2012 # in the order of time; names are those of runs
  ls -1t "$before_folder" | tail -n +31 | while read -r old_run; do
    rm -f "$before_folder/$old_run"
  done
}
note_before() { # line: what has become of a state, beside what the run changes from
  [ ! -e "$G/before/$LOCK" ] || printf '\n%s' "$1" >>"$G/before/$LOCK"
}
no_new() { # path folder: why its next content could not be written
  rm -f "$new_file" 2>/dev/null || :
  write_error=$( (: >"$new_file") 2>&1) && {
    rm -f "$new_file"
    fail "$2: no room for $1"
  }
  fail "$1 cannot be written: $2: ${write_error##*: }"
}
put() { # path mode(- keeps) owner(- keeps, own: who runs this); content on standard input
  no_link "$1"
  hash_of "$1"
  put_folder=${1%/*}
  put_folder=${put_folder:-/}
  folder "$put_folder"
  put_content=$R/content
  cat >"$put_content" || {
    rm -f "$put_content"
    fail "$R: no room for $1"
  }
  if [ "$3" = own ]; then
    put_owner=-
    [ ! -e "$1" ] || put_owner=$(stat -c %U:%G "$put_content")
    set -- "$1" "$2" "$put_owner"
  fi
  if [ -e "$1" ]; then
    [ -f "$1" ] || fail "$1 is not a plain file"
    put_mode=$(stat -c %a "$1")
    owner_now=$(stat -c %U:%G "$1")
    if cmp -s "$put_content" "$1" && { [ "$2" = - ] || [ "$((0$2))" = "$((0$put_mode))" ]; } &&
      { [ "$3" = - ] || [ "$3" = "$owner_now" ]; }; then
      effect same
      return 0
    fi
    keep "$1" || fail "$1: its old content could not be kept (disk full?)"
    temporary "$1" && cat "$put_content" >"$new_file" || no_new "$1" "$put_folder"
    cp --attributes-only --preserve=all "$1" "$new_file" 2>/dev/null ||
      chown --reference="$1" "$new_file"
    touch "$new_file"
  else
    keep "$1" || fail "$1: its content could not be recorded (disk full?)"
    temporary "$1" && cat "$put_content" >"$new_file" || no_new "$1" "$put_folder"
    chmod 0644 "$new_file"
  fi
  [ "$3" = - ] || chown "$3" "$new_file"
  [ "$2" = - ] || chmod "$2" "$new_file"
  sync "$new_file" && write_error=$(mv -fT "$new_file" "$1" 2>&1) && sync "$put_folder" || {
    rm -f "$new_file"
    fail "$1 cannot be replaced: ${write_error##*: }$(lsattr -d "$1" 2>/dev/null |
      sed -n 's/^[^ ]*i.*/; it is immutable: chattr -i, or leave it to its owner/p')"
  }
  if command -v restorecon >/dev/null 2>&1 && hash_of "$1" && [ ! -e "$R/pre/$H" ]; then
    restorecon "$1" || :
  fi
  effect wrote
}
# put_secret PATH MODE OWNER; content on standard input: no copy is kept, here or of what was there
# before
put_secret() {
  no_link "$1"
  put_folder=${1%/*}
  folder "$put_folder"
  new_file=$put_folder/.gpustate.secret.${1##*/}
  rm -f "$new_file"
  (
    umask 077
    cat >"$new_file"
  ) && chown "$3" "$new_file" && chmod "$2" "$new_file" && sync "$new_file" &&
    mv -fT "$new_file" "$1" && sync "$put_folder" || {
    rm -f "$new_file"
    fail "$1 cannot be written"
  }
  effect wrote
}
take_away() { # path
  if [ ! -e "$1" ] && [ ! -L "$1" ]; then
    left_folders "$1"
    effect same
    return 0
  fi
  [ -d "$1" ] && [ ! -L "$1" ] && fail "$1 is a folder"
  keep "$1" || fail "$1: its content could not be kept (disk full?)"
  rm -f "$1" && sync "$(dirname "$1")"
  left_folders "$1"
  effect removed
}
copy_back() { # from to: same bytes, owner, mode and times as kept
  # A package that left may have taken the folder with it.
  mkdir -p "${2%/*}/" && temporary "$2" && cp -a "$1" "$new_file" && {
    [ -L "$new_file" ] || sync "$new_file"
  } &&
    mv -fT "$new_file" "$2" && sync "$(dirname "$2")"
}
roll_back() { # path...: as they were before this run
  for rolled_path in "$@"; do
    hash_of "$rolled_path"
    kept_copy=$R/pre/$H
    [ -e "$kept_copy.path" ] || continue
    if [ -e "$kept_copy" ]; then
      copy_back "$kept_copy" "$rolled_path"
    else
      rm -f "$rolled_path"
      sync "$(dirname "$rolled_path")" 2>/dev/null || :
      left_folders "$rolled_path"
    fi
    # What this run alone has changed is as if nobody had.
    [ ! -e "$kept_copy.first" ] || rm -f "$G/originals/$H" "$G/originals/$H.path" "$kept_copy.first"
  done
  effect rolled-back
}
restore_original() { # path: as it was before gpustate first touched it
  hash_of "$1"
  kept_copy=$G/originals/$H
  [ -e "$kept_copy.path" ] || {
    effect same
    return 0
  }
  if [ -e "$kept_copy" ]; then
    copy_back "$kept_copy" "$1"
  else
    rm -f "$1"
    sync "$(dirname "$1")" 2>/dev/null || :
    left_folders "$1"
  fi
  rm -f "$kept_copy" "$kept_copy.path"
  effect restored
}
forget_original() {
  hash_of "$1"
  kept_copy=$G/originals/$H
  rm -f "$kept_copy" "$kept_copy.path"
}

# --- packages ----------------------------------------------------------------------------
