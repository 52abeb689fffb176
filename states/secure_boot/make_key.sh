# shellcheck shell=sh
# Makes a key pair of the node's own, KEY and CERTIFICATE in FOLDER; the private half never leaves
# it. Reads R.
pair_folder=$FOLDER
umask 077
# shellcheck disable=SC2174 # folders above it get theirs by umask
mkdir -p -m 0700 "$pair_folder"
rm -f "$pair_folder"/new.*
cat >"$pair_folder/new.conf" <<EOF
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
openssl req -new -x509 -nodes -sha256 -days 36500 -newkey rsa:2048 -config "$pair_folder/new.conf" \
  -keyout "$pair_folder/new.priv" -outform DER -out "$pair_folder/new.der" >"$R/openssl.log" 2>&1 ||
  {
    tail -n 5 "$R/openssl.log"
    exit 1
  }
rm -f "$pair_folder/new.conf"
sync "$pair_folder/new.priv" "$pair_folder/new.der"
mv -f "$pair_folder/new.priv" "$KEY"
mv -f "$pair_folder/new.der" "$CERTIFICATE"
sync "$pair_folder"
effect made
