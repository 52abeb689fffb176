# shellcheck shell=sh
# Prints a container runtime that is here without what the toolkit calls by default. Kubernetes in
# one piece brings one of its own, and no containerd on PATH.
for runtime in containerd dockerd crio; do
  command -v $runtime >/dev/null || continue
  for program in runc crun docker-runc; do command -v $program >/dev/null && exit 0; done
  echo "$runtime"
  exit 0
done
