# shellcheck shell=sh
# Downloads the key of a repository, and refuses a file with other keys: rpm would trust every key in it.
# Reads R; NAME (of the state), URL, FINGERPRINT, KEY (path), LOGIN (1 if the address wants one); calls login, which writes it for
# curl into the file in c.
t=$R/key.$NAME; rm -f "$t"
if [ -n "$LOGIN" ]; then
  command -v curl >/dev/null || fail 'a key behind a password is fetched with curl, which is not installed'
  c=; login
  curl -fsSL --retry 2 --max-time 120 -K "$c" -o "$t" "$URL" || { rm -f "$c"; exit 1; }
  rm -f "$c"
elif command -v curl >/dev/null; then curl -fsSL --retry 2 --max-time 120 -o "$t" "$URL"
else wget -q --tries=3 --timeout=60 -O "$t" "$URL"; fi
have=$(gpg --batch --show-keys --with-colons "$t" 2>/dev/null | awk -F: '$1 == "pub" { p = 1 } p && $1 == "fpr" { print $10; p = 0 }' | tr "\n" " ")
[ "${have% }" = "$FINGERPRINT" ] || { rm -f "$t"; fail "error: the key there has fingerprint ${have:-(none)}, the policy requires $FINGERPRINT"; }
put "$KEY" 0644 root:root <"$t"; rm -f "$t"
