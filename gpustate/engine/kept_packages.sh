# shellcheck shell=sh
# Prints the packages that are kept for a rollback, then =others, and those of their names that
# repositories offer or that are installed.
if [ -e "$G-packages/offers" ]; then
  cat "$G-packages/offers"
  echo '=others'
  # shellcheck disable=SC2046 # names of packages, split on purpose
  set -- $(cut -d ' ' -f 1 "$G-packages/offers" | sort -u)
  apt-cache madison "$@" 2>/dev/null
  dpkg-query -W -f '${db:Status-Status} ${binary:Package} | ${Version} | here\n' "$@" 2>/dev/null |
    sed -n "s/:$(dpkg --print-architecture) / /; s/^installed //p"
fi
:
