# shellcheck shell=sh
# Prints rows key=value of the package database, who holds its lock, and Secure Boot.
# Reads pm and inodes; calls torn, kept and apt_key, which sets APT_KEY.
# shellcheck disable=SC2154 # set before, by the distribution
case $pm in dnf|zypper)
  rpm -q rpm 2>&1 | sed -n 's/^error: /rpm=/p'
  for f in /run/zypp.pid /var/lib/dnf/rpmdb_lock.pid; do
    p=; { read -r p <"$f"; } 2>/dev/null || [ -n "$p" ] || continue
    [ -d "/proc/$p" ] && { c=; read -r c 2>/dev/null <"/proc/$p/comm"; echo "lock=${c:-?} (process $p)"; }
  done ;;
*)
[ -s /var/lib/dpkg/status ] || echo 'dpkg=/var/lib/dpkg/status is empty'
whole() {
  o=$(dpkg-query -W -f 'package=${db:Status-Abbrev}|${Package}\n' 2>&1 | grep -vE '^package=.[nci] ' | sed 's/^dpkg-query: */dpkg=/;s/^ /dpkg= /')
  [ -z "$o" ] || printf '%s\n' "$o"
  case $o in *dpkg=*) return 1 ;; esac
}
apt_key; kept dpkg-whole "$APT_KEY" whole
sound() { o=$(torn); [ -z "$o" ] || { printf '%s\n' "$o" | sed 's/^/apt=/'; return 1; }; }
command -v apt-get >/dev/null && kept apt-sound "$APT_KEY" sound
for f in /var/lib/dpkg/updates/[0-9]*; do [ -e "$f" ] && { echo journal=1; break; }; done
while read -r _ _ _ _ p n _; do
  # shellcheck disable=SC2154 # set by preflight_probe
  case "$inodes " in *" ${n##*:} "*) c=; read -r c 2>/dev/null <"/proc/$p/comm"; echo "lock=${c:-?} (process $p)" ;; esac
done 2>/dev/null </proc/locks ;;
esac
v=/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
[ -r $v ] && echo "secure_boot=$(od -An -t u1 -j4 -N1 $v)"
:
