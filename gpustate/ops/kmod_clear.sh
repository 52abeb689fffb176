# shellcheck shell=sh
# Defines clear_dkms PATTERNS...: removes what killed builds of these DKMS packages left. Expects
# unlinked.
half_built() { # folder of a source and version, kernel, architecture
  if [ -r "$1/source/dkms.conf" ]; then
    [ "$dk_of" = "$1" ] || {
      dk_of=$1
      dk_v=${1##*/}
      dk_n=${1%/*}
      dk_n=${dk_n##*/}
      dk_said=$(dkms status -m "$dk_n" -v "$dk_v" 2>/dev/null) || :
    }
    if [ -n "$dk_said" ]; then
      ! printf '%s\n' "$dk_said" | grep -vF 'Missing some built' |
        grep -qF -e "$dk_n/$dk_v, $2, " -e "$dk_n, $dk_v, $2, "
      return
    fi
  fi
  [ -s "$1/$2/$3/log/make.log" ] || return 0
  for dk_m in "$1/$2/$3"/module/*.ko*; do [ ! -s "$dk_m" ] || return 1; done
}
clear_dkms() { # patterns of names that DKMS has for sources
  dk_of=
  dk_a=$(uname -m)
  for dk_p; do
    for dk_f in /var/lib/dkms/$dk_p/*/*/"$dk_a"; do
      dk_k=${dk_f%/*}
      dk_d=${dk_k%/*}
      [ -d "$dk_f" ] || continue
      case ${dk_d##*/}/${dk_k##*/} in original_module/* | */build | */source) continue ;; esac
      half_built "$dk_d" "${dk_k##*/}" "$dk_a" || continue
      echo "removing the half-done build in $dk_k"
      rm -rf "$dk_k"
      unlinked "${dk_d%/*}" "${dk_k##*/}"
    done
  done
}
