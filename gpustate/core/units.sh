# shellcheck shell=sh
# Sets a variable for each of several units to what systemctl shows of it, and UNIT_FILES. @ROWS@ are pairs of
# variable and unit, @FILES@ and @SHOW@ calls of systemctl, @VARIABLES@ names, @FILE@ a unit of every systemd, and
# @END@ a control character. Names of variables and calls cannot be variables.
if [ -d /run/systemd/system ]; then
n='
'; UNIT_FILES=$(@FILES@ 2>/dev/null); e="$n$UNIT_FILES$n"; p=; v=
case "$e" in *"${n}@FILE@ "*)
  # shellcheck disable=SC2043 # @ROWS@ are several words
  for r in @ROWS@; do
    u=${r#* }; s=; case $u in *@*) s=1 ;; *) case "$e" in *"$n$u "*) s=1 ;; *)
      if [ -d "/sys/fs/cgroup/system.slice/$u" ] || [ -d "/sys/fs/cgroup/systemd/system.slice/$u" ]; then s=1; fi ;; esac ;; esac
    if [ -n "$s" ]; then p="$p $u" v="$v ${r% *}"
    else eval "${r% *}='Id=$u${n}LoadState=not-found${n}ActiveState=inactive'"; fi
  done
  set -f; s=$IFS; l=$(@SHOW@ $p 2>/dev/null | sed 's/^$/@END@/'); IFS='@END@'; set -- $l; IFS=$s; set +f
  for v in $v; do
    case ${1-} in *=*) b=${1#"$n"}; b=${b%"$n"}; eval "$v=\$b"; shift ;; *) unset @VARIABLES@; break ;; esac
  done; set -- ;;
*) unset UNIT_FILES ;; esac
fi
