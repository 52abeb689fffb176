# shellcheck shell=sh
# Sets pm to apt, dnf or zypper, or to nothing. What the distribution says of itself decides: dpkg
# and apt can be had on Fedora and its kin, dnf and rpm on Debian, and there they manage nothing.
# shellcheck disable=SC2034 # pm: read by what follows
pm=
ID=
ID_LIKE=
[ ! -r /etc/os-release ] || . /etc/os-release
case " $ID $ID_LIKE " in
  *' debian '* | *' ubuntu '*) pm=apt ;;
  *' suse '* | *' sles '* | *' opensuse '*) pm=zypper ;;
  *' rhel '* | *' fedora '* | *' centos '* | *' amzn '*) pm=dnf ;;
  *)
    for p in apt-get dnf zypper; do
      command -v $p >/dev/null && {
        pm=${p%-get}
        break
      }
    done
    ;;
esac
