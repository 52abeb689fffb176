#!/bin/sh
# Written by gpustate (state mig); changes are undone by the next apply.
# Brings the GPUs of this node to a MIG layout: sh restore LAYOUT. Makes what is missing, in its place, and
# destroys nothing; says what stands in the way, and then ends with 1. Done twice it does nothing. $lost are GPUs to leave out.
LC_ALL=C; export LC_ALL
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
layout=$1 wrong=0
bad() { echo "$*" >&2; wrong=1; }
smi() { timeout -k 5 120 nvidia-smi "$@" 2>&1 </dev/null; }
why() { printf '%s' "$1" | tail -n 1; }
# Tables of nvidia-smi as plain rows: "instance profile start name", "instance compute name".
instances() { smi mig -i "$1" -lgi | sed -n 's/^| *[0-9][0-9]* *MIG *\([^ ]*\) *\([0-9][0-9]*\) *\([0-9][0-9]*\) *\([0-9][0-9]*\):[0-9][0-9]* *|$/\3 \2 \4 \1/p'; }
computes() { smi mig -i "$1" -lci | sed -n 's/^| *[0-9][0-9]* *\([0-9][0-9]*\) *MIG *\([^ ]*\) *[0-9][0-9]* *\([0-9][0-9]*\) .*|$/\1 \3 \2/p'; }
modes() { smi -i "$1" --query-gpu=mig.mode.current,mig.mode.pending --format=csv,noheader; }

# One lost GPU makes nvidia-smi -L fail, and the others answer.
answers() { o=$(smi -L) || while read -r kind gpu _; do [ "$kind" = gpu ] && m=$(modes "$gpu") && return 0; done <"$layout"; }
mode() { # gpu word
  case " ${lost-} " in *" $1 "*) return 1;; esac
  case $2 in on) want=Enabled n=1;; *) want=Disabled n=0;; esac
  m=$(modes "$1"); o=
  case $m in Enabled,*|Disabled,*) ;; *) bad "GPU $1 does not tell its MIG mode: $(why "$m")"; return 1;; esac
  [ "$m" = "$want, $want" ] && return 0
  # "All done." is said for a mode that only waits, so the mode is read again.
  case $m in *", $want") ;; *) o=$(smi -i "$1" -mig $n) || { bad "GPU $1: MIG mode $2: $(why "$o")"; return 1; };; esac
  m=$(modes "$1")
  if [ "$m" != "$want, $want" ] && [ "${m#*, }" = $want ]; then
    o=$(smi -i "$1" --gpu-reset) || :
    m=$(modes "$1")
  fi
  [ "$m" = "$want, $want" ] || { bad "GPU $1: MIG mode $2 waits for a reset or a reboot: $(printf '%s' "$o" | grep -m 1 -E 'In use|[Nn]ot supported|being used' || why "$o")"; return 1; }
  echo "GPU $1: MIG mode $2"
}

instance() { # gpu profile start name devices
  i=
  have=$(instances "$1")
  while read -r id profile start _; do
    [ "$profile $start" = "$2 $3" ] && i=$id
  done <<END
$have
END
  if [ -z "$i" ]; then
    o=$(smi mig -i "$1" -cgi "$2:$3") || { bad "GPU $1: $4 at $3 cannot be made: $(why "$o")"; return 1; }
    i=$(printf '%s\n' "$o" | sed -n 's/.*created GPU instance ID *\([0-9][0-9]*\) .*/\1/p')
    [ -n "$i" ] || { bad "GPU $1: $4 at $3: nvidia-smi said $(why "$o")"; return 1; }
    echo "GPU $1: made $4 at $3 (GPU instance $i)"
  fi
  made=$(computes "$1" | while read -r owner _ name; do [ "$owner" = "$i" ] && echo "$name"; done; :)
  rest=$5,
  while [ -n "$rest" ] && [ "$5" != - ]; do
    name=${rest%%,*} rest=${rest#*,}
    left='' found=''
    for one in $made; do
      if [ -z "$found" ] && [ "$one" = "$name" ]; then found=1; else left="$left $one"; fi
    done
    made=$left
    [ -z "$found" ] || continue
    # The default is the whole instance; its number differs between profiles.
    if [ "$name" = "$4" ]; then o=$(smi mig -i "$1" -gi "$i" -cci); else o=$(smi mig -i "$1" -gi "$i" -cci "$name"); fi ||
      { bad "GPU $1: $name in GPU instance $i cannot be made: $(why "$o")"; return 1; }
    echo "GPU $1: made $name in GPU instance $i"
  done
}

[ -r "$layout" ] || { echo "$layout cannot be read" >&2; exit 1; }
n=0
until answers; do
  n=$((n + 1)); [ $n -lt 30 ] || { echo "no GPU answers: $(why "$o")" >&2; exit 1; }
  sleep 1
done
off=
while read -r kind gpu a b c d; do
  case $kind in
    gpu) off=; mode "$gpu" "$a" || off=$gpu;;
    instance) [ "$off" = "$gpu" ] || instance "$gpu" "$a" "$b" "$c" "$d";;
  esac
done <"$layout"
# Whoever lists them makes their nodes below /dev/nvidia-caps.
smi -L >/dev/null || :
exit $wrong
