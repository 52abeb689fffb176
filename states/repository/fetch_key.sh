# shellcheck shell=sh
# Downloads the key of a repository, and refuses a file with other keys: rpm would trust every key
# in it. Reads R; NAME (of the state), URL, FINGERPRINT (or its end), SHA256 (of the file, or
# empty), KEY (path), LOGIN (1 if the address wants one); calls login, which writes it for curl into
# the file in c.
key_file=$R/key.$NAME
rm -f "$key_file"
if [ -n "$LOGIN" ]; then
  command -v curl >/dev/null ||
    fail 'a key behind a password is fetched with curl, which is not installed'
  c=
  login
  curl -fsSL --retry 2 --max-time 120 -K "$c" -o "$key_file" "$URL" || {
    rm -f "$c"
    exit 1
  }
  rm -f "$c"
elif command -v curl >/dev/null; then
  curl -fsSL --retry 2 --max-time 120 -o "$key_file" "$URL"
else
  wget -q --tries=3 --timeout=60 -O "$key_file" "$URL"
fi
have=$(gpg --batch --show-keys --with-colons "$key_file" 2>/dev/null |
  awk -F: '$1 == "pub" { p = 1 } p && $1 == "fpr" { print $10; p = 0 }' | tr "\n" " ")
sum=$(sed '/^Version/d' "$key_file" | sha256sum)
[ "${sum%% *}" = "${SHA256:-${sum%% *}}" ] || {
  rm -f "$key_file"
  fail "error: the key file there has the SHA-256 ${sum%% *}, not $SHA256"
}
case ${have% } in
  *' '*)
    have="several: $have"
    false
    ;;
  *"$FINGERPRINT") ;;
  *) false ;;
esac || {
  rm -f "$key_file"
  fail "error: the key there has fingerprint ${have:-(none)}, the policy requires $FINGERPRINT"
}
put "$KEY" 0644 root:root <"$key_file"
rm -f "$key_file"
