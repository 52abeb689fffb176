# shellcheck shell=sh
# Defines unmet: prints what installed packages need and do not have, with its version where only
# one will do.
unmet() {
  apt-get check -q -o Debug::NoLocking=1 2>/dev/null |
    sed -nE -e 's/^.*Depends: ([^ :]+)(:[^ ]+)? \(= ([^)]+)\) but it is not .*/\1 \3/p' \
      -e 't' -e 's/^.*Depends: ([^ :]+).* but it is not .*/\1/p' | sort -u
}
