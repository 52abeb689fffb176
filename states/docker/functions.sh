# shellcheck shell=sh
# Defines dump, others, serves and working for docker, as gpustate.ops.daemons has them, and
# runs_with. Reads DOCKERD (its command line, quoted), DOCKER_FILE, DOCKER_VERSION, UNIT and BINARY.
# Only docker 23 and later can be asked what they make of a file before they run with it.
client() {
  unset DOCKER_HOST DOCKER_CONTEXT
  timeout -k 2 10 docker "$@"
}
old() { case $DOCKER_VERSION in 1?.* | 20.* | 22.* | '') ;; *) return 1 ;; esac }
dump() {
  # A file that is named and not there is an error to it.
  [ -f "$DOCKER_FILE" ] || {
    echo '{}'
    return 0
  }
  eval "set -- $DOCKERD"
  old || timeout -k 2 20 "$@" --validate >/dev/null || return 1
  cat "$DOCKER_FILE"
}
# Its error when it last reloaded its file and could not.
# shellcheck disable=SC2154 # notes is the folder of the daemon's notes
complaint() {
  old || return 0
  [ $(($(date +%s) - $(stat -c %Y "$notes/after"))) -gt 1 ] || {
    echo 'it was asked to reload less than two seconds ago'
    return 0
  }
  journalctl -u "$UNIT" --since "@$(stat -c %Y "$notes/after")" -o cat --no-pager 2>/dev/null |
    grep 'unable to configure the Docker daemon' | tail -n 1 | cut -c 1-300
}
others() { :; }
serves() { grep -qF -e "\"$BINARY\"" -e "\"${BINARY##*/}\""; }
working() {
  if command -v docker >/dev/null; then client info --format 'docker ok'; else echo 'docker ok'; fi
}
runs_with() { # name, NAME=PROGRAM or nothing
  refusal=$(complaint)
  [ -z "$refusal" ] || {
    echo "$refusal"
    return 1
  }
  command -v docker >/dev/null || return 0
  said=$(client info --format '{{range $k, $v := .Runtimes}}{{$k}}={{$v.Path}}{{"\n"}}{{end}}') ||
    return 1
  if [ -n "$2" ]; then
    printf '%s\n' "$said" | grep -qxF "$2"
  else
    ! printf '%s\n' "$said" | grep -q "^$1="
  fi
}
