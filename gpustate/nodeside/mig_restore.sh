#!/bin/sh
# Written by gpustate (state mig); changes are undone by the next apply.
# Brings the GPUs of this node to a MIG layout: sh restore LAYOUT. Makes what is missing, in its
# place, and destroys nothing; says what stands in the way, and then ends with 1. Done twice it does
# nothing. $lost are GPUs to leave out.
LC_ALL=C
export LC_ALL
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
layout=$1 wrong=0
bad() {
  echo "$*" >&2
  wrong=1
}
smi() { timeout -k 5 120 nvidia-smi "$@" 2>&1 </dev/null; }
why() { printf '%s' "$1" | tail -n 1; }
# Tables of nvidia-smi as plain rows: "instance profile start name", "instance compute name".
instances() {
  smi mig -i "$1" -lgi | sed -nE \
    's/^\| *[0-9]+ *MIG *([^ ]*) *([0-9]+) *([0-9]+) *([0-9]+):[0-9]+ *\|$/\3 \2 \4 \1/p'
}
computes() {
  smi mig -i "$1" -lci |
    sed -nE 's/^\| *[0-9]+ *([0-9]+) *MIG *([^ ]*) *[0-9]+ *([0-9]+) .*\|$/\1 \3 \2/p'
}
modes() { smi -i "$1" --query-gpu=mig.mode.current,mig.mode.pending --format=csv,noheader; }

# One lost GPU makes nvidia-smi -L fail, and the others answer.
answers() {
  output=$(smi -L) || while read -r kind gpu _; do
    [ "$kind" = gpu ] && mode_now=$(modes "$gpu") && return 0
  done <"$layout"
}
mode() { # gpu word
  case " ${lost-} " in *" $1 "*) return 1 ;; esac
  case $2 in on) wanted=Enabled bit=1 ;; *) wanted=Disabled bit=0 ;; esac
  mode_now=$(modes "$1")
  output=
  case $mode_now in
    Enabled,* | Disabled,*) ;;
    *)
      bad "GPU $1 does not tell its MIG mode: $(why "$mode_now")"
      return 1
      ;;
  esac
  [ "$mode_now" = "$wanted, $wanted" ] && return 0
  # "All done." is said for a mode that only waits, so the mode is read again.
  case $mode_now in
    *", $wanted") ;;
    *)
      output=$(smi -i "$1" -mig $bit) || {
        bad "GPU $1: MIG mode $2: $(why "$output")"
        return 1
      }
      ;;
  esac
  mode_now=$(modes "$1")
  if [ "$mode_now" != "$wanted, $wanted" ] && [ "${mode_now#*, }" = $wanted ]; then
    output=$(smi -i "$1" --gpu-reset) || :
    mode_now=$(modes "$1")
  fi
  [ "$mode_now" = "$wanted, $wanted" ] || {
    bad "GPU $1: MIG mode $2 waits for a reset or a reboot: $(printf '%s' "$output" |
      grep -m 1 -E 'In use|[Nn]ot supported|being used' || why "$output")"
    return 1
  }
  echo "GPU $1: MIG mode $2"
}

instance() { # gpu profile start name devices
  instance_id=
  rows=$(instances "$1")
  while read -r id profile start _; do
    [ "$profile $start" = "$2 $3" ] && instance_id=$id
  done <<END
$rows
END
  if [ -z "$instance_id" ]; then
    output=$(smi mig -i "$1" -cgi "$2:$3") || {
      bad "GPU $1: $4 at $3 cannot be made: $(why "$output")"
      return 1
    }
    instance_id=$(printf '%s\n' "$output" |
      sed -n 's/.*created GPU instance ID *\([0-9][0-9]*\) .*/\1/p')
    [ -n "$instance_id" ] || {
      bad "GPU $1: $4 at $3: nvidia-smi said $(why "$output")"
      return 1
    }
    echo "GPU $1: made $4 at $3 (GPU instance $instance_id)"
  fi
  existing=$(
    computes "$1" | while read -r owner _ name; do
      [ "$owner" = "$instance_id" ] && echo "$name"
    done
    :
  )
  names=$5,
  while [ -n "$names" ] && [ "$5" != - ]; do
    name=${names%%,*} names=${names#*,}
    others='' matched=''
    for other in $existing; do
      if [ -z "$matched" ] && [ "$other" = "$name" ]; then
        matched=1
      else
        others="$others $other"
      fi
    done
    existing=$others
    [ -z "$matched" ] || continue
    # The default is the whole instance; its number differs between profiles.
    if [ "$name" = "$4" ]; then
      output=$(smi mig -i "$1" -gi "$instance_id" -cci)
    else
      output=$(smi mig -i "$1" -gi "$instance_id" -cci "$name")
    fi ||
      {
        bad "GPU $1: $name in GPU instance $instance_id cannot be made: $(why "$output")"
        return 1
      }
    echo "GPU $1: made $name in GPU instance $instance_id"
  done
}

[ -r "$layout" ] || {
  echo "$layout cannot be read" >&2
  exit 1
}
tries=0
until answers; do
  tries=$((tries + 1))
  [ $tries -lt 30 ] || {
    echo "no GPU answers: $(why "$output")" >&2
    exit 1
  }
  sleep 1
done
off=
while read -r kind gpu first second third fourth; do
  case $kind in
    gpu)
      off=
      mode "$gpu" "$first" || off=$gpu
      ;;
    instance) [ "$off" = "$gpu" ] || instance "$gpu" "$first" "$second" "$third" "$fourth" ;;
  esac
done <"$layout"
# Whoever lists them makes their nodes below /dev/nvidia-caps.
smi -L >/dev/null || :
exit $wrong
