# shellcheck shell=sh
# Defines ko KERNEL PATTERN... and about PATH FORMAT: see module_files.py. Reads KO and KO_ABOUT.
ko() {
  kk=$1; shift; set -f; ki=$IFS; IFS='
'
  p=; for kl in $KO; do
    case $kl in "/lib/modules/$kk/modules.dep:"*) ;; *) continue ;; esac
    # shellcheck disable=SC2254 # the names are patterns
    for kn; do case ${kl##*/} in $kn.ko:|$kn.ko.*:) p=${kl#*:}; p=${p%:}; break 2 ;; esac; done
  done
  IFS=$ki; set +f
  case $p in ''|/*) ;; *) p=/lib/modules/$kk/$p ;; esac
  [ -n "$p" ]
}
about() {
  set -f; ki=$IFS; IFS='
'
  kn=; for kk in $KO_ABOUT; do
    case $kk in filename:*" $1") kn=1 ;; filename:*) kn= ;; *) [ -z "$kn" ] || printf "$2" "$kk" ;; esac
  done
  IFS=$ki; set +f
}
