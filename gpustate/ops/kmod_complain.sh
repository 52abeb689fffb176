# shellcheck shell=sh
# Defines complain MAKE.LOG: prints the first word of the compiler. @CAUSE@ is a regular expression.
complain() { # make.log
  build_cause=${1#/var/lib/dkms/}
  source_name=${build_cause%%/*}
  build_cause=${build_cause#*/}
  changed_sources "$source_name-${build_cause%%/*}"
  failed_kernel=$(sed -n "s/.* for kernel \([^ ]*\).*/\1/p;q" "$1" 2>/dev/null) || return 0
  build_cause=$(grep -m 1 -E '@CAUSE@' "$1") || build_cause=$(grep -m 1 -F '***' "$1") || return 0
  cp "$1" "$R/make.log.$failed_kernel"
  echo "DKMS build error for kernel $failed_kernel: ${build_cause##*/build/}" \
    "(whole log: $R/make.log.$failed_kernel)"
}
