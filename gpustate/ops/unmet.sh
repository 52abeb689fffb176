# shellcheck shell=sh
# Defines apt_check, which prints what apt finds wrong, and unmet: what installed packages need and
# do not have, with its version where only one will do. A probe redefines checked, to ask once.
apt_check() { apt-get check -q -o Debug::NoLocking=1 2>&1; }
checked() { apt_check; }
unmet() {
  checked |
    sed -nE -e 's/^.*Depends: ([^ :]+)(:[^ ]+)? \(= ([^)]+)\) but it is not .*/\1 \3/p' \
      -e 't' -e 's/^.*Depends: ([^ :]+).* but it is not .*/\1/p' | sort -u
}
