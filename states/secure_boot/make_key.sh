# shellcheck shell=sh
# Makes a key pair of the node's own, KEY and CERTIFICATE in FOLDER; the private half never leaves it. Reads R.
d=$FOLDER; umask 077
# shellcheck disable=SC2174 # folders above it get theirs by umask
mkdir -p -m 0700 "$d"; rm -f "$d"/new.*
cat >"$d/new.conf" <<EOF
[req]
distinguished_name = name
x509_extensions = more
prompt = no
string_mask = utf8only
[name]
CN = gpustate module signing key of $(uname -n | cut -c 1-24)
[more]
basicConstraints = critical,CA:FALSE
keyUsage = digitalSignature
extendedKeyUsage = codeSigning
subjectKeyIdentifier = hash
EOF
openssl req -new -x509 -nodes -sha256 -days 36500 -newkey rsa:2048 -config "$d/new.conf" \
  -keyout "$d/new.priv" -outform DER -out "$d/new.der" >"$R/openssl.log" 2>&1 || { tail -n 5 "$R/openssl.log"; exit 1; }
rm -f "$d/new.conf"; sync "$d/new.priv" "$d/new.der"
mv -f "$d/new.priv" "$KEY"; mv -f "$d/new.der" "$CERTIFICATE"; sync "$d"; effect made
