# shellcheck shell=sh
# Prints rows key=value of the package database, who holds its lock, and Secure Boot.
# Reads pm and inodes; calls torn, kept and apt_key, which sets APT_KEY.
# shellcheck disable=SC2154 # set before, by the distribution
case $pm in
  dnf | zypper)
    rpm -q rpm 2>&1 | sed -n 's/^error: /rpm=/p'
    for f in /run/zypp.pid /var/lib/dnf/rpmdb_lock.pid; do
      pid=
      { read -r pid <"$f"; } 2>/dev/null || [ -n "$pid" ] || continue
      [ -d "/proc/$pid" ] && {
        command=
        read -r command 2>/dev/null <"/proc/$pid/comm"
        echo "lock=${command:-?} (process $pid)"
      }
    done
    ;;
  *)
    [ -s /var/lib/dpkg/status ] || echo 'dpkg=/var/lib/dpkg/status is empty'
    whole() {
      rows=$(dpkg-query -W -f 'package=${db:Status-Abbrev}|${Package}\n' 2>&1 |
        grep -vE '^package=.[nci] ' | sed 's/^dpkg-query: */dpkg=/;s/^ /dpkg= /')
      [ -z "$rows" ] || printf '%s\n' "$rows"
      case $rows in *dpkg=*) return 1 ;; esac
    }
    apt_key
    kept dpkg-whole "$APT_KEY" whole
    sound() {
      rows=$(torn)
      [ -z "$rows" ] || {
        printf '%s\n' "$rows" | sed 's/^/apt=/'
        return 1
      }
    }
    command -v apt-get >/dev/null && kept apt-sound "$APT_KEY" sound
    for f in /var/lib/dpkg/updates/[0-9]*; do
      [ -e "$f" ] && {
        echo journal=1
        break
      }
    done
    while read -r _ _ _ _ pid lock_inode _; do
      # shellcheck disable=SC2154 # set by preflight_probe
      case "$inodes " in *" ${lock_inode##*:} "*)
        command=
        read -r command 2>/dev/null <"/proc/$pid/comm"
        echo "lock=${command:-?} (process $pid)"
        ;;
      esac
    done 2>/dev/null </proc/locks
    ;;
esac
variable=/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
[ -r $variable ] && echo "secure_boot=$(od -An -t u1 -j4 -N1 $variable)"
:
