# shellcheck shell=sh
# Copies the settings of the package manager below T, and makes it use the copy. Reads pm, and PIN,
# the file with the driver's own pin, which is left out; ends if there is no room. Defines
# preview_failed, which prints the keys that were fetched, a reason, and ends.
preview_failed() {
  cat "${T:-/nowhere}"/*.asc 2>/dev/null
  echo
  echo "=preview failed $*"
  exit 0
}
T=$(mktemp -d) || preview_failed "no room for a copy of the package lists"
trap 'rm -rf "$T"' EXIT
trap 'exit 143' TERM
mkdir "$T/new" "$T/cache" "$T/repos"
# shellcheck disable=SC2154 # set before, by the distribution
case $pm in
  dnf)
    cp "${REPOS:-/etc/yum.repos.d}"/*.repo "$T/repos/" 2>/dev/null
    for f in /var/cache/dnf/*; do [ ! -e "$f" ] || ln -s "$f" "$T/cache/"; done
    DNF="${DNF:-dnf} --setopt=reposdir=$T/repos --setopt=cachedir=$T/cache --setopt=logdir=$T"
    ;;
  zypper)
    cp "${REPOS:-/etc/zypp/repos.d}"/*.repo "$T/repos/" 2>/dev/null
    mkdir "$T/cache/raw"
    for f in /var/cache/zypp/raw/*; do [ ! -e "$f" ] || ln -s "$f" "$T/cache/raw/"; done
    cp -r /var/cache/zypp/solv "$T/cache/" 2>/dev/null
    ZYPPER="${ZYPPER:-zypper} --reposd-dir $T/repos --cache-dir $T/cache"
    ;;
  *)
    cp -r /etc/apt "$T/apt"
    mkdir -p "$T/lists/partial" "$T/cache/archives/partial" "$T/apt/preferences.d" \
      "$T/apt/sources.list.d" "$T/apt/apt.conf.d"
    rm -f "$T/apt/preferences.d/${PIN##*/}"
    for f in $(grep -rl Invoke "$T/apt/apt.conf.d" "$T/apt/apt.conf" 2>/dev/null); do
      rm -f "$f"
    done
    for f in /var/lib/apt/lists/*_*; do [ ! -f "$f" ] || ln -s "$f" "$T/lists/"; done
    printf '%s\n' "Dir::Etc \"$T/apt\";" "Dir::State::lists \"$T/lists\";" \
      "Dir::Cache \"$T/cache\";" \
      'APT::Sandbox::User "root";' 'Acquire::Retries "0";' 'Acquire::http::Timeout "15";' \
      'Acquire::https::Timeout "15";' >"$T/conf"
    [ -z "${KEPT_OFFERS-}" ] || cat "$G-packages/apt.conf" >>"$T/conf"
    APT_CONFIG=$T/conf
    export APT_CONFIG
    ;;
esac
