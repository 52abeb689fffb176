# shellcheck shell=sh
# Prints the installed packages that match @NAMES@, patterns, in words, as dpkg or rpm does in
# @FORMAT@ or @RPM_FORMAT@; of rpm's, behind @MARK@ and the package manager pm, and then behind
# @LOCKS@ what holds them. @KEPT@ is a name for dpkg's answer, @APT_KEY@ what it depends on. No
# package manager is started on a node with rpm: what holds packages there are files. Expects kept.
# shellcheck disable=SC2154 # pm: set by the caller
asked() { # dpkg: of the node's own architecture. 1: a pattern that matches nothing, an answer too
  dpkg-query -W -f '@FORMAT@' dpkg @NAMES@ 2>/dev/null
  [ $? -le 1 ]
}
case $pm in
  dnf | zypper)
    echo @MARK@$pm
    rpm -qa --qf '@RPM_FORMAT@' @NAMES@ 2>/dev/null
    echo @LOCKS@
    case $pm in
      dnf) set -- /etc/dnf/plugins/versionlock.list ;;
      *) set -- /etc/zypp/locks ;;
    esac
    [ ! -f $1 ] || cat $1
    ;;
  *) kept packages-@KEPT@ "@APT_KEY@" asked || : ;;
esac
