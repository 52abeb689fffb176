# shellcheck shell=sh
# Prints what repositories offer of the packages @NAMES@, words; of rpm's, behind @MARK@ and the
# package manager pm. dnf would hide what is of module streams that are not enabled
# (module_hotfixes); the state driver enables the one that has the driver. KEPT_OFFERS is a file
# with those that are kept for a rollback. @KEPT@ is a name for the answer, @APT_KEY@ and @RPM_KEY@
# what it depends on, read once for all fragments. =pins and =policy are foreign pins of apt's and
# all versions, if there are any. Expects kept and foreign_pins.
# shellcheck disable=SC2154 # pm: set by the caller
offered() {
  case $pm in
    dnf)
      timeout -k 2 60 ${DNF:-dnf} -C -q --disableplugin=versionlock \
        --setopt='*.skip_if_unavailable=1' --setopt='*.module_hotfixes=1' repoquery --qf \
        '%{name}|%{epoch}:%{version}-%{release}|%{repoid}|%{arch}' @NAMES@
      ;;
    # 104: none of the names is known.
    zypper)
      offered_rows=$(timeout -k 2 60 ${ZYPPER:-zypper} -x -n --no-refresh search -s -t package \
        --match-exact \
        @NAMES@)
      case $? in 0 | 104) ;; *) return 1 ;; esac
      printf '%s\n' "$offered_rows" | grep '<solvable ' || :
      ;;
    *)
      apt-cache madison @NAMES@
      [ ! -e "${KEPT_OFFERS-}" ] || cat "$KEPT_OFFERS"
      pins_of @NAMES@
      ;;
  esac
} 2>/dev/null
case $pm in
  dnf | zypper)
    echo @MARK@$pm
    kept offers-@KEPT@ "@RPM_KEY@" offered
    ;;
  *) kept offers-@KEPT@ "@APT_KEY@" offered ;;
esac
:
