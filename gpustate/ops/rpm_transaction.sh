# shellcheck shell=sh
# Prints what dnf or zypper has against installing WANT and removing GO, as its solver says it;
# nothing if it has nothing, or cannot be asked. Rows of =installs are packages that it would
# install, dnf's with their repositories, of =size what it says of their sizes, of =room the free
# KiB for files and for downloads; =offers are all versions of what zypper would install, with their
# repositories. Nothing is installed. Expects T of the preview, calls coming; RELEASED are words
# whose locks do not count.
# shellcheck disable=SC2034 # rpm_open reads them
# shellcheck disable=SC2154 # pm: the preview sets it
R=$T
RPM_WAIT_S=10
PM=$pm
AGAIN=
DNF="timeout -k 2 50 ${DNF:-dnf}"
ZYPPER="timeout -k 2 50 ${ZYPPER:-zypper}"
rpm_dnf() {
  if [ -d "$R/dnf-plugins" ]; then set -- --setopt=pluginconfpath="$R/dnf-plugins" "$@"; fi
  COLUMNS=250 $DNF --assumeno --color=never --setopt=install_weak_deps=0 \
    --setopt=clean_requirements_on_remove=0 \
    --setopt='*.metadata_expire=-1' --setopt='*.module_hotfixes=1' --setopt=retries=1 \
    --setopt=timeout=15 "$@"
}
rpm_open $RELEASED
case $PM in dnf) set -- ;; *) set -- --dry-run ;; esac
rpm_go "$@" >"$T/fetch.log" 2>&1 </dev/null || :
problem='^ *Problem( [0-9]+)?: |^(No match for argument|All matches were filtered out)'
if grep -qE "$problem|^No provider of " "$T/fetch.log"; then
  tail -c 4000 "$T/fetch.log"
else
  # A node with a bundle has packages from there alone.
  coming | awk -v bundle="${REPOS:+the bundle}" '
    { print "=installs", $2, $3, bundle ? bundle : $4 }' >"$T/rows"
  cat "$T/rows"
  grep -hE '^(Total (download )?size|Installed size:|<install-summary)' "$T/fetch.log" \
    "$T/coming.xml" 2>/dev/null | sed 's/^/=size /'
  # shellcheck disable=SC2046 # names
  set -- $(cut -d ' ' -f 2 "$T/rows")
  echo '=offers'
  [ $# = 0 ] || [ "$PM" = dnf ] || [ -n "${REPOS-}" ] ||
    $ZYPPER -x -n --no-refresh search -s -t package --match-exact "$@" 2>/dev/null
fi
for d in /var/cache/zypp /var/cache/dnf; do [ ! -d "$d" ] || break; done
df -k --output=avail,target /usr "$d" 2>/dev/null | sed '1d;s/^/=room /'
:
