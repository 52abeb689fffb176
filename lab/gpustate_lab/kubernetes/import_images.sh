# shellcheck shell=sh
# Imports the container images below IMAGES, which are made on the spot; there is no registry.
set -eu
for archive in "$IMAGES"/*.tar; do
    ctr --namespace k8s.io images import "$archive"
done
