# shellcheck shell=sh
# Defines complain MAKE.LOG: prints the first word of the compiler. @CAUSE@ is a regular expression.
complain() { # make.log
  c=${1#/var/lib/dkms/}
  n=${c%%/*}
  c=${c#*/}
  changed_sources "$n-${c%%/*}"
  k=$(sed -n "s/.* for kernel \([^ ]*\).*/\1/p;q" "$1" 2>/dev/null) || return 0
  c=$(grep -m 1 -E '@CAUSE@' "$1") || c=$(grep -m 1 -F '***' "$1") || return 0
  cp "$1" "$R/make.log.$k"
  echo "DKMS build error for kernel $k: ${c##*/build/} (whole log: $R/make.log.$k)"
}
