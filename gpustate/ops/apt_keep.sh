# shellcheck shell=sh
# Defines apt_keep, which keeps the packages that an installation has replaced in $G-packages, for a
# rollback, and describes them there as a repository does. Nothing fails with it. Reads R/before,
# the list of packages before, ours, and KEEP_LIMIT and KEEP_ROOM, in MiB; calls apt_list.
apt_keep() {
  ( # what is there in apt's own cache or a repository, KEEP_LIMIT at most, the oldest goes first
    kept_folder=$G-packages
    set +e
    exec 2>/dev/null
    apt_list >"$R/now"
    # shellcheck disable=SC2154 # ours: set by the loader
    # shellcheck disable=SC2046 # names of packages, split on purpose
    set -- $(comm -23 "$R/before" "$R/now" | while read -r package version state; do
      [ "$state" != installed ] || ! printf '%s\n' "${package%:*}" | grep -qE "$ours" ||
        printf '%s=%s\n' "$package" "$version"
    done)
    [ $# -gt 0 ] || exit 0
    mkdir -p "$kept_folder" && chmod 0755 "$kept_folder" && cd "$kept_folder" && rm -rf new get ||
      exit 0
    for package; do
      name=${package%%=*}
      version=${package#*=}
      file_name=${name%:*}_$(printf %s "$version" | sed 's/:/%3a/g')_
      arch='*'
      case $name in *:*) arch=${name#*:} ;; esac
      set -- "$file_name"$arch.deb
      if [ -e "$1" ]; then
        touch "$1"
        continue
      fi
      [ "$(df -m --output=avail "$kept_folder" | tail -n 1)" -gt "$KEEP_ROOM" ] || {
        echo "not kept for a rollback: $package: less than $KEEP_ROOM MiB are free"
        continue
      }
      set -- /var/cache/apt/archives/"$file_name"$arch.deb
      if [ -e "$1" ]; then
        cp "$1" new
      else
        rm -rf get
        mkdir get && (cd get && timeout 900 apt-get -q download "$package") >/dev/null
        set -- get/*.deb
        mv "$1" new
      fi
      digest=$(sha256sum <new)
      digest=${digest%% *}
      # The repository says what it has to be, as long as it has it.
      known_digest=$(apt-cache show "$package" | sed -n 's/^SHA256: //p')
      description=$(dpkg-deb -f new Package Version 2>/dev/null | tr '\n' ' ')
      [ "$description" = "Package: ${name%:*} Version: $version " ] &&
        { [ -z "$known_digest" ] || printf '%s\n' "$known_digest" | grep -qxF "$digest"; } || {
        echo "not kept for a rollback: $package is not to be had any more"
        rm -f new
        continue
      }
      {
        dpkg-deb -f new
        printf 'Filename: %s\nSize: %s\nSHA256: %s\n\n' "${1##*/}" "$(stat -c %s new)" "$digest"
      } >"${1##*/}.index"
      chmod 0644 new "${1##*/}.index"
      sync new "${1##*/}.index"
      mv -f new "${1##*/}"
    done
    rm -rf get
    while [ "$(du -sm . | cut -f 1)" -gt "$KEEP_LIMIT" ]; do
      oldest=$(ls -1tr ./*.deb | head -n 1)
      [ -n "$oldest" ] || break
      rm -f "$oldest" "$oldest.index"
    done
    : >Packages.new
    : >offers.new
    own_arch=$(dpkg --print-architecture)
    for index in ./*.index; do
      [ -e "$index" ] && cat "$index" >>Packages.new || continue
      arch=$(sed -n 's/^Architecture: //p' "$index")
      case $arch in "$own_arch" | all) arch= ;; *) arch=:$arch ;; esac
      printf '%s | %s | kept\n' "$(sed -n 's/^Package: //p' "$index")$arch" \
        "$(sed -n 's/^Version: //p' "$index")" >>offers.new
    done
    printf 'APT::Sources::With { "%s/Packages"; };\n' "$kept_folder" >apt.conf.new
    chmod 0644 ./*.new
    sync ./*.new
    for index in Packages offers apt.conf; do mv -f "$index.new" "$index"; done
    sync .
  ) || :
}
