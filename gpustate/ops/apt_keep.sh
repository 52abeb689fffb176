# shellcheck shell=sh
# Defines apt_keep, which keeps the packages that an installation has replaced in $G-packages, for a rollback, and describes them
# there as a repository does. Nothing fails with it. Reads R/before, the list of packages before, ours, and KEEP_LIMIT and KEEP_ROOM, in MiB;
# calls apt_list.
apt_keep() { ( # what is there in apt's own cache or a repository, KEEP_LIMIT at most, the oldest goes first
  k=$G-packages; set +e; exec 2>/dev/null
  apt_list >"$R/now"
  # shellcheck disable=SC2154 # ours: set by the loader
  # shellcheck disable=SC2046 # names of packages, split on purpose
  set -- $(comm -23 "$R/before" "$R/now" | while read -r p v w; do
    [ "$w" != installed ] || ! printf '%s\n' "${p%:*}" | grep -qE "$ours" || printf '%s=%s\n' "$p" "$v"
  done)
  [ $# -gt 0 ] || exit 0
  mkdir -p "$k" && chmod 0755 "$k" && cd "$k" && rm -rf new get || exit 0
  for p do
    n=${p%%=*}; v=${p#*=}; f=${n%:*}_$(printf %s "$v" | sed 's/:/%3a/g')_; a='*'; case $n in *:*) a=${n#*:} ;; esac
    set -- "$f"$a.deb; if [ -e "$1" ]; then touch "$1"; continue; fi
    [ "$(df -m --output=avail "$k" | tail -n 1)" -gt "$KEEP_ROOM" ] || { echo "not kept for a rollback: $p: less than $KEEP_ROOM MiB are free"; continue; }
    set -- /var/cache/apt/archives/"$f"$a.deb
    if [ -e "$1" ]; then cp "$1" new; else rm -rf get; mkdir get && ( cd get && timeout 900 apt-get -q download "$p" ) >/dev/null; set -- get/*.deb; mv "$1" new; fi
    s=$(sha256sum <new); s=${s%% *}
    # The repository says what it has to be, as long as it has it.
    w=$(apt-cache show "$p" | sed -n 's/^SHA256: //p'); d=$(dpkg-deb -f new Package Version 2>/dev/null | tr '\n' ' ')
    [ "$d" = "Package: ${n%:*} Version: $v " ] && { [ -z "$w" ] || printf '%s\n' "$w" | grep -qxF "$s"; } || { echo "not kept for a rollback: $p is not to be had any more"; rm -f new; continue; }
    { dpkg-deb -f new; printf 'Filename: %s\nSize: %s\nSHA256: %s\n\n' "${1##*/}" "$(stat -c %s new)" "$s"; } >"${1##*/}.index"
    chmod 0644 new "${1##*/}.index"; sync new "${1##*/}.index"; mv -f new "${1##*/}"
  done
  rm -rf get
  while [ "$(du -sm . | cut -f 1)" -gt "$KEEP_LIMIT" ]; do o=$(ls -1tr ./*.deb | head -n 1); [ -n "$o" ] || break; rm -f "$o" "$o.index"; done
  : >Packages.new; : >offers.new; o=$(dpkg --print-architecture)
  for i in ./*.index; do
    [ -e "$i" ] && cat "$i" >>Packages.new || continue
    a=$(sed -n 's/^Architecture: //p' "$i"); case $a in "$o"|all) a= ;; *) a=:$a ;; esac
    printf '%s | %s | kept\n' "$(sed -n 's/^Package: //p' "$i")$a" "$(sed -n 's/^Version: //p' "$i")" >>offers.new
  done
  printf 'APT::Sources::With { "%s/Packages"; };\n' "$k" >apt.conf.new
  chmod 0644 ./*.new; sync ./*.new; for i in Packages offers apt.conf; do mv -f "$i.new" "$i"; done
  sync .
) || :; }
