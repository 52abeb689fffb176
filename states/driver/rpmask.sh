# shellcheck shell=sh
# Prints what dnf or zypper knows of the driver, and ends; prints nothing on a node with apt. Nothing is downloaded.
# Reads pm; MARK, FORMAT (how rpm prints a package), INSTALLED, DNF_NAMES and ZYPPER_NAMES (names and patterns), MODULE and its
# file STREAM, KEPT_AS (cache name of this query); calls kept, rpm_key, which sets RPM_KEY, and names_of_flavour, which adds to n.
case $pm in dnf|zypper) ;; *) pm= ;; esac
if [ -n "$pm" ]; then
  set -f; m=$(rpm -qa --qf "$FORMAT" $INSTALLED 2>/dev/null); set +f
  echo "$MARK$pm"; echo "$m"; [ "$pm" != dnf ] || [ -e /etc/dnf/plugins/versionlock.conf ] || echo '=without versionlock'; echo '=locks'
  case $pm in dnf) cat /etc/dnf/plugins/versionlock.list ;; *) cat /etc/zypp/locks ;; esac 2>/dev/null
  echo; echo '=stream'; sed -n 's/^stream *= *//p' "$STREAM" 2>/dev/null; echo '=offers'
  i=$(echo "$m" | sed -n 's/|.*//p' | sed 'p; s/-G06/-G0&/; s/-G07/-G06/; s/-G0-G06/-G07/' | sort -u | tr '\n' ' '); r=/boot/vmlinuz-$(uname -r)
  [ -z "${GPUSTATE_IMAGE-}" ] || r=
  f=; for k in /boot/vmlinuz-* $r; do [ "${k%\*}" = "$k" ] && f="$f ${k##*-}"; done
  offered() { s=0; case $pm in
    dnf) q="timeout -k 2 60 ${DNF:-dnf} -C -q --disableplugin=versionlock --setopt=*.skip_if_unavailable=1"; set -f
      $q --setopt='*.module_hotfixes=1' repoquery --qf '%{name}|%{epoch}:%{version}-%{release}|%{repoid}|%{arch}' $DNF_NAMES $i || s=1
      $q module list "$MODULE" | awk -v module="$MODULE" '$1 == module { print "=stream " $2 }' ;;
    *) n=$ZYPPER_NAMES; for f in $(echo $f | tr ' ' '\n' | sort -u); do names_of_flavour "$f"; done
      o=$(timeout -k 2 60 ${ZYPPER:-zypper} -x -n --no-refresh search -s -t package --match-exact $n $i)
      # 104: none of the names is known.
      case $? in 0|104) ;; *) s=1 ;; esac; printf '%s\n' "$o" | grep '<solvable ' ;; esac; return $s; } 2>/dev/null
  rpm_key; kept "driver-$KEPT_AS" "$i $f $RPM_KEY" offered || :
  exit 0
fi
