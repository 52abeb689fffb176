# shellcheck shell=sh
# Prints the output of cuda_query, leads= with the target of LINK, and nvcc=VERSION OUTPUT for each
# toolkit.
cuda_query
[ -L "$LINK" ] && echo "leads=$(readlink "$LINK")"
[ -d "$LINK" ] && [ ! -L "$LINK" ] && echo "leads=."
for nvcc in "$LINK"-[0-9]*/bin/nvcc; do
  [ -x "$nvcc" ] || continue
  toolkit=${nvcc%/bin/nvcc}
  version=$(timeout -k 2 20 "$nvcc" --version 2>/dev/null | sed -n 's/.*, V\([0-9.]*\)$/\1/p')
  echo "nvcc=${toolkit#"$LINK-"} $version"
done
:
