#!/bin/sh
case "$1" in
  --list) echo '{"gpu": {"hosts": ["n1", "n2"]}, "old": {"x": 1}}' ;;
  --host) [ "$2" = n2 ] || echo "{\"me\": \"$2\"}" ;;
esac
