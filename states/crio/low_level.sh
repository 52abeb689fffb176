# shellcheck shell=sh
# Defines low_level: prints the programs that NVIDIA's runtime would wrap, those that are there.
# Reads TOOLKIT_CONFIG.
low_level() { # the list in the toolkit's config.toml, else its default
  low_level_program=$(sed -n '/^[[:space:]]*runtimes[[:space:]]*=/,/\]/p' \
    "$TOOLKIT_CONFIG" 2>/dev/null |
    grep -o '"[^"]*"' | tr -d '"')
  for low_level_program in ${low_level_program:-runc crun}; do
    command -v "$low_level_program" 2>/dev/null
  done
}
