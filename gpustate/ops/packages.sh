# shellcheck shell=sh
# Defines what steps do with dpkg and apt. Reads ours, a regular expression. Expects library.sh,
# filelocks.sh, running.sh and unmet.
apt_patience() { # seconds to wait for locks: the node's own setting, else 300
  [ -z "${APT_WAIT_S-}" ] || return 0
  lock_timeout=
  eval "$(apt-config shell lock_timeout DPkg::Lock::Timeout 2>/dev/null)" || :
  case $lock_timeout in '' | *[!0-9]*) lock_timeout=300 ;; esac
  APT_WAIT_S=$lock_timeout
}
no_links_left() { # command...: run it; links to units that are gone since then go with them
  dead_links=$(find /etc/systemd/system -xtype l 2>/dev/null) || :
  dead_status=0
  "$@" || dead_status=$?
  find /etc/systemd/system -xtype l 2>/dev/null | while IFS= read -r dead_link; do
    case "
$dead_links
" in *"
$dead_link
"*) ;;
    *) rm -f "$dead_link" ;; esac
  done
  return $dead_status
}
apt() { # a shut package manager, no questions, conffiles kept, waits for a lock of another process
  apt_patience
  apt-get -y -q -o DPkg::Lock::Timeout="$APT_WAIT_S" -o Dpkg::Options::=--force-confdef \
    -o Dpkg::Options::=--force-confold \
    -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Acquire::Retries=2 "$@"
}
# apt_update hosts...: reads the lists of all sources; errors about those of other hosts do not
# count, unless no host is given
apt_update() {
  apt update -o APT::Update::Error-Mode=any >"$R/update.log" 2>&1 && return 0
  cat "$R/update.log"
  # What names no source is about all of them.
  [ $# -gt 0 ] && awk -v ours="://([^/@ ]*@)?($(echo "$*" | tr ' ' '|'))[:/]" '
    /^[EW]: / && !/: Some index files/ && (!/:\/\// || $0 ~ ours) { fatal = 1 }
    END { exit fatal }' "$R/update.log"
}
apt_lists_kept() { # apt forces none of them to disk
  sync /var/lib/apt/lists /var/lib/apt/lists/*_*
}
lock_holder() { # who holds a lock of dpkg or apt, as NAME (process N)
  file_lock_holder '' /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock \
    /var/cache/apt/archives/lock
}
apt_wait() { # until nobody else is at work with dpkg or apt
  apt_patience
  patience_left=$APT_WAIT_S
  while lock_owner=$(lock_holder); do
    [ "$patience_left" -gt 0 ] || {
      echo "error: the package lock is held by $lock_owner, and was not let go for $APT_WAIT_S s"
      return 1
    }
    patience_left=$((patience_left - 1))
    sleep 1
  done
}
dpkg_torn() { # killed while unpacking a package, or before saying so: as NAME=VERSION
  dpkg-query -W -f '${db:Status-Abbrev}|${Package}=${Version}\n' 2>/dev/null |
    sed -n 's/^..R *|//p' | grep '=.' || :
}
dpkg_settle() { # finish what an interrupted dpkg left
  torn_packages=$(dpkg_torn)
  if [ -n "$torn_packages" ]; then
    # Neither can it be configured, nor does apt always see that only unpacking it again helps.
    rm -rf "$R/torn"
    mkdir "$R/torn"
    (
      cd "$R/torn" && for package in $torn_packages; do apt-get -q download "$package" || :; done &&
        dpkg --unpack --force-confdef --force-confold ./*.deb
    ) || :
    rm -rf "$R/torn"
    effect unpacked
  fi
  if dpkg --audit 2>/dev/null | grep -q .; then
    dpkg --configure -a --force-confdef --force-confold
    effect configured
  fi
}
apt_ready() {
  apt_wait || return 1
  dpkg_settle || :
}
apt_reread() { # the lists of our own repositories, or of all where they are foreign
  reread_all=1
  for source in /etc/apt/sources.list.d/gpustate-*.sources; do
    [ -e "$source" ] || continue
    reread_all=0
    apt update -o Dir::Etc::sourcelist="$source" -o Dir::Etc::sourceparts=- \
      -o APT::Get::List-Cleanup=0 \
      -o APT::Update::Error-Mode=any || return 1
  done
  [ $reread_all = 0 ] || apt update
}
# apt_fetch WORDS... of an installation: all of it is here, and checked, before any of it is
# unpacked
apt_fetch() {
  apt_wait || return 1
  set -- install --download-only --allow-downgrades --allow-change-held-packages "$@"
  if ! apt_whole "$R/fetch.log" "$@"; then
    # The repository may have moved on since its lists were read.
    : >"$R/reread.log"
    if ! grep -q 'Failed to fetch' "$R/fetch.log" || ! apt_reread >"$R/reread.log" 2>&1 ||
      ! apt_whole "$R/fetch.log" "$@"; then
      log_end 1500 "$R/reread.log"
      log_end 2200 "$R/fetch.log"
      return 1
    fi
  fi
  apt_gone "$@" && apt_room
}
# along COMMAND WORDS...: with the packages that later steps install as well; without them where
# that fails
along() {
  if [ -s "$R/along" ]; then
    # shellcheck disable=SC2046 # a word of an installation each
    took_along "$@" $(cut -d ' ' -f 2 "$R/along") && return 0
    [ -n "${ROLLED-1}" ] || return 1
  fi
  "$@"
}
# took_along COMMAND WORDS...: a swap with the packages of $R/along lists them in $R/came. A failure
# drops the list, and prints the log if not everything is as it was.
took_along() {
  if "$@" >"$R/along.log" 2>&1; then
    case $1 in *_swap) mv "$R/along" "$R/came" ;; esac
    return 0
  fi
  rm -f "$R/along"
  [ -n "${ROLLED-1}" ] || cat "$R/along.log"
  return 1
}
came() { # NAME=VERSION...: the transaction of an earlier step has brought them all
  for package in "$@"; do
    cut -d ' ' -f 1 "$R/came" 2>/dev/null | grep -qxF -e "$package" || return 1
  done
}
# apt_unmet WORDS... of an installation: what they lack of their own versions or of NVIDIA's, as
# NAME=VERSION or NAME
apt_unmet() {
  unmet | while read -r package version; do
    # shellcheck disable=SC2154 # ours: set by the loader
    case " $* " in
      *" $package="* | *" $package "* | *" $package- "*) continue ;;
      *"=${version:-?} "*) ;;
      *) printf '%s\n' "$package" | grep -qE "$ours" || continue ;;
    esac
    echo "$package${version:+=$version}"
  done
}
# apt_whole LOG WORDS...: apt begins nothing where installed packages lack something, unless
# that is named as well
apt_whole() {
  log=$1
  shift
  apt "$@" >"$log" 2>&1 && return 0
  ! grep -qE '^(Unpacking|Setting up|Removing) ' "$log" || return 1
  more=$(apt_unmet "$@")
  [ -n "$more" ] && apt "$@" $more >"$log" 2>&1
}
apt_gone() { # what is not named may not leave, unless MAY_GO says that it has been looked at
  [ -z "${MAY_GO-}" ] || return 0
  gone=
  for package in $(sed -n '/will be REMOVED:$/,/^[^ ]/s/^  //p' "$R/fetch.log" | tr -d '*'); do
    case " $* " in *" $package- "*) ;; *) gone="$gone $package" ;; esac
  done
  [ -z "$gone" ] || {
    echo "error: this would also remove$gone, which is foreign; remove it yourself first," \
      "or choose another version"
    return 1
  }
}
apt_needed() { # packages that cannot leave: who holds them
  who=$(
    apt-cache rdepends --installed --no-recommends --no-suggests --no-enhances "$@" 2>/dev/null |
      sed -n 's/^ [ |]*//p' | sort -u |
      while read -r package; do
        case " $* " in *" $package "*) ;; *) printf '%s ' "$package" ;; esac
      done
  )
  [ -z "$who" ] || echo "error: it is needed by ${who% }; remove that first, or with it"
}
apt_room() { # apt looks at the room for its archives only
  # shellcheck disable=SC2046 # split into words on purpose
  set -- \
    $(sed -nE 's/^After this operation, ([0-9,]*)[.0-9]* ([kMG]*)B of additional disk.*/\1 \2/p' \
      "$R/fetch.log" | tr -d ,)
  need=${1:-0}
  case ${2-} in M) ;; G) need=$(((need + 1) * 1024)) ;; *) need=$((need / 1024)) ;; esac
  room=$(($(df -k --output=avail /usr | tail -n 1) / 1024))
  [ "$room" -gt "$need" ] || {
    echo "error: /usr has $room MiB free, and the packages need $need MiB: No space left on device"
    return 1
  }
}
apt_list() {
  dpkg-query -W -f '${binary:Package} ${Version} ${db:Status-Status}\n' |
    grep -vE ' (config-files|not-installed)$' | sort
}
# What else to say before anything is put back.
apt_failed() { :; }
apt_back() { # words that install what was there, and remove what came
  cut -d ' ' -f 1 "$R/before" | sort >"$R/before.names"
  apt_list | sort >"$R/after"
  comm -23 "$R/before" "$R/after" | while read -r package version _; do
    echo "$package=$version"
  done
  cut -d ' ' -f 1 "$R/after" | sort | comm -13 "$R/before.names" - | sed 's/$/-/'
}
apt_rehold() { # dpkg forgets a hold when it unpacks; what has left is held no longer
  # shellcheck disable=SC2046 # split into words on purpose
  set -- $(apt-mark showhold | sort | comm -13 - "$R/held" | while read -r package; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed &&
      echo "$package"
  done)
  [ $# = 0 ] || apt-mark hold "$@" >/dev/null 2>&1 || :
}
apt_leave_alone() { # packages...: nothing else leaves with them
  leaving_names=$(apt -s remove --allow-change-held-packages "$@" 2>/dev/null |
    sed -nE 's/^(Remv|Purg) ([^ ]*).*/\2/p') || return 1
  for leaving_name in $leaving_names; do
    case " $* " in *" $leaving_name "*) ;; *) return 1 ;; esac
  done
}
# apt_swap WORDS... of an installation: done as a whole, or ROLLED is set and everything is as it
# was, what ran runs
apt_swap() {
  rm -f "$R/apt.log" "$R/back.log"
  ran_before
  apt_swap_packages "$@" || {
    run_again
    return 1
  }
}
apt_swap_packages() {
  ROLLED=
  apt_list >"$R/before"
  apt-mark showhold | sort >"$R/held"
  set -- install --allow-downgrades --allow-change-held-packages "$@"
  # FIRST: names that leave before, for apt unpacks others over the files of what has no conflict
  # with them.
  # shellcheck disable=SC2086 # names
  if [ -n "${FIRST-}" ] && apt_leave_alone $FIRST; then
    if apt remove --allow-change-held-packages $FIRST >"$R/first.log" 2>&1; then
      # What is gone may be unknown to apt by now.
      words_left=$#
      while [ "$words_left" -gt 0 ]; do
        word=$1
        shift
        words_left=$((words_left - 1))
        case $word in *-) case " $FIRST " in *" ${word%-} "*) continue ;; esac ;; esac
        set -- "$@" "$word"
      done
    else
      tail -n 5 "$R/first.log"
    fi
  fi
  if apt_whole "$R/apt.log" "$@"; then
    apt_rehold
    effect installed
    apt_keep
    return 0
  fi
  case " $* " in
    *" --reinstall "*) ;;
    *)
      if [ -z "$(dpkg --audit)" ] && said=$(apt "$@" -s 2>&1) &&
        ! printf '%s\n' "$said" | grep -qE '^(Inst|Conf|Remv|Purg) '; then
        tail -n 3 "$R/apt.log"
        apt_rehold
        effect installed
        return 0
      fi
      ;;
  esac
  apt_failed
  log_end 2500 "$R/apt.log"
  if grep -qv ' installed$' "$R/before"; then
    echo 'What was there before was not whole either: nothing is put back.'
    return 1
  fi
  apt_wait || return 1
  # shellcheck disable=SC2046 # split into words on purpose
  set -- $(apt_back)
  if [ $# -gt 0 ]; then
    apt install --purge --allow-downgrades --allow-change-held-packages "$@" >"$R/back.log" 2>&1 ||
      dpkg --configure -a >>"$R/back.log" 2>&1 || :
  fi
  apt_rehold
  if apt_list | cmp -s - "$R/before"; then
    # shellcheck disable=SC2034 # read by steps
    ROLLED=1
    echo 'All packages are installed as they were before.'
  else
    echo 'Not all packages could be put back as they were:'
    log_end 700 "$R/back.log"
  fi
  return 1
}
