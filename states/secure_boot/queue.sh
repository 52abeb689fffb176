# shellcheck shell=sh
# Queues the enrolment of CERTIFICATE. The one-time password is made of LETTERS and goes to the controller alone: through the file
# PASSWORD, and the folder ONCE, which the controller reads and empties.
umask 077; c=$CERTIFICATE; q=$PASSWORD; mkdir -p "$ONCE"; chmod 0700 "$ONCE"
case $(mokutil --test-key "$c" 2>&1) in *'already in the enrollment request'*) ;; *)
  p=$(tr -dc "$LETTERS" </dev/urandom | head -c 12); printf "%s" "$p" | openssl passwd -6 -stdin >"$q.hash"
  printf "the one-time password that MOK manager asks for at the console: %s\n" "$p" >"$q"; p=
  mokutil --import "$c" --hash-file "$q.hash" || { rm -f "$q" "$q.hash"; fail 'mokutil does not take the key'; }
  rm -f "$q.hash";;
esac
[ ! -e "$q" ] || mv -f "$q" "$ONCE/secure-boot"
effect queued
