# shellcheck shell=sh
# Defines low_level: prints the programs that NVIDIA's runtime would wrap, those that are there. Reads TOOLKIT_CONFIG.
low_level() { # the list in the toolkit's config.toml, else its default
  b=$(sed -n '/^[[:space:]]*runtimes[[:space:]]*=/,/\]/p' "$TOOLKIT_CONFIG" 2>/dev/null | grep -o '"[^"]*"' | tr -d '"')
  for b in ${b:-runc crun}; do command -v "$b" 2>/dev/null; done
}
