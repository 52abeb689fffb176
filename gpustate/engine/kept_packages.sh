# shellcheck shell=sh
# Prints the packages that are kept for a rollback, then =offered, and those of their names that repositories offer.
if [ -e "$G-packages/offers" ]; then
  cat "$G-packages/offers"; echo '=offered'
  # shellcheck disable=SC2046 # names of packages, split on purpose
  apt-cache madison $(cut -d ' ' -f 1 "$G-packages/offers" | sort -u) 2>/dev/null
fi
:
