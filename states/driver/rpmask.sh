# shellcheck shell=sh
# Prints what dnf or zypper knows of the driver, and ends; prints nothing on a node with apt.
# Nothing is downloaded. Reads pm; MARK, FORMAT (how rpm prints a package), INSTALLED, DNF_NAMES and
# ZYPPER_NAMES (names and patterns), MODULE and its file STREAM, KEPT_AS (cache name of this query);
# calls kept, rpm_key, which sets RPM_KEY, and names_of_flavour, which adds to names.
case $pm in dnf | zypper) ;; *) pm= ;; esac
if [ -n "$pm" ]; then
  set -f
  installed_rows=$(rpm -qa --qf "$FORMAT" $INSTALLED 2>/dev/null)
  set +f
  echo "$MARK$pm"
  echo "$installed_rows"
  [ "$pm" != dnf ] || [ -e /etc/dnf/plugins/versionlock.conf ] || echo '=without versionlock'
  echo '=locks'
  case $pm in
    dnf) cat /etc/dnf/plugins/versionlock.list ;;
    *) cat /etc/zypp/locks ;;
  esac 2>/dev/null
  echo
  echo '=stream'
  sed -n 's/^stream *= *//p' "$STREAM" 2>/dev/null
  echo '=offers'
  installed_names=$(echo "$installed_rows" | sed -n 's/|.*//p' |
    sed 'p; s/-G06/-G0&/; s/-G07/-G06/; s/-G0-G06/-G07/' |
    sort -u | tr '\n' ' ')
  running=/boot/vmlinuz-$(uname -r)
  [ -z "${GPUSTATE_IMAGE-}" ] || running=
  flavours=
  for kernel in /boot/vmlinuz-* $running; do
    [ "${kernel%\*}" = "$kernel" ] && flavours="$flavours ${kernel##*-}"
  done
  offered() {
    status=0
    case $pm in
      dnf)
        query="timeout -k 2 60 ${DNF:-dnf} -C -q --disableplugin=versionlock"
        query="$query --setopt=*.skip_if_unavailable=1"
        set -f
        $query --setopt='*.module_hotfixes=1' repoquery --qf \
          '%{name}|%{epoch}:%{version}-%{release}|%{repoid}|%{arch}' $DNF_NAMES $installed_names ||
          status=1
        $query module list "$MODULE" |
          awk -v module="$MODULE" '$1 == module { print "=stream " $2 }'
        ;;
      *)
        names=$ZYPPER_NAMES
        for flavour in $(echo $flavours | tr ' ' '\n' | sort -u); do
          names_of_flavour "$flavour"
        done
        rows=$(timeout -k 2 60 ${ZYPPER:-zypper} -x -n --no-refresh search -s -t package \
          --match-exact $names $installed_names)
        # 104: none of the names is known.
        case $? in 0 | 104) ;; *) status=1 ;; esac
        printf '%s\n' "$rows" | grep '<solvable '
        ;;
    esac
    return $status
  } 2>/dev/null
  rpm_key
  kept "driver-$KEPT_AS" "$installed_names $flavours $RPM_KEY" offered || :
  exit 0
fi
