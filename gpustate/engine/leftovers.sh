# shellcheck shell=sh
# Prints users=NAMES, those of the system, and for every obsolete configuration file of a package that matches OURS:
# same|PACKAGE|VERSION|MD5|PATH, or other|... where its content is another one. Only files that are not older than SINCE.
printf 'users='; while IFS=: read -r u _ i _; do [ "${i:-0}" -ge 1000 ] || printf '%s ' "$u"; done </etc/passwd; echo
if command -v dpkg-query >/dev/null; then
  dpkg-query -W -f '=${binary:Package}|${Version}\n${Conffiles}\n' 2>/dev/null | grep -E '^=| obsolete$' | while IFS= read -r l; do
    case $l in =*) p=${l#=}; continue ;; esac
    printf '%s\n' "${p%%|*}" | grep -qE "$OURS" || continue
    l=${l# }; l=${l% obsolete}; m=${l##* }; f=${l% *}
    [ -f "$f" ] && [ ! -L "$f" ] && [ "$(stat -c %W "$f")" -ge "$SINCE" ] || continue
    h=$(md5sum <"$f"); if [ "${h%% *}" = "$m" ]; then w=same; else w=other; fi
    echo "$w|$p|$m|$f"
  done
fi
:
