# shellcheck shell=sh
# Removes obsolete configuration files, given as PACKAGE|VERSION|MD5|PATH, and has dpkg forget them: it does so when it unpacks
# a package again whose file is gone, and would keep a file away that it remembers and that is missing. Expects library.sh
# and packages.sh.
names=; paths=; units=
for row do
  p=${row%%|*}; l=${row#*|}; v=${l%%|*}; l=${l#*|}; m=${l%%|*}; f=${l#*|}
  h=$(md5sum <"$f" 2>/dev/null) && [ "${h%% *}" = "$m" ] || continue
  case " $names " in *" $p=$v "*) ;; *) names="$names $p=$v" ;; esac
  paths="$paths $f"
  case ${f#/etc/systemd/system/} in */*) ;; *.path|*.timer|*.socket) units="${f##*/} $units" ;; *.service) units="$units ${f##*/}" ;; esac
done
[ -n "$paths" ] || { effect same; exit 0; }
# shellcheck disable=SC2086 # split into words on purpose
apt_ready && apt_fetch --reinstall $names || exit 1
for u in $units; do
  systemctl --no-reload disable "$u" 2>/dev/null || :
  [ ! -d /run/systemd/system ] || systemctl stop "$u" || :
  ! command -v deb-systemd-helper >/dev/null || { deb-systemd-helper purge "$u" && deb-systemd-helper unmask "$u"; } >/dev/null 2>&1 || :
done
for f in $paths; do rm -f "$f" && sync "${f%/*}"; done
effect removed
# shellcheck disable=SC2086 # split into words on purpose
apt_swap --reinstall $names || exit 1
for f in $paths; do f=${f%/*}; packaged "$f" || rmdir "$f" 2>/dev/null || :; done
[ -n "$units" ] || exit 0
systemd_reload
# A unit that had failed would be listed as failed for ever, with no file behind it.
for u in $units; do systemctl reset-failed "$u" 2>/dev/null || :; done
