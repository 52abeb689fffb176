# shellcheck shell=sh
# Imports the container images below IMAGES, which are made on the spot; there is no registry.
set -eu
for archive in "$IMAGES"/*.tar; do
    if command -v crio >/dev/null; then
        for name in $(tar -xOf "$archive" manifest.json | python3 -c 'import json, sys; print(*json.load(sys.stdin)[0]["RepoTags"])'); do
            skopeo copy --quiet "docker-archive:$archive:$name" "containers-storage:$name"
        done
    else
        ctr --namespace k8s.io images import "$archive"
    fi
done
