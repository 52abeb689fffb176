# shellcheck shell=sh
# Fetches packages with everything that they need, as apt, dnf or zypper chooses it, into a folder
# that is removed again, and writes them to standard output: for each a line "N file SIZE SHA256
# LENGTH NAME SOURCE", LENGTH bytes of metadata, and its content. They are chosen for this node as
# it would be without these packages and those that only they need. Nothing is changed on it. Reads
# N, pm, DNF, ZYPPER, NAMES (of the packages), PINS (preferences of apt) and FORMAT (query format of
# rpm); the arguments are packages.
failed() {
  printf '%s failed\n' "$N"
  tail -n 25 "$T/output"
  exit 0
}
printf '\n%s begin\n' "$N"
T=$(TMPDIR=/var/tmp mktemp -d) || exit 1
trap 'rm -rf "$T"' EXIT
trap 'exit 143' TERM HUP
mkdir -p "$T/archives/partial" "$T/root/etc/dnf" "$T/root/var/lib" "$T/root/var/log"
: >"$T/names"
give() { # file, source; its metadata is in $T/text
  name=${1##*/}
  ! grep -qxF -e "$name" "$T/names" || return 0
  echo "$name" >>"$T/names"
  printf '%s file %s %s %s %s %s\n' "$N" "$(stat -c %s "$1")" "$(sha256sum <"$1" |
    cut -c 1-64)" "$(stat -c %s "$T/text")" "$name" "$2"
  cat "$T/text" "$1"
}
# shellcheck disable=SC2154 # set before, by the distribution
case $pm in
  apt)
    eval "$(apt-config shell STATUS Dir::State::status/f PREFERENCES Dir::Etc::preferencesparts/d)"
    cp -r "$PREFERENCES" "$T/preferences.d" || mkdir "$T/preferences.d"
    [ -z "$PINS" ] || printf '%s' "$PINS" >"$T/preferences.d/gpustate-driver"
    # shellcheck disable=SC2086 # NAMES are words
    gone=$(apt-get -s -q remove --auto-remove --allow-change-held-packages \
      $NAMES 2>/dev/null </dev/null | sed -n 's/^Remv \([^ :]*\).*/\1/p' | tr '\n' ' ')
    awk -v gone=" $gone" \
      'BEGIN { RS = ""; ORS = "\n\n"; FS = "\n" } !index(gone, " " substr($1, 10) " ")' \
      "$STATUS" >"$T/status"
    for how in --print-uris --download-only; do
      apt-get install -q -y "$how" --no-install-recommends --allow-downgrades \
        --allow-change-held-packages -o Dir::State::status="$T/status" \
        -o Dir::Etc::preferencesparts="$T/preferences.d" \
        -o Dir::Cache="$T" -o Dir::Cache::archives="$T/archives" -o Debug::NoLocking=true \
        -o Acquire::Retries=2 \
        "$@" >"$T/output" 2>&1 </dev/null || failed
      [ "$how" != --print-uris ] || cp "$T/output" "$T/uris"
    done
    # apt leaves the packages of local repositories where they are.
    sed -n "s/^'file:\/*\([^']*\)' .*/\/\1/p" "$T/uris" | while read -r file; do
      cp "$file" "$T/archives/"
    done
    for file in "$T"/archives/*.deb; do
      [ -e "$file" ] || continue
      url=$(grep -m 1 -F -e " ${file##*/} " -e "/${file##*/}' " "$T/uris" | cut -d "'" -f 2)
      url=${url%/*}
      # The name has no epoch: its colon would be escaped.
      plain_name=$(printf '%s\n' "$file" | sed 's/_[0-9]*%3a\([^/]*\)$/_\1/')
      [ "$plain_name" = "$file" ] || mv "$file" "$plain_name"
      dpkg-deb -f "$plain_name" >"$T/text" && give "$plain_name" "$url"
    done
    ;;
  dnf | zypper)
    database=$(rpm --eval '%{_dbpath}')
    release=$(
      for provider in system-release distribution-release; do
        rpm -q --qf '[%{PROVIDENAME}=%{PROVIDEVERSION}\n]' --whatprovides "$provider(releasever)" |
          sed -n 's/^[a-z]*-release(releasever)=//p'
      done
      rpm -q --qf '%{VERSION}\n' --whatprovides system-release | grep '^[0-9]'
      . /etc/os-release
      echo "${VERSION_ID%%.*}"
    )
    release=$(echo "$release" | head -n 1)
    # In a copy of the database, so that keys that are taken in do not stay.
    mkdir -p "$T/root$database"
    cp -r "$database/." "$T/root$database/"
    [ ! -d /etc/dnf/modules.d ] || cp -r /etc/dnf/modules.d "$T/root/etc/dnf/"
    [ ! -d /var/lib/dnf ] || cp -r /var/lib/dnf "$T/root/var/lib/"
    DNF="${DNF:-dnf} -y --installroot=$T/root --releasever=$release --disableplugin=versionlock"
    # shellcheck disable=SC2086 # NAMES are words
    case $pm in
      dnf) $DNF --disablerepo='*' --setopt=tsflags=justdb,noscripts remove $NAMES ;;
      *)
        for name in $NAMES; do
          rpm --root "$T/root" -e --justdb --nodeps --noscripts --allmatches "$name"
        done
        ;;
    esac >/dev/null 2>&1 </dev/null
    case $pm in
      dnf)
        $DNF --setopt=install_weak_deps=0 --setopt='gpustate-*.module_hotfixes=1' \
          --setopt=retries=2 --downloadonly install "$@"
        ;;
      *)
        ${ZYPPER:-zypper} -n --gpg-auto-import-keys --installroot "$T/root" --cache-dir "$T/cache" \
          install -y --download-only \
          --no-recommends --oldpackage "$@"
        ;;
    esac >"$T/output" 2>&1 </dev/null || failed
    find "$T" -name '*.rpm' -path '*/packages/*' >"$T/found"
    while read -r file; do
      source=${file##*/packages/}
      case $source in
        */*) source=${source%%/*} ;;
        *)
          source=${file%/packages/*}
          source=${source##*/}
          source=${source%-*}
          ;;
      esac
      rpm -qp --nosignature --qf "$FORMAT" "$file" >"$T/text" && give "$file" "$source"
    done <"$T/found"
    ;;
esac
printf '%s end\n' "$N"
