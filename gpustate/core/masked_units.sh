# shellcheck shell=sh
# Prints the names of the units that are masked, for good or until the next boot.
for f in /etc/systemd/system/*.* /run/systemd/system/*.*; do
  [ -s "$f" ] || [ ! -e "$f" ] || [ -d "$f" ] || echo "${f##*/}"
done
:
