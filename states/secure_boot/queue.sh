# shellcheck shell=sh
# Queues the enrolment of CERTIFICATE. The one-time password is made of LETTERS and goes to the
# controller alone: through the file PASSWORD, and the folder ONCE, which the controller reads and
# empties.
umask 077
certificate=$CERTIFICATE
password_file=$PASSWORD
mkdir -p "$ONCE"
chmod 0700 "$ONCE"
case $(mokutil --test-key "$certificate" 2>&1) in
  *'already in the enrollment request'*) ;;
  *)
    password=$(tr -dc "$LETTERS" </dev/urandom | head -c 12)
    printf "%s" "$password" | openssl passwd -6 -stdin >"$password_file.hash"
    printf "the one-time password that MOK manager asks for at the console: %s\n" \
      "$password" >"$password_file"
    password=
    mokutil --import "$certificate" --hash-file "$password_file.hash" || {
      rm -f "$password_file" "$password_file.hash"
      fail 'mokutil does not take the key'
    }
    rm -f "$password_file.hash"
    ;;
esac
[ ! -e "$password_file" ] || mv -f "$password_file" "$ONCE/secure-boot"
effect queued
