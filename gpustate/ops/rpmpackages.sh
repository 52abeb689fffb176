# shellcheck shell=sh
# Defines what steps do with rpm, dnf and zypper. Expects library.sh, filelocks.sh and running.sh.
rpm_lock_holder() { # who is at work with rpm, dnf or zypper, as NAME (process N)
  for pid_file in /run/zypp.pid /var/cache/dnf/metadata_lock.pid /var/cache/dnf/download_lock.pid \
    /var/lib/dnf/rpmdb_lock.pid /run/yum.pid; do
    holder_pid=
    { read -r holder_pid <"$pid_file"; } 2>/dev/null || [ -n "$holder_pid" ] || continue
    case $holder_pid in '' | *[!0-9]*) continue ;; esac
    [ -d "/proc/$holder_pid" ] || continue # left behind
    named_process "$holder_pid"
    return 0
  done
  file_lock_holder WRITE /var/lib/rpm/.rpm.lock /usr/lib/sysimage/rpm/.rpm.lock
}
rpm_wait() { # until nobody else is at work with packages
  : "${RPM_WAIT_S:=300}"
  patience_left=$RPM_WAIT_S
  while lock_owner=$(rpm_lock_holder); do
    [ "$patience_left" -gt 0 ] || {
      echo "error: the package lock is held by $lock_owner, and was not let go for $RPM_WAIT_S s"
      return 1
    }
    patience_left=$((patience_left - 1))
    sleep 1
  done
}
rpm_dnf() { # no questions, nothing that is not asked for, nothing removed because it seems unused
  if [ -d "$R/dnf-plugins" ]; then set -- --setopt=pluginconfpath="$R/dnf-plugins" "$@"; fi
  COLUMNS=250 ${DNF:-dnf} -y --color=never --setopt=install_weak_deps=0 \
    --setopt=clean_requirements_on_remove=0 \
    --setopt='*.metadata_expire=-1' --setopt=retries=3 --setopt=keepcache=1 "$@"
}
rpm_zypper() {
  if [ -e "$R/zypp.conf" ]; then export ZYPP_CONF="$R/zypp.conf"; fi
  ZYPP_LOCK_TIMEOUT=${RPM_WAIT_S:-300} ${ZYPPER:-zypper} -n --no-color --no-refresh "$@"
}
rpm_zypper_own() ( # with the node's own locks
  rm -f "$R/zypp.conf"
  rpm_zypper "$@"
)
rpm_open() { # names...: work under a copy of the locks without those of these packages
  OPENED="$*"
  case $PM in
    dnf)
      rm -rf "$R/dnf-plugins"
      [ -d /etc/dnf/plugins ] || return 0
      cp -r /etc/dnf/plugins "$R/dnf-plugins"
      locklist=$(rpm_locklist)
      [ -z "$locklist" ] || {
        rpm_without_locks "$@" <"$locklist" >"$R/dnf-plugins/locklist"
        sed -i "s|^ *locklist *=.*|locklist = $R/dnf-plugins/locklist|" \
          "$R/dnf-plugins/versionlock.conf"
      }
      ;;
    *)
      {
        [ -e /etc/zypp/zypp.conf ] && grep -v '^ *locksfile.path' /etc/zypp/zypp.conf ||
          echo '[main]'
      } >"$R/zypp.conf"
      sed -i "s|^\[main\].*|&\nlocksfile.path = $R/locks|" "$R/zypp.conf"
      : >"$R/locks"
      [ ! -e /etc/zypp/locks ] ||
        awk -v names="$*" 'BEGIN {
          RS = ""; ORS = "\n\n"
          n = split(names, name, " "); for (i = 1; i <= n; i++) ours[name[i]] = 1
        }
        {
          keep = 1
          n = split($0, row, "\n")
          for (i = 1; i <= n; i++)
            if (sub(/^solvable_name:[ \t]*/, "", row[i]) && (row[i] in ours)) keep = 0
        }
        keep' /etc/zypp/locks >"$R/locks"
      ;;
  esac
}
rpm_locklist() { # where versionlock keeps its list; nothing where the plugin is not there
  [ -e /etc/dnf/plugins/versionlock.conf ] || return 0
  locklist=$(sed -n 's/^ *locklist *= *//p' /etc/dnf/plugins/versionlock.conf)
  locklist=${locklist:-/etc/dnf/plugins/versionlock.list}
  [ -e "$locklist" ] || : >"$locklist"
  echo "$locklist"
}
# rpm_without_locks names...: a lock list without the entries that hold these packages at a version
rpm_without_locks() {
  awk -v names="$*" 'BEGIN {
      n = split(names, word, " ")
      for (i = 1; i <= n; i++) { sub(/\.i[356]86$/, "", word[i]); ours[word[i]] = 1 }
    }
    /^# gpustate/ { next }
    { name = $0 }
    name !~ /^[!#]/ && sub(/-[^-]*-[^-]*$/, "", name) && (name in ours) { next }
    { print }'
}
rpm_can_hold() { # dnf's plugin is installed where it is missing
  [ "$PM" != dnf ] || [ -n "$(rpm_locklist)" ] || {
    rpm_wait && rpm_dnf install python3-dnf-plugin-versionlock && [ -n "$(rpm_locklist)" ] &&
      rpm_open ${OPENED-}
  } ||
    {
      echo "error: dnf cannot hold packages here: install python3-dnf-plugin-versionlock," \
        "or set hold: false"
      return 1
    }
}
rpm_hold() { # hold|release names...: what is installed of them; others lose their lock
  how=$1
  shift
  rpm_wait || return 1
  case $PM in
    dnf)
      locklist=$(rpm_locklist)
      if [ -z "$locklist" ]; then
        [ "$how" = release ]
        return
      fi
      {
        rpm_without_locks "$@" <"$locklist"
        [ "$how" = release ] || for package in "$@"; do
          rpm -q --qf '%{NAME}-%|EPOCH?{%{EPOCH}}:{0}|:%{VERSION}-%{RELEASE}.*\n' \
            "$package" 2>/dev/null |
            grep '\.\*$' | sed "1s/^/# gpustate\n/" || :
        done
      } >"$R/locklist"
      cmp -s "$R/locklist" "$locklist" || {
        cp -a "$locklist" "$locklist.gpustate" && cat "$R/locklist" >"$locklist.gpustate" &&
          sync "$locklist.gpustate" &&
          mv -f "$locklist.gpustate" "$locklist" && sync "${locklist%/*}"
      }
      ;;
    *)
      for package in "$@"; do
        rpm -q "$package" >/dev/null 2>&1 || [ "$how" = release ] || continue
        if awk -v p="$package" '$1 == "solvable_name:" && $2 == p { f = 1 } END { exit !f }' \
          /etc/zypp/locks 2>/dev/null; then
          # zypper leaves an empty file.
          [ "$how" = hold ] || {
            rpm_zypper_own removelock "$package" && {
              [ -s /etc/zypp/locks ] || rm -f /etc/zypp/locks
            }
          }
        else
          [ "$how" = release ] || rpm_zypper_own addlock "$package"
        fi
      done
      ;;
  esac
}
rpm_go() { # options of an installation: WANT are words to install, GO names that leave with them
  case $PM in
    dnf)
      if [ -n "$GO" ]; then
        {
          for package in $GO; do echo "remove $package"; done
          echo "${AGAIN:+re}install $WANT"
          echo run
        } >"$R/dnf.shell"
        rpm_dnf "$@" shell "$R/dnf.shell"
      else
        rpm_dnf "$@" ${AGAIN:+re}install $WANT
      fi
      ;;
    *)
      zypper_leaving=
      for package in $GO; do zypper_leaving="$zypper_leaving !$package"; done
      rpm_zypper ${XML-} install --oldpackage --no-recommends --auto-agree-with-licenses \
        ${AGAIN:+--force} "$@" -- $WANT $zypper_leaving
      ;;
  esac
}
rpm_reread() { # the repodata of our own repositories
  for repo_file in /etc/yum.repos.d/gpustate-*.repo /etc/zypp/repos.d/gpustate-*.repo; do
    [ -e "$repo_file" ] || continue
    repository=${repo_file##*/}
    repository=${repository%.repo}
    case $PM in
      dnf)
        rpm_dnf --setopt="$repository.metadata_expire=0" --repo="$repository" makecache || return 1
        ;;
      *) ${ZYPPER:-zypper} -n refresh "$repository" || return 1 ;;
    esac
  done
}
rpm_try() { # the download; dnf's shell ends with 0 whatever came of it
  rpm_go "$@" >"$R/fetch.log" 2>&1 && {
    [ "$PM$GO" = "$PM" ] || [ "$PM" != dnf ] || grep -qE '^(Complete!|Nothing to do)' "$R/fetch.log"
  }
}
rpm_fetch() { # all of it is here, and checked, before any of it is installed
  rpm_wait || return 1
  case $PM in dnf) set -- --downloadonly ;; *) set -- --download-only ;; esac
  if ! rpm_try "$@"; then
    # The repository may have moved on since its repodata was read.
    : >"$R/reread.log"
    if ! grep -qE '404|[Ff]ailed to download|not found|No more mirrors|Download .*fail' \
      "$R/fetch.log" || ! rpm_reread >"$R/reread.log" 2>&1 ||
      ! rpm_try "$@"; then
      log_end 1000 "$R/reread.log"
      log_end 2500 "$R/fetch.log"
      return 1
    fi
  fi
  rpm_gone
}
rpm_along() { # as along of apt: rpm_fetch or rpm_swap
  if [ -s "$R/along" ] && [ -z "$AGAIN" ]; then
    own_words=$WANT own_names=$NAMES own_opened=$OPENED
    WANT="$WANT $(cut -d ' ' -f 2 "$R/along" | tr '\n' ' ')"
    NAMES="$NAMES $(cut -d ' ' -f 1 "$R/along" | tr '\n' ' ')"
    # shellcheck disable=SC2046 # names
    rpm_open $OPENED $(cut -d = -f 1 "$R/along")
    took_along "$@" && return 0
    [ -n "${ROLLED-1}" ] || return 1
    WANT=$own_words NAMES=$own_names
    rpm_open $own_opened
  fi
  "$@"
}
rpm_leaving() { # what a transaction would remove, by name
  case $PM in
    dnf)
      awk '/^(Removing|Obsolet)[a-z ]*:$/ { on = 1; next } /^[^ ]/ { on = 0 }
        on && /^ [^ ]/ { print $1 }
        /^ +replacing / { sub(/\.[^.]*$/, "", $2); print $2 }' "$R/fetch.log"
      ;;
    *)
      XML=-x rpm_go --dry-run 2>/dev/null |
        sed -n '/<to-remove>/,/<\/to-remove>/s/.*<solvable .*name="\([^"]*\)".*/\1/p'
      ;;
  esac | sort -u
}
rpm_gone() { # what is not named may not leave
  gone=
  for package in $(rpm_leaving); do
    case " $GO " in *" $package "* | *" $package."*) ;; *) gone="$gone $package" ;; esac
  done
  [ -z "$gone" ] || {
    echo "error: this would also remove$gone, which is foreign; remove it yourself first," \
      "or choose another version"
    return 1
  }
}
rpm_list() {
  rpm -qa --qf '%{NAME} %|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE} %{ARCH}\n' |
    grep -v '^gpg-pubkey ' | sort
}
rpm_word() { # name version arch, as a word of an installation
  case $PM in dnf) echo "$1-$2.$3" ;; *) echo "$1=$2" ;; esac
}
rpm_there() { # WANT is installed, and GO is not
  for package in $GO; do
    ! rpm -q "$package" >/dev/null 2>&1 || {
      echo "$package is still installed"
      return 1
    }
  done
  for package in $NAMES; do
    name=${package%%=*}
    version=${package#"$name"}
    version=${version#=}
    installed=$(rpm -q --qf ' %|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE} ' "$name" 2>/dev/null) || {
      echo "$name is not installed"
      return 1
    }
    case "$installed" in
      *" $version "* | *" 0:$version "*) ;;
      *)
        [ -z "$version" ] || {
          echo "$name is installed in $installed, not in $version"
          return 1
        }
        ;;
    esac
  done
}
rpm_back() { # install what was there, and remove what came, in one transaction
  rpm_list >"$R/after"
  NAMES=
  AGAIN=
  WANT=$(comm -23 "$R/before" "$R/after" | while read -r package version arch; do
    rpm_word "$package" "$version" "$arch"
  done |
    tr '\n' ' ')
  cut -d ' ' -f 1 "$R/before" | sort -u >"$R/before.names"
  GO=$(cut -d ' ' -f 1 "$R/after" | sort -u | comm -13 "$R/before.names" - | tr '\n' ' ')
  [ -n "$WANT$GO" ] || return 0
  if [ -z "$WANT" ]; then rpm -e $GO; else rpm_go; fi
}
rpm_swap() { # done as a whole, or ROLLED is set and everything is as it was, and what ran runs
  rm -f "$R/after"
  ran_before
  rpm_swap_packages || {
    run_again
    return 1
  }
}
rpm_swap_packages() {
  ROLLED=
  rpm_list >"$R/before"
  case $PM in dnf) set -- -C ;; *) set -- ;; esac
  if
    rpm_go "$@" >"$R/rpm.log" 2>&1
    go_status=$?
    said=$(rpm_there)
  then
    # A hook or a script behind the installation may fail: everything is installed anyway.
    [ $go_status = 0 ] || tail -n 3 "$R/rpm.log"
    effect installed
    return 0
  fi
  log_end 2500 "$R/rpm.log"
  echo "error: $said"
  rpm_wait || return 1
  rpm_back >"$R/back.log" 2>&1 || :
  if rpm_list | cmp -s - "$R/before"; then
    # shellcheck disable=SC2034 # read by steps
    ROLLED=1
    echo 'All packages are installed as they were before.'
  else
    echo 'Not all packages could be put back as they were:'
    log_end 700 "$R/back.log"
  fi
  return 1
}
rpm_remove() { # names...: those that are there, and nothing with them
  # shellcheck disable=SC2046 # split into words on purpose
  set -- $(for package in "$@"; do rpm -q "$package" >/dev/null 2>&1 && echo "$package"; done)
  rpm_wait || return 1
  [ $# -gt 0 ] || {
    effect same
    return 0
  }
  rpm -e --allmatches --test "$@" >"$R/remove.log" 2>&1 || {
    cat "$R/remove.log"
    echo 'error: what is to be removed is needed by something else; remove that first'
    return 1
  }
  rpm_open "$@"
  case $PM in
    dnf) no_links_left rpm_dnf -C remove "$@" ;;
    *) no_links_left rpm_zypper remove --no-clean-deps "$@" ;;
  esac
  effect removed
}
