# shellcheck shell=sh
# Defines kept NAME KEY COMMAND...: prints what the command printed when the key was last the same,
# else runs it.
kept() {
  {
    kept_line=
    IFS= read -r kept_line && [ -n "$2" ] && case $kept_line in
      "0 $2") ;;
      "1 $2") while IFS= read -r kept_line; do printf '%s\n' "$kept_line"; done ;;
      "2 $2") cat ;;
      *) false ;;
    esac && return
  } 2>/dev/null <"$G/cache/$1"
  kept_name=$1 kept_key=$2
  shift 2
  kept_output=$("$@")
  kept_status=$?
  [ -z "$kept_output" ] || printf '%s\n' "$kept_output"
  [ $kept_status = 0 ] || return $kept_status
  kept_size=2
  [ ${#kept_output} -gt 1500 ] || kept_size=1
  [ -n "$kept_output" ] || kept_size=0
  [ -z "$kept_key" ] || [ ! -d "$G" ] || (
    umask 077
    mkdir -p "$G/cache" &&
      printf '%s\n' "$kept_size $kept_key" \
        ${kept_output:+"$kept_output"} >"$G/cache/$kept_name.$$" &&
      mv -f "$G/cache/$kept_name.$$" "$G/cache/$kept_name"
  )
}
